"""Lets a shard be written while what follows is read: a copy is then as slow as the slower of the two, not as both."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import numpy as np

from bundle.format.checksums import BLOCK_BYTES
from bundle.tables.reader import ShardWriter

BUFFERS = 3
"""One that is written, one that waits, one that is filled: what was handed over is free again two calls later."""

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class WriteBehind:
    """Writes a shard in a thread of its own. Used as a context: left without an exception, all is written.

    The shard's writer must not be touched meanwhile. Every method raises OSError if what was handed over before could
    not be written.
    """

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="shard writer")
        self._running: deque[Future[None]] = deque()
        self._handed_bytes = 0

    @property
    def room_bytes(self) -> int:
        """How many bytes `write` takes with their crc32c."""
        return BLOCK_BYTES - self._handed_bytes % BLOCK_BYTES

    def write(self, data: _Bytes, crc32c: int | None = None) -> None:
        """Hands bytes over; they must stay as they are until `write` was called twice more, or `wait` once."""
        self._handed_bytes += data.size
        self._hand_over(lambda: self._writer.write(data, crc32c))

    def place(self, parts: Sequence[tuple[int, _Bytes]]) -> None:
        """Hands bytes over that belong anywhere in the shard, each with its place; they must stay as of `write`."""
        self._hand_over(lambda: self._place(parts))

    def wait(self, left: int = 0) -> None:
        """Returns when all is written but for the `left` last calls."""
        while len(self._running) > left:
            self._running.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if problem is None:
                self.wait()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _hand_over(self, write: Callable[[], None]) -> None:
        self.wait(left=BUFFERS - 2)
        self._running.append(self._pool.submit(write))

    def _place(self, parts: Sequence[tuple[int, _Bytes]]) -> None:
        for at, data in parts:
            self._writer.place(at, data)

"""Lets a shard be written while what follows is read: a copy is then as slow as the slower of the two, not as both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Queue
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

    The shard's writer must not be touched meanwhile.
    """

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer
        self._waiting: Queue[Callable[[], None] | None] = Queue(maxsize=1)
        self._handed_bytes = 0
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shard writer", daemon=True)
        self._thread.start()

    @property
    def room_bytes(self) -> int:
        """How many bytes `write` takes with their crc32c."""
        return BLOCK_BYTES - self._handed_bytes % BLOCK_BYTES

    def write(self, data: _Bytes, crc32c: int | None = None) -> None:
        """Hands bytes over; they must stay as they are until `write` was called twice more, or `wait` once.

        Raises:
          OSError: what was handed over before could not be written.
        """
        self._waiting.put(lambda: self._writer.write(data, crc32c))
        self._handed_bytes += data.size
        self._tell()

    def place(self, parts: Sequence[tuple[int, _Bytes]]) -> None:
        """Hands bytes over that belong anywhere in the shard, each with its place; they must stay as those of `write`.

        Raises:
          OSError: what was handed over before could not be written.
        """
        self._waiting.put(lambda: self._place(parts))
        self._tell()

    def wait(self) -> None:
        """Returns when all is written.

        Raises:
          OSError: it could not be.
        """
        self._waiting.join()
        self._tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.put(None)
        self._thread.join()
        if problem is None:
            self._tell()

    def _run(self) -> None:
        while (part := self._waiting.get()) is not None:
            try:
                if self._problem is None:
                    part()
            except BaseException as problem:  # noqa: BLE001 (told to whoever waits)
                self._problem = problem
            finally:
                self._waiting.task_done()

    def _place(self, parts: Sequence[tuple[int, _Bytes]]) -> None:
        for at, data in parts:
            self._writer.place(at, data)

    def _tell(self) -> None:
        if self._problem is not None:
            raise self._problem

"""Exact reads from data files at byte offsets, into memory that the caller owns.

Plain reads and no memory maps: a mapped table counts as the process' own memory wherever resident memory is watched,
and values in a data file are not aligned to anything.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from types import TracebackType
from typing import Any, Self

import numpy as np

from export.errors import CheckpointError

OPEN_FILES_MAX = 64

Buffer = np.ndarray[Any, np.dtype[np.uint8]]


class DataFiles:
    """Data files, opened when first read; at most OPEN_FILES_MAX are open at a time."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes what is open."""
        while self._open:
            os.close(self._open.popitem()[1])

    def read_into(self, file: str, offset: int, buffer: Buffer) -> None:
        """Fills a buffer from a file.

        Args:
          file: path of the data file.
          offset: its first byte to read.
          buffer: [bytes] uint8, contiguous; filled completely.
        Raises:
          CheckpointError: the file is gone, ends early or cannot be read.
        """
        view = memoryview(buffer.data)
        done = 0
        try:
            handle = self._handle(file)
            while done < len(view):
                count = os.preadv(handle, [view[done:]], offset + done)
                if count == 0:
                    raise CheckpointError(
                        f"data file {file} ends before byte {offset + len(view)}: it was cut short; copy it anew"
                    )
                done += count
        except FileNotFoundError as problem:
            raise CheckpointError(
                f"data file {file} is gone; did its training job delete the checkpoint? Keep more of them (max_to_keep)"
            ) from problem
        except OSError as problem:
            raise CheckpointError(
                f"data file {file} cannot be read at byte {offset + done}: {problem.strerror}"
            ) from problem

    def _handle(self, file: str) -> int:
        handle = self._open.pop(file, None)
        if handle is None:
            if len(self._open) >= OPEN_FILES_MAX:
                os.close(self._open.popitem(last=False)[1])
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self._open[file] = handle
        return handle

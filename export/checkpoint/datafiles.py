"""Exact reads from data files at byte offsets, into memory that the caller owns.

Plain reads and no memory maps: a mapped table counts as the process' own memory wherever resident memory is watched,
and values in a data file are not aligned to anything.
"""

from __future__ import annotations

import errno
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from export.checkpoint.readahead import ReadAhead
from export.checkpoint.variables import Slice
from export.errors import CheckpointError, CheckpointOffline
from runtime.object_store import RemotePath, Stamp, is_url, local_stamp

OPEN_FILES_MAX = 64
EMPTY_READS_MAX, RETRY_S = 4, 0.05
"""Reads in a row that bring nothing of a file that is long enough: then its storage fails. The wait between them."""

Buffer = np.ndarray[Any, np.dtype[np.uint8]]


class DataFiles:
    """Data files, opened when first read; at most OPEN_FILES_MAX are open at a time. A file may be a URL.

    Where stamps are given, a file that is opened must still be the one that its stamp was taken of.
    """

    def __init__(self, stamps: Mapping[str, Stamp] | None = None) -> None:
        self._stamps = stamps or {}
        self._open: OrderedDict[str, int] = OrderedDict()
        self._remote: ReadAhead | None = None
        self._sizes: dict[str, int | None] = {}

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
        if self._remote is not None:
            self._remote.close()
            self._remote = None

    def read_into(self, file: str, offset: int, buffer: Buffer, end: int | None = None) -> None:
        """Fills a buffer from a file.

        Args:
          file: path of the data file.
          offset: its first byte to read.
          buffer: [bytes] uint8, contiguous; filled completely.
          end: byte beyond which nothing will be read next: nothing behind it is fetched ahead from a store.
        Raises:
          CheckpointError: the file is gone, changed, ends early or cannot be read.
        """
        handle = self._open.get(file)
        if handle is not None:  # thousands of lanes are read so: the short way, unless something is wrong
            with suppress(OSError):
                if os.preadv(handle, [buffer.data], offset) == buffer.size:
                    return
        view = memoryview(buffer.data)
        if is_url(file):
            size = self._size(file)
            known = [each for each in (size, end) if each is not None]
            self._remotely().read_into(file, offset, view, min(known, default=None))
            return
        done = empty = 0
        try:
            handle = self._handle(file)
            while done < len(view):
                count = os.preadv(handle, [view[done:]], offset + done)
                if count == 0 and os.fstat(handle).st_size < offset + len(view):
                    raise CheckpointError(
                        f"data file {file} ends before byte {offset + len(view)}: it was cut short; copy it anew"
                    )
                if count == 0:  # as a network filesystem may answer while it fails
                    empty += 1
                    if empty == EMPTY_READS_MAX:
                        raise OSError(errno.EIO, "no bytes were read, though the file is long enough")
                    time.sleep(RETRY_S)
                done += count
        except FileNotFoundError as problem:
            raise CheckpointError(
                f"data file {file} is gone; did its training job delete the checkpoint? Keep more of them (max_to_keep)"
            ) from problem
        except OSError as problem:
            raise CheckpointOffline(
                f"data file {file} cannot be read at byte {offset + done}: {problem.strerror}; once it can, run again: "
                "it resumes"
            ) from problem

    def _handle(self, file: str) -> int:
        handle = self._open.pop(file, None)
        if handle is None:
            if len(self._open) >= OPEN_FILES_MAX:
                os.close(self._open.popitem(last=False)[1])
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            if (stamp := self._stamps.get(file)) is not None and local_stamp(os.fstat(handle)) != stamp:
                os.close(handle)
                raise changed(file)
        self._open[file] = handle
        return handle

    def _remotely(self) -> ReadAhead:
        if self._remote is None:
            self._remote = ReadAhead()
        return self._remote

    def _size(self, file: str) -> int | None:
        """Returns the bytes of a file in a store, once it was held against its stamp; None if it has none."""
        if file not in self._sizes:
            stamp = self._stamps.get(file)
            if stamp is not None:
                check_unchanged({file: stamp})
            self._sizes[file] = None if stamp is None else stamp.bytes
        return self._sizes[file]


def stamps_of(slices: Iterable[Slice]) -> dict[str, Stamp]:
    """Returns the stamps of the data files that hold slices."""
    return {part.file: part.stamp for part in slices if part.stamp is not None}


def check_unchanged(stamps: Mapping[str, Stamp]) -> None:
    """Holds data files against the stamps that were taken of them.

    Raises:
      CheckpointError: one is gone or is not the file that it was; names it.
    """
    for file, stamp in stamps.items():
        try:
            now = RemotePath(file).stamp() if is_url(file) else local_stamp(Path(file).stat())
        except OSError as problem:
            raise CheckpointError(
                f"data file {file} cannot be looked at any more: {problem.strerror}; did its training job delete it?"
            ) from problem
        if now != stamp:
            raise changed(file)


def changed(file: str) -> CheckpointError:
    """Returns the error of a data file that is another than when the checkpoint was opened."""
    return CheckpointError(
        f"data file {file} changed while it was read; export a checkpoint that is complete and that nothing writes to"
    )

"""Exact reads from data files at byte offsets, into memory that the caller owns.

Plain reads and no memory maps: a mapped table counts as memory of the process wherever resident
memory is watched, and values in a data file are not aligned to anything.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np

from bundle.storage.regular_files import regular_descriptor
from export.checkpoint.variables import Slice
from export.errors import CheckpointError
from object_store.locations import is_url
from object_store.remote_path import RemotePath
from object_store.stamps import Stamp, local_stamp

OPEN_FILES_MAX = 64
"""The maximum number of open data files: far below the usual limit of 1,024 for a process, and
enough to seldom open a file again.
"""
REQUESTS = 16
"""The number of requests to an object store that run at a time."""
REQUEST_BYTES = 1 << 20
"""The maximum number of bytes that one request to an object store fetches. Smaller requests spend
their time in waiting; larger ones leave fewer to run at a time.
"""

Buffer = np.ndarray[Any, np.dtype[np.uint8]]


class DataFiles:
    """Data files, opened when first read; at most OPEN_FILES_MAX are open at a time. A file may be
    a URL.

    Where stamps are given, a file that is opened must still be the one whose stamp was taken.
    """

    def __init__(self, stamps: Mapping[str, Stamp] | None = None) -> None:
        self._stamps = stamps or {}
        self._open: dict[str, int] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._fetched: dict[tuple[str, int, int], list[Future[bytes]]] = {}
        self._checked: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the open files."""
        while self._open:
            os.close(self._open.popitem()[1])
        self._fetched.clear()
        if self._pool is not None:
            # Nobody reads what requests that have not begun would return.
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def prefetch(self, file: str, offset: int, count: int) -> None:
        """Begins to fetch bytes that `read_into` will read. Does nothing for a local file."""
        if not is_url(file) or (file, offset, count) in self._fetched:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="rowcast-fetch")

        end = offset + count
        self._fetched[file, offset, count] = [
            self._pool.submit(_fetch, file, start, min(REQUEST_BYTES, end - start))
            for start in range(offset, end, REQUEST_BYTES)
        ]

    def read_into(self, file: str, offset: int, buffer: Buffer) -> None:
        """Fills a buffer from a file.

        Args:
          file: The path or the URL of the data file.
          offset: The first byte to read.
          buffer: The contiguous buffer to fill completely, [bytes] uint8.
        Raises:
          CheckpointError: The file is gone, changed, ends early or cannot be read.
        """
        if is_url(file):
            self._read_remote(file, offset, buffer)
            return
        view = memoryview(buffer.data)
        done = 0
        try:
            handle = self._handle(file)
            while done < len(view):
                count = os.preadv(handle, [view[done:]], offset + done)
                if count == 0 and os.fstat(handle).st_size < offset + len(view):
                    raise _cut_short(file, offset + len(view))
                if count == 0:
                    # A network filesystem may return no bytes while it fails. The file is not
                    # damaged, so the error says to run again and not to copy the file.
                    raise OSError(errno.EIO, "no bytes were read, though the file is long enough")
                done += count
        except FileNotFoundError as problem:
            raise _gone(file) from problem
        except OSError as problem:
            raise _offline(file, offset + done, problem) from problem

    def _handle(self, file: str) -> int:
        if (handle := self._open.get(file)) is not None:
            return handle
        if len(self._open) >= OPEN_FILES_MAX:
            oldest = next(iter(self._open))
            os.close(self._open.pop(oldest))

        handle = regular_descriptor(file)
        # The stamp is that of the open file, not of its path: nothing can replace the file between
        # this comparison and the reads.
        stamp = self._stamps.get(file)
        if stamp is not None and local_stamp(os.fstat(handle)) != stamp:
            os.close(handle)
            raise changed(file)
        self._open[file] = handle
        return handle

    def _read_remote(self, file: str, offset: int, buffer: Buffer) -> None:
        # A stamp costs a request to the store, so it is compared once per file.
        if file in self._stamps and file not in self._checked:
            check_unchanged({file: self._stamps[file]})
            self._checked.add(file)
        self.prefetch(file, offset, buffer.size)
        done = 0
        for part in self._fetched.pop((file, offset, buffer.size)):
            data = np.frombuffer(part.result(), np.uint8)
            buffer[done : done + data.size] = data
            done += data.size


def _fetch(file: str, offset: int, count: int) -> bytes:
    try:
        data = RemotePath(file).read(offset, count)
    except FileNotFoundError as problem:
        raise _gone(file) from problem
    except OSError as problem:
        raise _offline(file, offset, problem) from problem
    if len(data) != count:
        raise _cut_short(file, offset + count)
    return data


def _gone(file: str) -> CheckpointError:
    return CheckpointError(
        f"data file {file} is gone; did its training job delete the checkpoint? Keep more of them "
        "(max_to_keep)"
    )


def _offline(file: str, offset: int, problem: OSError) -> CheckpointError:
    return CheckpointError(
        f"data file {file} cannot be read at byte {offset}: {problem.strerror or problem}; once it "
        "can, run again: it resumes"
    )


def _cut_short(file: str, end: int) -> CheckpointError:
    return CheckpointError(
        f"data file {file} ends before byte {end}: it was cut short; copy it anew"
    )


def stamps_of(slices: Iterable[Slice]) -> dict[str, Stamp]:
    """Returns the stamps of the data files that hold slices."""
    return {part.file: part.stamp for part in slices if part.stamp is not None}


def check_unchanged(stamps: Mapping[str, Stamp]) -> None:
    """Compares data files with the stamps that were taken of them.

    Raises:
      CheckpointError: A file is gone or has changed; the error names it.
    """
    for file, stamp in stamps.items():
        try:
            if is_url(file):
                current_stamp = RemotePath(file).stamp()
            else:
                current_stamp = local_stamp(Path(file).stat())
        except OSError as problem:
            raise CheckpointError(
                f"data file {file} cannot be looked at any more: {problem.strerror}; did its "
                "training job delete it?"
            ) from problem
        if current_stamp != stamp:
            raise changed(file)


def changed(file: str) -> CheckpointError:
    """Returns the error for a data file that was replaced after the checkpoint was opened."""
    return CheckpointError(
        f"data file {file} changed while it was read; export a checkpoint that is complete and "
        "that nothing writes to"
    )

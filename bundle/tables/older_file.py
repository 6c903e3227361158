"""The file of an older version, which takes the place of a new file of the same content."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.errors import OlderVersionUnreadable

_COMPARED_BYTES = 256 << 10
"""Bytes read at a time, into memory that stays in the core's cache."""
_NO_COPY_IN_KERNEL = {errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EXDEV}


class OlderFile:
    """A committed file that the bytes of a new file are compared with. It is only ever read.

    As long as all bytes of the new file equal those of this one, none of them needs to be written.
    """

    def __init__(self, path: Path) -> None:
        """Opens a file.

        Args:
          path: The file itself, not a symbolic link to it.

        Raises:
          OSError: The file is not there, or cannot be opened.
        """
        self._path = path
        self._file = path.open("rb", buffering=0)
        self._buffer = np.empty(_COMPARED_BYTES, np.uint8)
        self._matched: list[tuple[int, int]] = []

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return os.fstat(self._file.fileno()).st_size

    def matches(self, offset: int, data: NDArray[np.uint8]) -> bool:
        """Returns whether the file holds these bytes, and notes the range if it does.

        Args:
          offset: The position of the first byte in the file.
          data: [n] bytes of the new file.

        Raises:
          OlderVersionUnreadable: The file cannot be read.
        """
        for start in range(0, data.size, _COMPARED_BYTES):
            piece = data[start : start + _COMPARED_BYTES]
            if not np.array_equal(self._read(offset + start, piece.size), piece):
                return False
        # Neighboring ranges are joined: files mostly come in order.
        end = offset + data.size
        if self._matched and self._matched[-1][1] == offset:
            self._matched[-1] = (self._matched[-1][0], end)
        else:
            self._matched.append((offset, end))
        return True

    def copy_matched(self, target: int) -> None:
        """Writes the bytes that matched to a file, at their positions.

        Args:
          target: The descriptor of the file.

        Raises:
          OlderVersionUnreadable: The file cannot be read any more.
          OSError: The other file cannot be written.
        """
        for start, end in self._matched:
            offset = start
            while offset < end:
                offset += self._copy(target, offset, end - offset)

    def link(self, path: Path) -> None:
        """Makes a hard link to the file that is open.

        Raises:
          OSError: It cannot be linked there, or it was removed or replaced meanwhile.
        """
        # By the name: it may stand for another file by now, which this process did not compare.
        os.link(self._path, path)
        if not os.path.samestat(path.stat(), os.fstat(self._file.fileno())):
            path.unlink()
            raise FileNotFoundError(
                errno.ENOENT, "the file of the older version was replaced", str(self._path)
            )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _read(self, offset: int, count: int) -> NDArray[np.uint8]:
        """Returns the next `count` bytes, or fewer at the end of the file."""
        stored = self._buffer[:count]
        size = 0
        while size < count:
            # A read may return fewer bytes than there are.
            try:
                more = os.preadv(self._file.fileno(), [stored[size:].data], offset + size)
            except OSError as problem:
                raise self._unreadable(problem.strerror) from problem
            if not more:
                break
            size += more
        return stored[:size]

    def _copy(self, target: int, offset: int, count: int) -> int:
        """Copies at most `count` bytes, and returns how many were copied."""
        try:
            # Some file systems share the blocks, and others copy them without this process.
            copied = os.copy_file_range(self._file.fileno(), target, count, offset, offset)
        except OSError as problem:
            if problem.errno not in _NO_COPY_IN_KERNEL:
                raise
            stored = self._read(offset, min(count, _COMPARED_BYTES))
            copied = 0
            if stored.size:
                copied = os.pwrite(target, stored.data, offset)
        if not copied:
            raise self._unreadable("it was cut short while it was read")
        return copied

    def _unreadable(self, reason: str | None) -> OlderVersionUnreadable:
        return OlderVersionUnreadable(
            f"file {self._path} of an older version cannot be read: {reason}"
        )

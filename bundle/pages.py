"""Pages of mapped files: brought into memory before they are asked for, and counted; on Linux.

Called through ctypes, which gives the interpreter's lock away meanwhile: Python's own `mmap.madvise` keeps it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

PIECE_BYTES = 4 << 20
"""Brought in at once; the one behind it is asked for meanwhile."""

_POPULATE_READ = 22
"""MADV_POPULATE_READ, of Linux 5.14: reads what is not there, and maps it all."""
_STRETCHES, _STRETCH_PAGES = 32, 32
"""What is looked at of a large file to tell how much of it is in memory."""

_SYSTEM = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def bring_in(data: Bytes, start: int) -> int:
    """Reads a piece of a mapped file and maps its pages, so that no row of it is waited for.

    Args:
      data: bytes of a map.
      start: of the piece; where the last one ended.
    Returns:
      Bytes of the piece; 0 at the end. What cannot be read is left to whoever asks for it.
    """
    size = min(PIECE_BYTES, data.size - start)
    if size <= 0:
        return 0
    _advise(data, start, 2 * PIECE_BYTES, mmap.MADV_WILLNEED)  # a random map is read page by page otherwise
    if _advise(data, start, size, _POPULATE_READ) == errno.EINVAL:  # anything else it could not read: nobody asked yet
        np.bitwise_or.reduce(data[start : start + size : mmap.PAGESIZE])
    return size


def resident_bytes(data: Bytes) -> int:
    """Tells how much of a mapped file is in memory, whoever brought it there; of a large one by samples.

    The kernel tells only who may write the file, or owns it; others hear that all of it is.
    """
    pages = -(-data.size // mmap.PAGESIZE)
    if _SYSTEM is None or not pages:
        return 0
    stretches, length = (1, pages) if pages <= _STRETCHES * _STRETCH_PAGES else (_STRETCHES, _STRETCH_PAGES)
    found = np.zeros(length, np.uint8)
    there = 0
    first = data.ctypes.data - data.ctypes.data % mmap.PAGESIZE
    for number in range(stretches):
        page = number * (pages - length) // max(1, stretches - 1)
        arguments = (first + page * mmap.PAGESIZE, length * mmap.PAGESIZE, found.ctypes.data)
        if _SYSTEM.mincore(*(ctypes.c_size_t(each) for each in arguments)):
            return 0  # the map is longer than its file by now
        there += int(np.count_nonzero(found & 1))
    return min(data.size, data.size * there // (stretches * length))


def _advise(data: Bytes, start: int, size: int, advice: int) -> int:
    # Advice is for whole pages; a map ends where its file's last page does. Returns 0, or why it was not taken.
    if _SYSTEM is None:
        return errno.EINVAL
    first = data.ctypes.data + start
    begin = first - first % mmap.PAGESIZE
    end = data.ctypes.data + min(start + size, data.size)
    failed = _SYSTEM.madvise(ctypes.c_size_t(begin), ctypes.c_size_t(end - begin), ctypes.c_int(advice))
    return ctypes.get_errno() if failed else 0

"""Pages of mapped files: brought into memory before they are needed, and counted; on Linux. And
freed memory, which goes back to the system.

The system calls go through ctypes, which releases the GIL meanwhile: Python's own `mmap.madvise`
keeps it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div

Bytes = NDArray[np.uint8]

PIECE_BYTES = 4 << 20
"""The size of the piece that is brought in at once; the next one is read ahead."""

_POPULATE_READ = 22
"""MADV_POPULATE_READ, of Linux 5.14: reads what is not there, and maps it all."""
_SAMPLE_COUNT = 32
"""The number of samples by which the resident share of a large file is estimated."""
_SAMPLE_PAGES = 32
"""The number of pages of a sample."""

_MAY_MOVE = 1
"""MREMAP_MAYMOVE."""

_SYSTEM: ctypes.CDLL | None = None
if sys.platform == "linux":
    _SYSTEM = ctypes.CDLL(None, use_errno=True)
    # By default results are ints of 32 bits, which would cut the address.
    _SYSTEM.mremap.restype = ctypes.c_void_p
_FAILED = ctypes.c_void_p(-1).value


def return_freed_memory() -> None:
    """Returns to the system what the allocator keeps. glibc has a heap for each of some threads, in
    which small objects that are still in use leave megabytes free between others.
    """
    # Other allocators have no such function.
    malloc_trim = getattr(_SYSTEM, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def bring_in(data: Bytes, start: int) -> int:
    """Reads a piece of a mapped file and maps its pages, so that no row of it is waited for.

    What is not in memory yet is read in pages of 2 MiB, where the file system has such: random rows
    are then read up to twice as fast as from pages of 4 KiB, since the processor remembers few
    pages.

    Args:
      data: The bytes of a map.
      start: The start of the piece, where the last one ended.

    Returns:
      The bytes of the piece; 0 at the end. Pages that cannot be read fail when they are used.
    """
    size = min(PIECE_BYTES, data.size - start)
    if size <= 0:
        return 0
    if not _read_huge(data, start, size):
        # A random map is read page by page otherwise.
        _advise(data, start, 2 * PIECE_BYTES, mmap.MADV_WILLNEED)
    error_number = _advise(data, start, size, _POPULATE_READ)
    # EINVAL is an older kernel; any other error is left to the first use.
    if error_number in (0, errno.EINVAL):
        # One byte of each page is read: the host of a virtual machine may not hold its large pages
        # until then.
        np.bitwise_or.reduce(data[start : start + size : mmap.PAGESIZE])
    return size


def resident_bytes(data: Bytes) -> int:
    """Returns how many bytes of a mapped file are in memory, whatever brought them there; a large
    file is sampled.

    The kernel reports this only to those who may write or own the file; for others all of it
    counts.
    """
    pages = ceil_div(data.size, mmap.PAGESIZE)
    if _SYSTEM is None or not pages:
        return 0
    # A small file is one sample.
    sample_count = 1
    length = pages
    if pages > _SAMPLE_COUNT * _SAMPLE_PAGES:
        sample_count = _SAMPLE_COUNT
        length = _SAMPLE_PAGES
    states = np.zeros(length, np.uint8)
    resident_count = 0
    first = data.ctypes.data - data.ctypes.data % mmap.PAGESIZE
    for number in range(sample_count):
        # At equal distances, the last one at the end of the file.
        page = number * (pages - length) // max(1, sample_count - 1)
        begin = ctypes.c_size_t(first + page * mmap.PAGESIZE)
        size = ctypes.c_size_t(length * mmap.PAGESIZE)
        if _SYSTEM.mincore(begin, size, ctypes.c_size_t(states.ctypes.data)):
            return 0  # the map is longer than its file by now
        # Only the lowest bit of a state is defined.
        resident_count += int(np.count_nonzero(states & 1))
    return min(data.size, data.size * resident_count // (sample_count * length))


def _read_huge(data: Bytes, start: int, size: int) -> bool:
    """Reads a piece in pages of 2 MiB; returns whether the kernel did."""
    # The advice is for a second map of the same pages: it cannot be withdrawn, and a row whose page
    # was evicted must not read 2 MiB. mremap with an old size of 0 leaves the first map in place
    # and creates the second.
    if _SYSTEM is None or not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    length = ctypes.c_size_t(ceil_div(size, mmap.PAGESIZE) * mmap.PAGESIZE)
    first = data.ctypes.data + start
    begin = ctypes.c_size_t(first - first % mmap.PAGESIZE)
    address = _SYSTEM.mremap(begin, ctypes.c_size_t(0), length, ctypes.c_int(_MAY_MOVE))
    if address == _FAILED:
        return False
    second_map = ctypes.c_void_p(address)
    # The second advice reads the pages; it follows only where the first was accepted.
    has_failed = any(
        _SYSTEM.madvise(second_map, length, ctypes.c_int(advice))
        for advice in (mmap.MADV_HUGEPAGE, _POPULATE_READ)
    )
    _SYSTEM.munmap(second_map, length)
    return not has_failed


def _advise(data: Bytes, start: int, size: int, advice: int) -> int:
    """Gives the kernel advice about a piece; returns 0, or the error number if it rejects it."""
    # Advice is for whole pages; a map ends where its file's last page does.
    if _SYSTEM is None:
        return errno.EINVAL
    first = data.ctypes.data + start
    begin = first - first % mmap.PAGESIZE
    end = data.ctypes.data + min(start + size, data.size)
    failed = _SYSTEM.madvise(
        ctypes.c_size_t(begin), ctypes.c_size_t(end - begin), ctypes.c_int(advice)
    )
    if failed:
        return ctypes.get_errno()
    return 0

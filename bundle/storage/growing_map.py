"""Files that grow while they are read where they are mapped."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_MAPPED_MIN = 16 << 30
"""The minimum number of bytes that are mapped. These are addresses, of which a process has 2^47;
only what is read takes memory.
"""
_MAPPED_FACTOR = 4
"""How many times the size of a file is mapped."""

_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_C.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


def map_growing(descriptor: int) -> Bytes:
    """Maps a file, and addresses behind its end: what is appended to the file can be read there.

    Python's own maps end where a file ends, so that each append would need another map, whose pages
    are not in memory yet. To read behind the end of the file ends the process (SIGBUS).

    Args:
      descriptor: The descriptor of the open file, which may be closed afterwards.

    Returns:
      [n] uint8, n at least 4 times the size of the file, not writable. The file is mapped for as
      long as the array, or a view of it, exists.

    Raises:
      OSError: The file cannot be mapped.
    """
    size = max(_MAPPED_MIN, _MAPPED_FACTOR * os.fstat(descriptor).st_size)
    size += -size % mmap.PAGESIZE
    address = _C.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    memory = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, _C.munmap, address, size)
    mapped: Bytes = np.ctypeslib.as_array(memory)
    mapped.flags.writeable = False
    return mapped

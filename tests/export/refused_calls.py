"""Makes the kernel refuse system calls of this process, for good: a broken disk without a broken disk."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Sequence

NUMBERS = {
    "x86_64": {"write": 1, "pwrite64": 18, "fsync": 74, "rename": 82, "preadv": 295, "preadv2": 327},
    "aarch64": {"write": 64, "pwrite64": 68, "fsync": 82, "rename": 38, "preadv": 69, "preadv2": 286},
}.get(platform.machine(), {})
POSSIBLE = platform.system() == "Linux" and bool(NUMBERS)
LARGE_BYTES = 4096

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_THIRD_ARGUMENT = 16 + 2 * 8


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def refuse(calls: Sequence[str], code: str) -> None:
    """Lets calls fail with an error, e.g. EIO; `write` only where it is of LARGE_BYTES or more: messages are not."""
    program = b"".join(_refusal(name, getattr(errno, code)) for name in calls) + _line(_RETURN, 0, 0, _ALLOW)
    held = ctypes.create_string_buffer(program)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    told = _Program(len(program) // 8, ctypes.addressof(held))
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(told)):
        raise OSError(ctypes.get_errno(), "no filter of system calls")


def _refusal(call: str, code: int) -> bytes:
    refused = _line(_RETURN, 0, 0, _ERRNO | code)
    if call == "write":
        size = _line(_LOAD, 0, 0, _THIRD_ARGUMENT) + _line(_AT_LEAST, 0, 1, LARGE_BYTES)
        return _line(_LOAD, 0, 0, 0) + _line(_EQUAL, 0, 3, NUMBERS[call]) + size + refused
    return _line(_LOAD, 0, 0, 0) + _line(_EQUAL, 0, 1, NUMBERS[call]) + refused


def _line(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)

"""How LevelDB and TensorFlow write integers and checksums, and the error of bytes that no writer
would leave.

Source: TensorFlow 2.20, tensorflow/core/lib/core/coding.cc and core/lib/hash/crc32c.h.
"""

from __future__ import annotations

_MASK_DELTA = 0xA282EAD8
_VARINT_BYTES_MAX = 10


class Malformed(Exception):
    """Bytes that are not of the format that they should be of, or that contradict themselves."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most 64 bits.

    Returns:
      The value, and where the next byte lies.
    Raises:
      Malformed: the bytes end within it, or it is longer than ten bytes or 64 bits.
    """
    value = 0
    for place, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value >> 64:
                raise Malformed("a varint exceeds 64 bits")
            return value, at + place + 1
    raise Malformed("the bytes end within a varint, or it is too long")


def varint(value: int) -> bytes:
    """Returns an unsigned integer as a varint: the inverse of `read_varint`."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def unmask(masked: int) -> int:
    """Returns the crc32c that is stored in this masked form."""
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def mask(crc: int) -> int:
    """Returns a crc32c in its stored form: the inverse of `unmask`."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF

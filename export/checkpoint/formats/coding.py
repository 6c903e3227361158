"""Integers as LevelDB and TensorFlow write them, and the error of bytes that no writer leaves.

Source: TensorFlow 2.20, tensorflow/core/lib/core/coding.cc.
"""

from __future__ import annotations

_VARINT_BYTES_MAX = 10
"""The bytes of the longest varint: ten times 7 bits hold 64."""


class Malformed(Exception):
    """Bytes that do not have the expected format, or that contradict themselves."""


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most 64 bits.

    Returns:
      The value, and the position of the byte that follows it.
    Raises:
      Malformed: The bytes end within the varint, or it is longer than ten bytes or 64 bits.
    """
    value = 0
    for index, byte in enumerate(data[start : start + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            # Ten bytes hold 70 bits.
            if value >> 64:
                raise Malformed("a varint exceeds 64 bits")
            return value, start + index + 1
    raise Malformed("the bytes end within a varint, or it is too long")


def varint(value: int) -> bytes:
    """Returns an unsigned integer as a varint: the inverse of `read_varint`."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded + bytes([value]))

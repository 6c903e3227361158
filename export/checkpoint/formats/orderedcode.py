"""Keys of slices: an encoding whose byte order is the order of (name, starts, lengths).

A sliced variable has one entry under its plain name that lists its slices; each slice has an entry
of its own under the key made here.

Source: TensorFlow 2.20, tensorflow/core/lib/strings/ordered_code.cc,
tensorflow/core/util/saved_tensor_slice_util.cc.
"""

from __future__ import annotations

from collections.abc import Sequence

WHOLE_AXIS = -1
"""The length of an extent that spans its axis."""


def slice_key(name: str, extents: Sequence[tuple[int, int]]) -> bytes:
    """Returns the key of one slice.

    Args:
      name: The variable's key.
      extents: The start and the length on each axis; the length is WHOLE_AXIS where the slice was
        declared to span the axis.
    """
    # The leading 0 sorts keys of slices before the names of variables, which do not begin with it.
    key = _encode_number(0) + _encode_text(name) + _encode_number(len(extents))
    for start, length in extents:
        key += _encode_signed(start) + _encode_signed(length)
    return key


def _encode_text(text: str) -> bytes:
    # 0xff, escaped as well, is no byte of UTF-8.
    return text.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x01"


def _encode_number(number: int) -> bytes:
    # 0 has no digits: its length alone encodes it.
    digits = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([len(digits)]) + digits


def _encode_signed(number: int) -> bytes:
    """Encodes an integer that is at least WHOLE_AXIS in n bytes, which hold 7n - 1 bits. The
    leading bits state n.
    """
    if number < 64:
        return bytes([0x80 + number])
    size = number.bit_length() // 7 + 1
    header = ((1 << size) - 1) << (8 * size - size)
    return (number ^ header).to_bytes(size, "big")

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
      name: the variable's key.
      extents: start and length on each axis; length WHOLE_AXIS where the slice was declared to span
        the axis.
    """
    return (
        _rising(0)
        + _text(name)
        + _rising(len(extents))
        + b"".join(_signed(number) for pair in extents for number in pair)
    )


def _text(text: str) -> bytes:
    # 0xff, escaped as well, is no byte of UTF-8.
    return text.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x01"


def _rising(number: int) -> bytes:
    digits = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([len(digits)]) + digits


def _signed(number: int) -> bytes:
    """Encodes an integer from WHOLE_AXIS on in n bytes that hold 7n - 1 bits; the length stands in
    the leading bits.
    """
    if number < 64:
        return bytes([0x80 + number])
    size = number.bit_length() // 7 + 1
    header = ((1 << size) - 1) << (8 * size - size)
    return (number ^ header).to_bytes(size, "big")

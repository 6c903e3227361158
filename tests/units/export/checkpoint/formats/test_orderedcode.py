"""Keys of slices, by the examples of TensorFlow's ordered_code.cc: what is equal in length is held
against its bits.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from export.checkpoint.formats.orderedcode import WHOLE_AXIS, slice_key


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (WHOLE_AXIS, b"\x7f"),
        (0, b"\x80"),
        (63, b"\xbf"),
        (64, b"\xc0\x40"),  # two bytes: two ones, and 13 bits
        (8191, b"\xdf\xff"),
        (8192, b"\xe0\x20\x00"),
        ((1 << 34) + 5, b"\xfc\x04\x00\x00\x00\x05"),
    ],
)
def test_slice_key_encodes_extents_in_as_few_bytes_as_hold_them(
    number: int, encoded: bytes
) -> None:
    assert slice_key("v", [(0, number)]) == b"\x00" + b"v\x00\x01" + b"\x01\x01\x80" + encoded


def test_slice_key_escapes_the_end_of_a_name() -> None:
    assert slice_key("a\x00b", []) == b"\x00" + b"a\x00\xffb\x00\x01" + b"\x00"


@pytest.mark.parametrize(("axes", "encoded"), [(1, "0101"), (200, "01c8"), (300, "02012c")])
def test_slice_key_tells_the_number_of_axes(axes: int, encoded: str) -> None:
    key = slice_key("v", [(0, 1)] * axes)
    assert key == b"\x00v\x00\x01" + bytes.fromhex(encoded) + b"\x80\x81" * axes


def test_slice_keys_are_in_the_order_of_their_starts() -> None:
    keys = [slice_key("v", [(start, 1)]) for start in (0, 1, 63, 64, 8191, 8192, 1 << 40)]
    assert all(first < second for first, second in pairwise(keys))

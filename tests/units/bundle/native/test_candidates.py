"""Compiled code for candidates checks what it is given: nothing is read or written out of bounds.

tests/laws/test_position_sets.py compares its results with sets, and test_code_packing.py of
tests/units/runtime what it packs with faiss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bundle import native

pytestmark = pytest.mark.skipif(native.Rows is None, reason=f"not compiled: {native.MISSING}")
BITS = np.zeros(2, np.uint64)
STRIDED = np.zeros(4, np.uint64)[::2]
POSITIONS = np.arange(9, dtype=np.uint32)
CODES = np.zeros((128, 3), np.uint8)
OUT = np.zeros(96, np.uint8)


def read_only(array: Any) -> Any:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize("last", [128, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize("count", [1, 8, 9, 70])
def test_position_behind_the_end_is_rejected(count: int, last: int) -> None:
    assert native.mark
    assert native.where_marked is not None
    assert native.pack_codes
    positions = np.zeros(count, np.uint32)
    positions[-1] = last
    with pytest.raises(IndexError, match=f"position {last} lies behind the 128 bits"):
        native.mark(BITS.copy(), positions, True)
    with pytest.raises(IndexError, match=f"position {last} lies behind the 128 bits"):
        native.where_marked(BITS, positions)
    packed = np.empty(-(-count // 32) * 96, np.uint8)
    with pytest.raises(IndexError, match=f"position {last} lies behind the 128 codes"):
        native.pack_codes(CODES, positions, packed)


@pytest.mark.parametrize(
    ("bits", "positions"),
    [
        (BITS.view(np.int64), POSITIONS),
        (STRIDED, POSITIONS),
        (BITS, POSITIONS.astype(np.int64)),
        (BITS, POSITIONS[::2]),
        (BITS, POSITIONS.tolist()),
        (None, None),
    ],
)
def test_bits_and_positions_of_other_types_are_rejected(bits: Any, positions: Any) -> None:
    assert native.mark
    assert native.where_marked is not None
    for function, arguments in (
        (native.mark, (bits, positions, True)),
        (native.where_marked, (bits, positions)),
    ):
        with pytest.raises(ValueError, match="bits must be"):
            function(*arguments)


def test_bits_that_cannot_be_written_are_not_marked() -> None:
    assert native.mark
    with pytest.raises(ValueError, match="writable"):
        native.mark(read_only(BITS), POSITIONS, True)


@pytest.mark.parametrize("given", [BITS.view(np.int64), STRIDED, [1], None])
def test_what_are_no_bits_has_no_positions(given: Any) -> None:
    assert native.marked
    with pytest.raises(ValueError, match="bits must be"):
        native.marked(given)


@pytest.mark.parametrize(
    ("codes", "positions", "out"),
    [
        (CODES.view(np.int8), POSITIONS, OUT),
        (CODES[:, :2], POSITIONS, OUT[:64]),
        (CODES.ravel(), POSITIONS, OUT),
        (CODES, POSITIONS.astype(np.int64), OUT),
        (CODES, POSITIONS, OUT[:95]),
        (CODES, POSITIONS, np.zeros(192, np.uint8)),
        (CODES, POSITIONS, read_only(OUT)),
    ],
)
def test_codes_of_other_shapes_are_rejected(codes: Any, positions: Any, out: Any) -> None:
    assert native.pack_codes
    with pytest.raises(ValueError, match="codes must be"):
        native.pack_codes(codes, positions, out)

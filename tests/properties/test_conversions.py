"""Converted rows are, bit for bit, those of a cast by ml_dtypes and numpy; what they differ by is measured."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from bundle.format.dtypes import widened
from export.tables.conversions import Conversion, ErrorSums

SHAPES = st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100]))
FLOATS: dict[str, st.SearchStrategy[Any]] = {
    "any finite": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "of a half's size": st.floats(-70000, 70000, width=32),
    "ties of halves": st.integers(-(2**12), 2**12).map(lambda whole: np.float32(whole * 2.0**-26)),
    "ties of bfloat16": st.integers(-(2**10), 2**10).map(lambda whole: np.float32(1 + whole * 2.0**-9)),
    "quarters": st.integers(-508, 508).map(lambda whole: np.float32(whole / 4)),
}
ROWS = st.one_of([arrays.arrays(np.float32, SHAPES, elements=each) for each in FLOATS.values()])


def by_cast(values: NDArray[np.float32], dtype: str) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    if dtype == "bfloat16":
        return values.astype(ml_dtypes.bfloat16).view(np.uint16), None
    if dtype == "float16":
        return values.astype(np.float16), None
    scales = np.abs(values).max(axis=1, initial=0) / np.float32(127)
    scales[scales < np.float32(2.0**-126)] = 0
    whole = np.rint(np.divide(values, scales[:, None], out=np.zeros_like(values), where=scales[:, None] > 0))
    return whole.astype(np.int8), scales


def converted(values: NDArray[np.float32], dtype: str) -> tuple[NDArray[Any], NDArray[np.float32] | None, ErrorSums]:
    conversion = Conversion("t", "float32", dtype)
    (piece,) = conversion.pieces(values.view(np.uint8).reshape(len(values), -1), 0)
    return piece.stored, piece.scales, conversion.error


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@given(values=ROWS)
def test_converted_rows_have_the_bits_of_a_cast(dtype: str, values: NDArray[np.float32]) -> None:
    with np.errstate(all="ignore"):
        expected, expected_scales = by_cast(values, dtype)
        read = widened(expected, dtype, expected_scales).astype(np.float64)
    assume(np.isfinite(read).all())  # such rows are rejected

    stored, scales, error = converted(values, dtype)

    assert (stored.dtype, stored.shape) == (expected.dtype, expected.shape)
    assert stored.tobytes() == expected.tobytes()
    assert (None if scales is None else scales.tobytes()) == (
        None if expected_scales is None else expected_scales.tobytes()
    )
    wide = values.astype(np.float64)
    apart = read - wide
    lengths = np.sqrt((wide * wide).sum(axis=1))
    product = lengths * np.sqrt((read * read).sum(axis=1))
    exact = np.divide((wide * read).sum(axis=1), product, out=(lengths == 0).astype(np.float64), where=product > 0)
    assert error.rows == len(values)
    assert error.max_abs == pytest.approx(np.abs(apart).max(), rel=1e-6)
    assert error.squares == pytest.approx((apart * apart).sum(), rel=1e-5, abs=values.size * 2.0**-126)
    assert error.cosine_min == pytest.approx(exact.min(), rel=1e-5, abs=1e-6)
    assert error.cosines == pytest.approx(exact.sum(), rel=1e-5, abs=1e-6)

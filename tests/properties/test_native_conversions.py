"""Rows that compiled code converts are, bit for bit, those of numpy and ml_dtypes; what they differ by is measured."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from bundle import native
from bundle.codecs import widened

if native.converted is None:
    pytest.skip(f"rows were not compiled: {native.MISSING}", allow_module_level=True)
converted = native.converted

SHAPES = st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100]))
FLOATS: dict[str, st.SearchStrategy[Any]] = {
    "any finite": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "of a half's size": st.floats(-70000, 70000, width=32),
    "ties of halves": st.integers(-(2**12), 2**12).map(lambda whole: np.float32(whole * 2.0**-26)),
    "ties of bfloat16": st.integers(-(2**10), 2**10).map(lambda whole: np.float32(1 + whole * 2.0**-9)),
    "quarters": st.integers(-508, 508).map(lambda whole: np.float32(whole / 4)),
}
ROWS = st.one_of([arrays.arrays(np.float32, SHAPES, elements=each) for each in FLOATS.values()])


def by_numpy(values: NDArray[np.float32], dtype: str) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    if dtype == "bfloat16":
        return values.astype(ml_dtypes.bfloat16).view(np.uint16), None
    if dtype == "float16":
        return values.astype(np.float16), None
    scales = np.abs(values).max(axis=1, initial=0) / np.float32(127)
    scales[scales < np.float32(2.0**-126)] = 0
    whole = np.rint(np.divide(values, scales[:, None], out=np.zeros_like(values), where=scales[:, None] > 0))
    return whole.astype(np.int8), scales


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@given(values=ROWS)
def test_converted_rows_are_those_of_numpy(dtype: str, values: NDArray[np.float32]) -> None:
    with np.errstate(all="ignore"):
        expected, expected_scales = by_numpy(values, dtype)
        stored, scales, (largest, squares, cosine_min, cosines), odd = converted(values, dtype)
        read = widened(expected, dtype, expected_scales).astype(np.float64)
        apart = np.subtract(read, values, dtype=np.float32).astype(np.float64)
    assert (stored.dtype, stored.shape) == (expected.dtype, expected.shape)
    assert stored.tobytes() == expected.tobytes()
    assert (scales is None) == (expected_scales is None)
    if scales is not None and expected_scales is not None:
        assert scales.tobytes() == expected_scales.tobytes()
    if not np.isfinite(read).all():  # those are refused, and never told
        return
    assert largest == np.abs(apart).max(initial=0)
    wide = values.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(axis=1))
    assert set(odd) <= set(np.flatnonzero(~((lengths > 1e-14) & (lengths < 1e14)) & (lengths != 0)))
    right = np.setdiff1d(np.arange(len(values)), odd)
    wide, read, apart, lengths = wide[right], read[right], apart[right], lengths[right]
    product = lengths * np.sqrt((read * read).sum(axis=1))
    exact = np.divide((wide * read).sum(axis=1), product, out=(lengths == 0).astype(np.float64), where=product > 0)
    assert squares == pytest.approx((apart * apart).sum(), rel=1e-5, abs=values.size * 2.0**-126)
    assert cosine_min == pytest.approx(exact.min(initial=1), rel=1e-5, abs=1e-6)
    assert cosines == pytest.approx(exact.sum(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("dim", [3, 8, 20])  # of narrow rows, what is read at once holds those that follow
def test_row_that_holds_no_number_is_odd(dtype: str, dim: int) -> None:
    for odd in (np.nan, np.inf, -np.inf):
        values = np.ones((9, dim), np.float32)
        values[1, dim - 3] = odd
        assert converted(values, dtype)[3].tolist() == [1]


def test_what_cannot_be_converted_is_told() -> None:
    with pytest.raises(TypeError):
        converted(np.ones((1, 2), np.float32))  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="'int4' is not"):
        converted(np.ones((1, 2), np.float32), "int4")
    with pytest.raises(ValueError, match="depth"):
        converted(np.ones(2, np.float32), "int8")

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bundle.format.dtypes import widened


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("odd", [True, False])
def test_widened_halves_are_exact_however_many_and_whatever_they_are(times: int, odd: bool) -> None:
    bits = np.tile(np.arange(1 << 16, dtype="<u2"), times)
    halves = bits.view("<f2") if odd else bits[bits & 0x7C00 != 0x7C00].view("<f2")
    found = widened(halves.reshape(-1, 2), "float16").reshape(-1)
    np.testing.assert_array_equal(found, halves.astype(np.float64))
    assert (np.signbit(found) == np.signbit(halves)).all()


def test_widened_bfloat16_is_that_of_ml_dtypes() -> None:
    bits = np.arange(1 << 16, dtype="<u2")
    expected = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(widened(bits.reshape(-1, 4), "bfloat16").reshape(-1), expected)


def test_widened_int8_rows_are_products_with_their_scales_in_float32() -> None:
    stored = np.arange(-128, 128, dtype=np.int8).reshape(64, 4)
    scales = np.random.default_rng(0).lognormal(size=64).astype(np.float32)
    found = widened(stored, "int8", scales)
    assert found.dtype == np.float32
    exact = stored.astype(np.float64) * scales.astype(np.float64)[:, np.newaxis]
    np.testing.assert_array_equal(found, exact.astype(np.float32))

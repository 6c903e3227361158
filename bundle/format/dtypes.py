"""How rows of each dtype lie in a file, and how they become float32; never writes, never combines."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

STORED: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),  # numpy has no bfloat16; its bits are the upper half of a float32's
    "int8": np.dtype("i1"),
}
"""The numpy dtype that holds a value of each dtype of a table."""

SCALE_BYTES = 4
"""Of the float32 beside each row of int8."""


def row_bytes(dtype: str, dim: int) -> int:
    """Returns the bytes of one row of `dim` values of a table's dtype; its scale, if it has one, lies elsewhere."""
    return STORED[dtype].itemsize * dim


def widened(stored: NDArray[Any], dtype: str, scales: Vectors | None = None) -> Vectors:
    """Returns rows as float32.

    Args:
      stored: [n, dim] of STORED[dtype].
      dtype: of the table.
      scales: [n] float32 of int8 rows.
    Returns:
      [n, dim] float32: exactly the value of float32, float16 and bfloat16; of int8 the float32 product with its scale.
    """
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if scales is not None:
        product: Vectors = np.multiply(stored, scales[:, np.newaxis], dtype=np.float32)
        return product
    if dtype == "float16" and stored.size > _HALVES_CAST:
        return _widened_halves(stored)
    return stored.astype(np.float32, copy=False)


_HALVES_CAST = 4096
"""Halves up to this number are left to numpy: one call, but many take it 4 times as long, subnormal ones 40 times."""


def _widened_halves(stored: NDArray[Any]) -> Vectors:
    if np.maximum.reduce(stored.view("<u2") << np.uint16(1), axis=None) >= 0xF800:  # an infinity or NaN among them
        return stored.astype(np.float32)
    # A half's exponent and mantissa at their place in a float32, whose exponent then is 112 too small. The sign bit is
    # there already, by the cast to int32, with copies of it that are masked.
    bits = stored.view("<i2").astype(np.int32)
    bits <<= np.int32(13)
    bits &= np.int32(~0x70001FFF)
    values = bits.view(np.float32)
    values *= np.float32(2.0**112)
    return values

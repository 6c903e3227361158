"""How rows of each dtype lie in a file, how they are made of float32, and how they become float32;
never writes, never combines.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

STORED: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    # NumPy has no bfloat16; its bits are the upper half of a float32's.
    "bfloat16": np.dtype("<u2"),
    "int8": np.dtype("i1"),
}
"""The numpy dtype that holds a value of each dtype of a table."""

SCALE_BYTES = 4
"""The bytes of the float32 scale of an int8 row."""

_TINY_SCALE = np.float32(2.0**-126)
"""The minimum scale: a row whose scale would be less, a subnormal number without full precision,
becomes zeros.
"""


def row_bytes(dtype: str, dim: int) -> int:
    """Returns the bytes of one row of `dim` values of a table's dtype; its scale, if it has one,
    lies elsewhere.
    """
    return STORED[dtype].itemsize * dim


def widened(stored: NDArray[Any], dtype: str, scales: Vectors | None = None) -> Vectors:
    """Returns rows as float32.

    Args:
      stored: [n, dim] of STORED[dtype].
      dtype: The dtype of the table.
      scales: [n] float32, the scales of int8 rows.

    Returns:
      [n, dim] float32: exactly the stored value for float32, float16 and bfloat16; for int8, the
      float32 product with its scale.
    """
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if scales is not None:
        product: Vectors = np.multiply(stored, scales[:, np.newaxis], dtype=np.float32)
        return product
    return stored.astype(np.float32, copy=False)


def narrowed(values: NDArray[Any], dtype: str) -> tuple[NDArray[Any], Vectors | None]:
    """Returns rows as a table's dtype stores them; `widened` reads them.

    A value that is NaN, infinite or too large does not become a value of the dtype: the caller
    rejects it, and turns off NumPy's warnings about it.

    Args:
      values: [n, dim] float32 or float64.
      dtype: The dtype of the table.

    Returns:
      [n, dim] of STORED[dtype], rounded to the nearest value, ties to even; and [n] float32 scales
      for int8 rows, None for other dtypes. The largest value of an int8 row becomes 127 or -127.
    """
    wide = values.astype(np.float32, copy=False)
    if dtype == "int8":
        return _quantized(wide)
    if dtype != "float32" and values.dtype == np.float64:
        wide = _rounded_to_odd(wide, values)
    if dtype == "bfloat16":
        return wide.astype(ml_dtypes.bfloat16).view(STORED[dtype]), None
    if dtype == "float16":
        return _halved(wide), None
    return wide, None


def _rounded_to_odd(wide: Vectors, values: NDArray[np.float64]) -> Vectors:
    """Returns float32 which, rounded again to fewer bits, are what the values are rounded to.

    Of the two float32 beside a value, the one whose last bit is 1: it is halfway between no two
    numbers of fewer bits, and on the value's side of the middle.

    Args:
      wide: The values rounded to float32.
      values: The values.
    """
    is_moved = (wide != values) & (wide.view(np.uint32) % 2 == 0)
    ends = np.where(values > wide, np.float32(np.inf), np.float32(-np.inf))
    return np.where(is_moved, np.nextafter(wide, ends), wide)


def _quantized(values: Vectors) -> tuple[NDArray[np.int8], Vectors]:
    """Returns int8 rows and their scales; see `narrowed`."""
    # Symmetric, up to 127 and not -128, so that a value and its negative stay opposite.
    largest = np.abs(values).max(axis=1)
    scales = largest / np.float32(127)
    scales[scales < _TINY_SCALE] = 0
    stored = values / scales[:, np.newaxis]
    np.rint(stored, out=stored)
    # These rows were divided by 0.
    stored[scales == 0] = 0
    return stored.astype(np.int8), scales


def _halved(values: Vectors) -> NDArray[np.float16]:
    import pyarrow as pa

    # NumPy is 20 times slower for subnormal halves.
    halves = pa.array(values.reshape(-1)).cast(pa.float16())
    return np.asarray(halves).reshape(values.shape)

"""How rows of each dtype lie in a file, and how they become float32; never writes,
never combines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

STORED: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(
        "<u2"
    ),  # numpy has no bfloat16; its bits are the upper half of a float32's
    "int8": np.dtype("i1"),
}
"""The numpy dtype that holds a value of each dtype of a table."""

SCALE_BYTES = 4
"""Of the float32 beside each row of int8."""


def row_bytes(dtype: str, dim: int) -> int:
    """Returns the bytes of one row of `dim` values of a table's dtype; its scale, if it has one,
    lies elsewhere.
    """
    return STORED[dtype].itemsize * dim


def widened(stored: NDArray[Any], dtype: str, scales: Vectors | None = None) -> Vectors:
    """Returns rows as float32.

    Args:
      stored: [n, dim] of STORED[dtype].
      dtype: of the table.
      scales: [n] float32 of int8 rows.
    Returns:
      [n, dim] float32: exactly the value of float32, float16 and bfloat16; of int8 the float32
      product with its scale.
    """
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if scales is not None:
        product: Vectors = np.multiply(stored, scales[:, np.newaxis], dtype=np.float32)
        return product
    return stored.astype(np.float32, copy=False)

"""Whether converted rows are what the checkpoint's values should have become, by formulas of its own."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

_FLOATS: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_SLACK = 1e-4
"""What the float32 arithmetic of scales may add, of half a step."""
_TINY = 127 * 2.0**-126
"""Rows below it have no scale: they become zeros."""


def judged(
    dtype: str, trained: NDArray[Any], written: NDArray[np.uint8], scales: NDArray[np.float32] | None
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Holds converted rows to the checkpoint's.

    Args:
      dtype: of the bundle's table.
      trained: [n, dim] values of the checkpoint.
      written: [n, bytes of a row] of the bundle.
      scales: [n] of int8 rows.
    Returns:
      [n, dim]: whether a value is not the right one; and how far each lies from the checkpoint's.
    """
    exact = trained.astype(np.float64)
    if scales is None:
        return _judged_floats(exact, written.view(_FLOATS[dtype]))
    steps, scale = written.view(np.int8), scales[:, np.newaxis].astype(np.float64)
    largest = np.abs(exact).max(axis=1, keepdims=True)
    apart = np.abs((steps * scales[:, np.newaxis]).astype(np.float64) - exact)
    wrong = (apart > scale * (0.5 + _SLACK) + _TINY) | (steps == -128)
    return wrong | (np.abs(scale * 127 - largest) > largest * 1e-6 + _TINY), apart


def _judged_floats(exact: NDArray[np.float64], stored: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Tells whether neither neighbour of a stored value lies nearer, or as near with an even last bit."""
    read = stored.astype(np.float64)
    apart = np.abs(read - exact)
    bits: NDArray[Any] = stored.view(np.uint32 if stored.itemsize == 4 else np.uint16)
    odd = bits % 2 == 1
    wrong = ~np.isfinite(read)
    with np.errstate(over="ignore"):  # beyond the largest value
        for end in (-np.inf, np.inf):
            further = np.abs(np.nextafter(stored, stored.dtype.type(end)).astype(np.float64) - exact)
            wrong |= (further < apart) | ((further == apart) & odd)
    return wrong, apart

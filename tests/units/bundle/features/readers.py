"""Columns as callers send them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column


def objects(*values: Any) -> NDArray[Any]:
    """Returns an array of objects, whatever they are."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def column(
    *values: Any, offsets: list[int] | None = None, weights: list[float] | None = None
) -> Column:
    """Returns strings, or numbers, as they are sent."""
    is_text = any(isinstance(value, str) for value in values)
    return Column(
        objects(*values) if is_text else np.array(values),
        None if offsets is None else np.array(offsets),
        None if weights is None else np.array(weights, np.float32),
    )

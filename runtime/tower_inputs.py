"""A tower's inputs from activations: one array for each of them, packed features side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.fields import array_dtype
from bundle.format.towers import TowerInput

Array = NDArray[Any]


def tower_inputs(
    inputs: Sequence[TowerInput], values: Mapping[str, Array], n: int
) -> dict[str, Array]:
    """Lays out the inputs of a tower, or of a part of one.

    Args:
      inputs: the manifest's.
      values: [n, ...] by the name of the feature, or of the earlier part's output, that an input is
        made of.
      n: examples.
    Returns:
      By input, C-ordered, of its dtype; what is so already is not copied.
    """
    return {each.name: _laid_out(each, values, n) for each in inputs}


def _laid_out(one: TowerInput, values: Mapping[str, Array], n: int) -> Array:
    if one.features:
        blocks = [values[name] for name in one.features]
        flat = [
            block if block.ndim == 2 else block.reshape(n, math.prod(block.shape[1:]))
            for block in blocks
        ]
        return np.concatenate(flat, axis=1, dtype=array_dtype(one.dtype), casting="unsafe")
    shape = [-1 if size is None else size for size in one.shape[1:]]
    return np.ascontiguousarray(
        values[one.feature or one.tensor].reshape(n, *shape), array_dtype(one.dtype)
    )

"""Makes the inputs of a tower from activations: one array for each input, in which the features of
a packed input lie side by side.
"""

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
      inputs: The inputs in the manifest.
      values: [n, ...] arrays, by the name of the feature, or of the earlier part's output, that an
        input consists of.
      n: The number of examples, which have one context if an input is a row of it.

    Returns:
      The array of each input by name, C-ordered, of its dtype. Arrays that have this form already
      are not copied.
    """
    return {tower_input.name: _array_of(tower_input, values, n) for tower_input in inputs}


def _array_of(tower_input: TowerInput, values: Mapping[str, Array], n: int) -> Array:
    """Returns the array of one input; that of several features has them side by side."""
    dtype = array_dtype(tower_input.dtype)
    if tower_input.features:
        blocks = [values[name] for name in tower_input.features]
        # Not -1: without examples, NumPy could not infer the width.
        flat = [block.reshape(n, math.prod(block.shape[1:])) for block in blocks]
        return np.concatenate(flat, axis=1, dtype=dtype, casting="unsafe")
    block = values[tower_input.feature or tower_input.tensor]
    if tower_input.is_of_context:
        block = block[:1]
        n = 1
    shape = [-1 if size is None else size for size in tower_input.shape[1:]]
    return np.ascontiguousarray(block.reshape(n, *shape), dtype)

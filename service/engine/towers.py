"""Activations -> outputs: a tower's inputs laid out by name, the tower run, its outputs checked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.engine.lookup import Activations
from service.engine.steps import Steps
from service.generations.generation import LoadedTower

_ROWS_MAX = 8_192
"""Examples that a tower is run on at once; the deadline is looked at between."""


def run(tower: LoadedTower, values: Activations, n: int, steps: Steps) -> dict[str, NDArray[np.float32]]:
    """Runs a tower over n examples, at most `_ROWS_MAX` at once; outputs by name, [n, ...] float32."""
    inputs = {
        name: np.ascontiguousarray(values[feature].reshape(n, *shape), dtype)
        for name, feature, shape, dtype in tower.inputs
    }
    parts: list[dict[str, NDArray[np.float32]]] = []
    for first in range(0, n, _ROWS_MAX):
        part = slice(first, first + _ROWS_MAX)
        rows = inputs if n <= _ROWS_MAX else {name: array[part] for name, array in inputs.items()}
        with steps.phase("compute"):
            parts.append(tower.network.run(rows))
    outputs = (
        parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    )
    for name, array in outputs.items():
        finite = np.isfinite(array)
        if np.count_nonzero(finite) < finite.size:  # counting is much cheaper than all()
            raise ArithmeticError(f"output {name!r} of a tower holds NaN or an infinity")
    return outputs

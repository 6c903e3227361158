"""Activations -> outputs: a tower's inputs laid out by name, the tower run, its outputs checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.manifest import Tower
from service.engine.lookup import Activations
from service.engine.steps import Steps
from service.generations.generation import LoadedTower

_ROWS_MAX = 8_192
"""Examples that a tower is run on at once; the deadline is looked at between."""


def feature_names(tower: Tower) -> list[str]:
    """Returns the features that a tower takes, each once, in the order of its inputs."""
    return list(dict.fromkeys(tower_input.feature for tower_input in tower.inputs))


def tower_inputs(tower: Tower, values: Activations, n: int) -> dict[str, NDArray[Any]]:
    """Lays activations out as a tower's inputs: by input name, in its dtype, [n, *shape]."""
    inputs: dict[str, NDArray[Any]] = {}
    for tower_input in tower.inputs:
        array = values[tower_input.feature]
        shape = (n, *(-1 if size is None else size for size in tower_input.shape[1:]))
        inputs[tower_input.name] = np.ascontiguousarray(array.reshape(shape), np.dtype(tower_input.dtype))
    return inputs


def run(tower: LoadedTower, values: Activations, n: int, steps: Steps) -> dict[str, NDArray[np.float32]]:
    """Runs a tower over n examples, at most `_ROWS_MAX` at once; outputs by name, [n, ...] float32."""
    inputs = tower_inputs(tower.page, values, n)
    parts: list[dict[str, NDArray[np.float32]]] = []
    for first in range(0, n, _ROWS_MAX):
        with steps.phase("compute"):
            parts.append(tower.network.run({name: array[first : first + _ROWS_MAX] for name, array in inputs.items()}))
    outputs = (
        parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    )
    for name, array in outputs.items():
        if not np.isfinite(array).all():
            raise ArithmeticError(f"output {name!r} of a tower holds NaN or an infinity")
    return outputs

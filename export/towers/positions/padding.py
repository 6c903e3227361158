"""Compares divided towers with whole ones on examples whose sequences have padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.bounds import ABSOLUTE, ANOTHER_ORDER
from export.front_end.interface import TracedTower
from export.graphs.functions import fill
from export.graphs.internals import run_flat
from export.graphs.loading import tf
from export.towers.data_flow import CANDIDATE, random_values

_PADDED: tuple[Callable[[int], slice], ...] = (
    lambda _: slice(0, 0),
    lambda size: slice(0, size // 2),
    lambda size: slice(size // 2, size),
    lambda size: slice(0, size - 1),
    lambda size: slice(1, size),
    lambda size: slice(0, size),
)
"""The positions of each example that are padding, by the length of the sequence."""


def difference_on_padding(tower: TracedTower, divided: TracedTower, per: Mapping[str, int]) -> str:
    """Returns how the results of a divided tower differ from those of the whole one, a clause; "":
    they do not.

    Args:
      tower: The whole tower.
      divided: The divided one.
      per: CONTEXT, CANDIDATE or both for each input by name.
    """
    fill(tower.variables)
    feeds = tower.function.graph.inputs[: len(tower.spec.inputs)]
    arguments = []
    for seed, (spec, tensor) in enumerate(zip(tower.spec.inputs, feeds, strict=True)):
        # A candidate that is padding, of a context that is nothing but padding, sees nothing, and
        # nobody asks for its score.
        if per[spec.name] == CANDIDATE:
            values = _not_padded(tensor, seed)
        else:
            values = _padded(tensor, seed)
        arguments.append(tf.constant(values))
    expected = run_flat(tower.function, arguments)
    results = run_flat(divided.function, arguments)
    for name, tensor in expected.items():
        wanted = tensor.numpy().astype(np.float64)
        result = results[name].numpy().astype(np.float64)
        limit = ABSOLUTE + ANOTHER_ORDER * np.abs(np.nan_to_num(wanted)).max(initial=0.0)
        if not np.allclose(result, wanted, rtol=0, atol=limit, equal_nan=True):
            return (
                f"output {name!r} depends on positions that see nothing but the candidate, such as "
                "padding before the first event"
            )
    return ""


def _padded(tensor: Any, seed: int) -> NDArray[Any]:
    """Returns values for an input: numbers, whose sequences have zeros in other places each."""
    values = random_values(tensor, seed, len(_PADDED))
    if values.dtype.kind not in "fiu" or values.ndim < 2:
        return values
    for row, positions in zip(values, _PADDED, strict=True):
        row[positions(len(row))] = 0
    return values


def _not_padded(tensor: Any, seed: int) -> NDArray[Any]:
    """Returns values for an input, whose numbers are not 0."""
    values = random_values(tensor, seed, len(_PADDED))
    if values.dtype.kind in "iu":
        values[:] = 1
    return values

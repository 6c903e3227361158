"""Activations -> outputs: the parts of a tower that the outputs need, each run on as few examples as it may be."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.manifest import TowerInput
from runtime.tower_inputs import tower_inputs
from service.engine.lookup import Activations
from service.engine.steps import Steps
from service.generations.loaded_towers import LoadedPart, LoadedTower, Work

_ROWS_MAX = 8_192
"""Examples that a tower is run on at once; the deadline is looked at between."""

Array = NDArray[Any]


class Values:
    """What the parts of a tower take in one call: those of n contexts once, those of m candidates each.

    Attributes:
      contexts, candidates: how many.
    """

    def __init__(self, once: Activations, each: Activations, counts: NDArray[np.int64]) -> None:
        """Takes activations by feature, and how many candidates each context has."""
        self.contexts, self.candidates = int(counts.size), int(counts.sum())
        self._once, self._each, self._counts = once, each, counts
        self._repeated: Activations = {}

    @classmethod
    def alone(cls, values: Activations, n: int) -> Values:
        """Returns the values of n examples that are context and candidate at once."""
        found = cls({}, values, np.empty(0, np.int64))
        found.contexts = found.candidates = n
        found._once = found._each
        return found

    def add(self, part: LoadedPart, outputs: Activations) -> None:
        """Takes what a part returned, for those after it."""
        (self._once if part.page.per == "context" else self._each).update(outputs)

    def of_candidates(self, name: str) -> Array:
        """Returns an output, or an activation, for each candidate: a context's again for each of its candidates."""
        found = self._each.get(name)
        if found is None:
            found = self._repeated.get(name)
        if found is None:
            found = self._repeated[name] = self._once[name].repeat(self._counts, axis=0)
        return found

    def laid_out(self, part: LoadedPart) -> dict[str, Array]:
        """Returns the inputs of a part by name, for every example that it is run on."""
        if part.page.per == "context":
            return tower_inputs(part.page.inputs, self._once, self.contexts)
        if self._once is self._each:
            return tower_inputs(part.page.inputs, self._each, self.candidates)
        inputs: dict[str, Array] = {}
        for one in part.page.inputs:
            if self._once.keys().isdisjoint(one.features):
                alone = {name: self.of_candidates(name) for name in ((one.tensor,) if one.tensor else one.sources)}
                inputs.update(tower_inputs((one,), alone, self.candidates))
            else:
                inputs[one.name] = self._packed(one)
        return inputs

    def _packed(self, one: TowerInput) -> Array:
        """Features side by side, some of them a context's: neighbors are joined before they are repeated."""
        blocks = []
        for of_context, names in groupby(one.features, self._once.__contains__):
            values, n = (self._once, self.contexts) if of_context else (self._each, self.candidates)
            block = np.concatenate([values[name].reshape(n, -1) for name in names], axis=1)
            blocks.append(block.repeat(self._counts, axis=0) if of_context else block)
        return np.concatenate(blocks, axis=1, dtype=one.dtype, casting="unsafe")


def run(tower: LoadedTower, work: Work, values: Values, model: str, steps: Steps) -> dict[str, NDArray[np.float32]]:
    """Runs what some outputs of a tower need; returns these by name, [m, ...] float32, one for each candidate.

    Raises:
      ArithmeticError: an output holds NaN or an infinity.
    """
    for part in work.parts:
        n = values.contexts if part.page.per == "context" else values.candidates
        with steps.phase("compute"):
            inputs = values.laid_out(part)
            if n <= _ROWS_MAX:
                outputs = part.network.run(inputs)
        if n > _ROWS_MAX:
            outputs = _in_blocks(part, inputs, n, steps)
        values.add(part, outputs)
        steps.ran(model, tower.name, part.page.name, n)
    outputs = {name: values.of_candidates(name) for name in work.outputs}
    for name, array in outputs.items():
        finite = np.isfinite(array)
        if np.count_nonzero(finite) < finite.size:  # counting is much cheaper than all()
            raise ArithmeticError(f"output {name!r} of a tower holds NaN or an infinity")
    return outputs


def _in_blocks(part: LoadedPart, inputs: dict[str, Array], n: int, steps: Steps) -> dict[str, Array]:
    blocks = []
    for first in range(0, n, _ROWS_MAX):
        rows = {name: array[first : first + _ROWS_MAX] for name, array in inputs.items()}
        with steps.phase("compute"):
            blocks.append(part.network.run(rows))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}

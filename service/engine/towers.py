"""Activations -> outputs: the parts of a tower that the outputs need, each run on as few examples as it may be."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engine.lookup import Activations
from service.engine.steps import Steps
from service.generations.loaded_towers import LoadedPart, LoadedTower, Taken, Work

_ROWS_MAX = 8_192
"""Examples that a tower is run on at once; the deadline is looked at between."""

_NO_COUNTS = np.empty(0, np.int64)

Array = NDArray[Any]


class Values:
    """What the parts of a tower take in one call: those of n contexts once, those of m candidates each.

    Attributes:
      contexts, candidates: how many.
    """

    def __init__(self, once: Activations, each: Activations, counts: NDArray[np.int64], m: int) -> None:
        """Takes activations by feature, how many candidates each context has, and how many these are."""
        self.contexts, self.candidates, self._counts = len(counts), m, counts
        self._features, self._made = _Named(once, each, counts), _Named({}, {}, counts)

    @classmethod
    def alone(cls, values: Activations, n: int) -> Values:
        """Returns the values of n examples that are context and candidate at once."""
        found = cls(values, values, _NO_COUNTS, n)
        found.contexts, found._made.each = n, found._made.once
        return found

    def add(self, part: LoadedPart, outputs: Activations) -> None:
        """Takes what a part returned, for those after it."""
        (self._made.once if part.page.per == "context" else self._made.each).update(outputs)

    def output(self, name: str) -> Array:
        """Returns what a part returned, for each candidate."""
        return self._made.of_candidates(name)

    def laid_out(self, part: LoadedPart) -> dict[str, Array]:
        """Returns the inputs of a part by name, for every example that it is run on."""
        of_contexts = part.page.per == "context"
        n = self.contexts if of_contexts else self.candidates
        inputs: dict[str, Array] = {}
        for one in part.inputs:
            named = self._made if one.made else self._features
            if len(one.sources) > 1:
                inputs[one.name] = self._packed(one, of_contexts)
            else:
                array = named.once[one.sources[0]] if of_contexts else named.of_candidates(one.sources[0])
                inputs[one.name] = np.ascontiguousarray(array.reshape(n, *one.shape), one.dtype)
        return inputs

    def _packed(self, one: Taken, of_contexts: bool) -> Array:
        """Features side by side; those of a context are joined with their neighbors before they are repeated."""
        once, each = self._features.once, self._features.each
        if of_contexts or once is each:
            values, n = (once, self.contexts) if of_contexts else (each, self.candidates)
            return _side_by_side([values[name] for name in one.sources], n, one.dtype)
        blocks = []
        for repeated, names in groupby(one.sources, once.__contains__):
            values, n = (once, self.contexts) if repeated else (each, self.candidates)
            block = _side_by_side([values[name] for name in names], n, one.dtype)
            blocks.append(block.repeat(self._counts, axis=0) if repeated else block)
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)


def _side_by_side(arrays: list[Array], n: int, dtype: np.dtype[Any]) -> Array:
    flat = [each if each.ndim == 2 else each.reshape(n, math.prod(each.shape[1:])) for each in arrays]
    return np.concatenate(flat, axis=1, dtype=dtype, casting="unsafe")


class _Named:
    """Values by name, of contexts and of candidates. A context's are repeated, once, when candidates need them."""

    def __init__(self, once: Activations, each: Activations, counts: NDArray[np.int64]) -> None:
        self.once, self.each, self._counts = once, each, counts
        self._repeated: Activations = {}

    def of_candidates(self, name: str) -> Array:
        found = self.each.get(name)
        if found is None:
            found = self._repeated.get(name)
        if found is None:
            found = self._repeated[name] = self.once[name].repeat(self._counts, axis=0)
        return found


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
    outputs = {name: values.output(name) for name in work.outputs}
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

"""Runs the parts of a tower: features in their input arrays -> outputs.

contexts = ContextInputs(plan.layout, n)
lookup.write(model_version, contexts.places, ...)         # features of contexts, each once
run_contexts(tower, plan, contexts, model, execution)     # the parts that run once for each context
inputs = CandidateInputs(plan.layout, m)
lookup.write(model_version, inputs.places, ...)           # features of candidates
outputs = run(tower, plan, inputs, contexts, counts, model, execution)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.columns import Place
from service.engine.context import Execution
from service.engine.validation import check_finite
from service.models.layout import Copied, Input, Layout
from service.models.towers import LoadedPart, LoadedTower, TowerPlan

_BLOCK_BYTES = 1 << 20
"""About as much of its inputs as a part is run on at once: what it computes of more leaves the core's own cache."""
_ROWS_MIN, _ROWS_MAX = 100, 8192
"""Examples at once: with fewer, weights are read too often; after more, the deadline is checked too late."""

Array = NDArray[Any]
Counts = NDArray[np.int64]


class ContextInputs:
    """The features of n contexts, and what the parts that run once for each context return.

    Attributes:
      frames: [n, columns], one for each frame of the layout.
      places: where the features are to be looked up into.
      outputs: of the parts that were run, by name.
    """

    def __init__(self, layout: Layout, n: int) -> None:
        """Allocates the arrays."""
        self.n, self.outputs = n, dict[str, Array]()
        self.frames = [np.empty((n, frame.ends[-1]), frame.dtype) for frame in layout.frames]
        self.places = [
            Place(array, frame.names, frame.ends) for array, frame in zip(self.frames, layout.frames, strict=True)
        ]

    def rows(self, first: int, last: int) -> ContextInputs:
        """Returns some of the contexts, in the same arrays."""
        found = ContextInputs.__new__(ContextInputs)
        found.n, found.places = last - first, []
        found.frames = [array[first:last] for array in self.frames]
        found.outputs = {name: array[first:last] for name, array in self.outputs.items()}
        return found

    def input(self, one: Input) -> Array:
        """Returns an input of a part that runs once for each context."""
        if one.made:
            found = self.outputs[one.made]
        else:
            columns = [self.frames[copy.source[0]][:, _columns(copy)] for copy in one.repeated]
            found = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
        return np.ascontiguousarray(found.reshape(self.n, *one.shape), one.dtype)


class CandidateInputs:
    """The inputs of the parts that run for each of m candidates, or of m examples.

    Attributes:
      arrays: by part, the inputs that hold features, by name.
      places: where the features are to be looked up into.
    """

    def __init__(self, layout: Layout, m: int) -> None:
        """Allocates the arrays."""
        self.layout, self.m = layout, m
        self.arrays: list[dict[str, Array]] = [{} for _ in layout.parts]
        self.places: list[Place] = []
        self._repeated: list[tuple[Copied, Array]] = []
        self._shared: list[tuple[Array, Array]] = []
        flat: dict[tuple[int, ...], Array] = {}
        for part, inputs in enumerate(layout.parts):
            for number, one in enumerate(() if layout.once[part] else inputs):
                if one.made:
                    continue
                rows = flat[part, number] = np.empty((m, one.width), one.dtype)
                self.arrays[part][one.name] = rows.reshape(m, *one.shape)
                for each in one.written:
                    self.places.append(Place(rows[:, each.start : each.stop], each.names, each.ends))
                for copy in one.repeated:
                    self._repeated.append((copy, rows[:, copy.start : copy.stop]))
                for copy in one.shared:
                    self._shared.append((flat[copy.source][:, _columns(copy)], rows[:, copy.start : copy.stop]))

    def fill(self, contexts: ContextInputs, counts: Counts) -> None:
        """Copies features to the other columns that take them: those of a context, to all of its candidates."""
        for copy, target in self._repeated:
            source = contexts.frames[copy.source[0]][:, _columns(copy)]
            # One context is written to all rows by numpy itself; of many, copies are made first.
            target[...] = source if contexts.n == 1 else source.repeat(counts, axis=0)
        for source, target in self._shared:
            target[...] = source


def run_contexts(
    tower: LoadedTower, plan: TowerPlan, contexts: ContextInputs, model: str, execution: Execution
) -> None:
    """Runs the parts that run once for each context; adds their outputs to `contexts`."""
    for number, part in enumerate(plan.parts):
        if plan.layout.once[number]:
            inputs = {one.name: contexts.input(one) for one in plan.layout.parts[number]}
            contexts.outputs |= _run(part, inputs, contexts.n, plan.layout.row_bytes[number], execution)
            execution.tower_part(model, tower.name, part.entry.name, contexts.n)


def run(
    tower: LoadedTower,
    plan: TowerPlan,
    candidates: CandidateInputs,
    contexts: ContextInputs,
    counts: Counts,
    model: str,
    execution: Execution,
) -> dict[str, NDArray[np.float32]]:
    """Runs the other parts; returns the outputs of the plan by name, [m, ...] float32.

    Args:
      candidates, contexts: with all features looked up, and the parts of contexts run.
      counts: [n] candidates of each context.
    Raises:
      NotFinite: an output holds NaN or an infinity.
    """
    candidates.fill(contexts, counts)
    layout, m, outputs = candidates.layout, candidates.m, dict[str, Array]()

    def output(name: str) -> Array:
        found = outputs.get(name)
        return contexts.outputs[name].repeat(counts, axis=0) if found is None else found

    for number, part in enumerate(plan.parts):
        if not layout.once[number]:
            inputs = candidates.arrays[number]
            for one in layout.parts[number]:
                if one.made:
                    inputs[one.name] = np.ascontiguousarray(output(one.made).reshape(m, *one.shape), one.dtype)
            outputs |= _run(part, inputs, m, layout.row_bytes[number], execution)
            execution.tower_part(model, tower.name, part.entry.name, m)
    found = {name: output(name) for name in plan.outputs}
    for name, array in found.items():
        check_finite(array, f"output {name!r} of tower {tower.name!r}")
    return found


def _run(
    part: LoadedPart, inputs: Mapping[str, Array], n: int, row_bytes: int, execution: Execution
) -> dict[str, Array]:
    """Runs a part on n examples, in blocks of equal size: for another size LiteRT plans its memory anew."""
    execution.check()
    block = min(max(_ROWS_MIN, _BLOCK_BYTES // (row_bytes or 1)), _ROWS_MAX)
    if n <= block:
        return part.network.run(inputs)
    blocks = []
    block = math.ceil(n / math.ceil(n / block))
    for first in range(0, n, block):
        execution.check()
        blocks.append(part.network.run({name: array[first : first + block] for name, array in inputs.items()}))
    return {name: np.concatenate([each[name] for each in blocks]) for name in blocks[0]}


def _columns(copy: Copied) -> slice:
    """Returns the columns of the source."""
    return slice(copy.first, copy.first + copy.stop - copy.start)

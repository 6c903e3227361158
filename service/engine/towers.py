"""Runs the parts of a tower: features in their input arrays -> outputs; and the Embed call.

contexts = Contexts.of(plan.layout, offsets)
lookup.write(model_version, contexts.frames, ...)      # features of contexts, each once
run_contexts(tower, plan, contexts, execution)         # the parts that run once for each context
inputs = Inputs(plan.layout, m)
lookup.write(model_version, inputs.blocks, ...)        # features of candidates
outputs = run(tower, plan, inputs, execution, contexts)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import NotSent
from bundle.features.columns import OutputBlock
from service.config import ServiceSettings
from service.contract.messages import Columns, EmbeddingRequest, EmbeddingResult, Offsets, Vectors
from service.engine import lookup
from service.engine.execution import Execution
from service.engine.validation import (
    NotFinite,
    check_finite,
    check_names,
    check_rows,
    check_values,
    choose_tower,
)
from service.versions.input_layout import Input, Layout, Span
from service.versions.version import LoadedPart, LoadedTower, ModelVersion, TowerPlan

_BLOCK_BYTES = 1 << 20
"""Approximate size of the inputs on which a part is run at once, in bytes: the results for more of
them would leave the core's own cache.
"""
_ROWS_MIN = 100
"""Minimum number of examples in a block: with fewer, the weights are read too often."""
_ROWS_MAX = 8192
"""Maximum number of examples in a block: the deadline is checked between blocks."""

Array = NDArray[Any]

_NO_ARRAYS: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True)
class Contexts:
    """The features of n contexts, and the outputs of the parts that run once for each context.

    Attributes:
      offsets: [n + 1]; context i owns the candidates offsets[i]:offsets[i + 1].
      frames: The blocks of the layout that the features are to be looked up into.
      outputs: The outputs of the parts that were run, by name.
    """

    offsets: Offsets
    frames: list[OutputBlock]
    outputs: dict[str, Array]

    @classmethod
    def of(cls, layout: Layout, offsets: Offsets) -> Contexts:
        """Allocates the arrays."""
        shapes = [(frame, (offsets.size - 1, frame.ends[-1])) for frame in layout.frames]
        return cls(
            offsets,
            [
                OutputBlock(np.empty(shape, frame.dtype), frame.names, frame.ends)
                for frame, shape in shapes
            ],
            {},
        )

    def rows(self, start: int, stop: int) -> Contexts:
        """Returns the contexts of the candidates from `start` to `stop`, in the same arrays."""
        # Contexts without a candidate in the range are left out at both ends.
        first, last = self.offsets.searchsorted([start + 1, stop]) - (1, 0)
        frames = [frame._replace(array=frame.array[first:last]) for frame in self.frames]
        outputs = {name: array[first:last] for name, array in self.outputs.items()}
        return Contexts(self.offsets[first : last + 1].clip(start, stop), frames, outputs)

    def columns(self, span: Span) -> Array:
        """Returns the columns of a frame that are copied."""
        frame = self.frames[span.source[0]]
        frame_columns: Array = frame.array[:, span.first : span.first + span.ends[-1]]
        return frame_columns

    def input(self, tensor: Input) -> Array:
        """Returns an input of a part that takes a row of each context."""
        if tensor.made:
            joined = self.outputs[tensor.made]
        else:
            columns = [*map(self.columns, tensor.repeated)]
            joined = columns[0]
            if len(columns) > 1:
                joined = np.concatenate(columns, axis=1)
        shaped = joined.reshape(self.offsets.size - 1, *tensor.shape)
        return np.ascontiguousarray(shaped, tensor.dtype)

    def repeated(self, array: Array) -> Array:
        """Returns the row of each candidate's context."""
        return array.repeat(self.offsets[1:] - self.offsets[:-1], axis=0)


_ALONE = Contexts(np.zeros(1, np.int64), [], {})


class Inputs:
    """The inputs of the parts that run for each of m candidates, or of m examples.

    Attributes:
      layout: The layout.
      m: The number of candidates, or examples.
      arrays: The inputs that hold features, by name, of each part.
      blocks: The blocks that the features are to be looked up into.
    """

    def __init__(self, layout: Layout, m: int) -> None:
        """Allocates the arrays."""
        self.layout = layout
        self.m = m
        self.arrays: list[dict[str, Array]] = [{} for _ in layout.parts]
        self.blocks: list[OutputBlock] = []
        self._repeated: list[tuple[Span, Array]] = []
        self._shared: list[tuple[Array, Array]] = []
        rows_of_input: dict[tuple[int, ...], Array] = {}
        for part, inputs in enumerate(layout.parts):
            if layout.once[part]:
                continue  # `run_contexts` makes its inputs
            for number, tensor in enumerate(inputs):
                if tensor.made:
                    continue  # another part computes it
                if tensor.is_of_context and tensor.repeated:
                    continue  # its rows are those of the contexts
                rows = rows_of_input[part, number] = np.empty((m, tensor.width), tensor.dtype)
                # Features are written side by side into rows, which share memory with the tensor.
                self.arrays[part][tensor.name] = rows
                if tensor.shape != (tensor.width,):
                    self.arrays[part][tensor.name] = rows.reshape(m, *tensor.shape)
                for span in tensor.written:
                    self.blocks.append(
                        OutputBlock(rows[:, span.start : span.stop], span.names, span.ends)
                    )
                for span in tensor.repeated:
                    self._repeated.append((span, rows[:, span.start : span.stop]))
                for span in tensor.shared:
                    # A source stands before what shares it, so that its rows exist already.
                    source_rows = rows_of_input[span.source]
                    source = source_rows[:, span.first : span.first + span.ends[-1]]
                    self._shared.append((source, rows[:, span.start : span.stop]))

    def fill(self, contexts: Contexts) -> None:
        """Copies features to the other columns that take them: those of a context, to all of its
        candidates.
        """
        for span, target in self._repeated:
            source = contexts.columns(span)
            # One context is written to all rows by numpy itself; of many, copies are made first.
            if len(source) != 1:
                source = contexts.repeated(source)
            target[...] = source
        for source, target in self._shared:
            target[...] = source


async def embed(
    model_version: ModelVersion,
    request: EmbeddingRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> EmbeddingResult:
    """Computes the tower's result for n examples, [n, dim] float32.

    Raises:
      InvalidArgument, TooLarge, NotFound: See service/errors.py.
      FeatureError: A column does not fit its feature.
    """
    name, tower = choose_tower(model_version, request.tower)
    check_names(request.features, tower.inputs, "features", "a feature", f"tower {name!r}")
    check_values(settings, request.features.values())
    n = lookup.count_queries(model_version, request.features, None, settings, execution)
    check_rows(execution.largest(n), tower.result_dim, "features", settings)
    execution.count_examples(n)
    features = lookup.fit(model_version, request.features, n, execution)
    try:
        vectors = await result(model_version, tower, features, n, execution)
    except NotSent as problem:
        lookup.name_all_not_sent(problem, model_version, features=(tower.inputs, features))
        raise
    return EmbeddingResult(model_version.model, model_version.version, vectors)


async def result(
    model_version: ModelVersion, tower: LoadedTower, columns: Columns, n: int, execution: Execution
) -> Vectors:
    """Runs a tower on the features of n examples; returns its result, [n, dim] float32.

    Raises:
      RowNotFinite: The result is not finite because of a row.
      NotFinite: The result is not finite.
    """
    # Parts that give other outputs alone are not run.
    plan = tower.plan(frozenset([tower.entry.result]))
    inputs = Inputs(plan.layout_alone, n)
    fetched = None
    execution.begin("lookup")
    if model_version.shards is not None:
        fetched = await lookup.fetch(model_version, [(inputs.blocks, columns, n)], execution)
    lookup.write(model_version, inputs.blocks, columns, n, execution, fetched)
    execution.begin("compute")
    outputs = run(tower, plan, inputs, execution)
    try:
        check_outputs(tower, outputs)
    except NotFinite:
        # Only after a failure: to check all rows that were read would cost each request.
        await lookup.check_rows_finite(model_version, inputs.blocks, columns, n, execution)
        raise
    return outputs[tower.entry.result].reshape(n, -1)


def run_contexts(
    tower: LoadedTower,
    plan: TowerPlan,
    contexts: Contexts,
    execution: Execution,
    event_counts: NDArray[np.int64],
) -> None:
    """Runs the parts that run once for each context; adds their outputs to `contexts`.

    Args:
      tower: The tower.
      plan: The parts.
      contexts: The contexts, whose features are looked up.
      execution: The batch of the request.
      event_counts: [n] the number of events of each history, if states are stored.
    """
    n = contexts.offsets.size - 1
    states = plan.states
    for number, part in enumerate(plan.parts):
        if not plan.layout.once[number]:
            continue
        inputs = {tensor.name: contexts.input(tensor) for tensor in plan.layout.parts[number]}
        row_bytes = plan.layout.row_bytes[number]

        def compute(
            missing: Mapping[str, Array], count: int, part: LoadedPart = part, size: int = row_bytes
        ) -> dict[str, Array]:
            return _run(tower, part, missing, count, size, execution)

        # Later parts may read these outputs, so that the order of the parts matters.
        if states is None or part.entry.name != states.extension.of:
            contexts.outputs.update(compute(inputs, n))
            continue
        outputs, outcomes = states.outputs(inputs, event_counts, compute)
        contexts.outputs.update(outputs)
        for outcome, count in outcomes.items():
            execution.count("context_states", count, tower.manifest.model, tower.name, outcome)


def run(
    tower: LoadedTower,
    plan: TowerPlan,
    inputs: Inputs,
    execution: Execution,
    contexts: Contexts = _ALONE,
) -> dict[str, NDArray[np.float32]]:
    """Runs the other parts; returns the outputs of the plan by name, [m, ...] float32, which may
    hold NaN and infinities.

    Args:
      tower: The tower.
      plan: The parts that give the outputs.
      inputs, contexts: The arrays, after all features were looked up, and after the parts of
        contexts were run.
      execution: The batch of the request.
    """
    inputs.fill(contexts)
    layout = inputs.layout
    m = inputs.m
    outputs = dict[str, Array]()

    def output(name: str) -> Array:
        array = outputs.get(name)
        if array is None:
            # The output is that of a part that runs once for each context.
            array = contexts.repeated(contexts.outputs[name])
        return array

    for number, part in enumerate(plan.parts):
        if layout.once[number]:
            continue
        arrays = inputs.arrays[number]
        rows = {}
        for tensor in layout.parts[number]:
            if tensor.is_of_context and (tensor.repeated or tensor.made in contexts.outputs):
                rows[tensor.name] = contexts.input(tensor)
            elif tensor.made:
                shaped = output(tensor.made).reshape(m, *tensor.shape)
                arrays[tensor.name] = np.ascontiguousarray(shaped, tensor.dtype)
            if tensor.is_of_context and tensor.name not in rows:
                rows[tensor.name] = arrays.pop(tensor.name)
        row_bytes = layout.row_bytes[number]
        if rows:
            outputs |= _run_by_context(tower, part, arrays, rows, contexts, row_bytes, execution)
        else:
            outputs |= _run(tower, part, arrays, m, row_bytes, execution)
    return {name: output(name) for name in plan.outputs}


def check_outputs(tower: LoadedTower, outputs: Mapping[str, Array]) -> None:
    """Raises NotFinite if an output of a tower holds NaN or an infinity."""
    for name, array in outputs.items():
        check_finite(array, f"output {name!r} of tower {tower.name!r}")


def _run_by_context(
    tower: LoadedTower,
    part: LoadedPart,
    inputs: Mapping[str, Array],
    rows: Mapping[str, Array],
    contexts: Contexts,
    row_bytes: int,
    execution: Execution,
) -> dict[str, Array]:
    """Runs a part for the candidates of one context after the other.

    Args:
      tower, part: The tower and the part.
      inputs: [m, ...] the inputs of m candidates.
      rows: [n, ...] the inputs of n contexts.
      contexts: The contexts; without any, each candidate is one.
      row_bytes: The size of the inputs of a candidate.
      execution: The batch of the request.
    """
    offsets = contexts.offsets
    if contexts is _ALONE:
        offsets = np.arange(len(next(iter(rows.values()))) + 1)
    results = []
    for number, (first, last) in enumerate(pairwise(offsets.tolist())):
        if first == last:
            continue
        execution.check()
        of_context = {name: array[number : number + 1] for name, array in rows.items()}
        of_candidates = {name: array[first:last] for name, array in inputs.items()}
        count = last - first
        results.append(_run(tower, part, of_candidates, count, row_bytes, execution, of_context))
    return _joined(results)


def _run(
    tower: LoadedTower,
    part: LoadedPart,
    inputs: Mapping[str, Array],
    n: int,
    row_bytes: int,
    execution: Execution,
    of_context: Mapping[str, Array] = _NO_ARRAYS,
) -> dict[str, Array]:
    """Runs a part on n examples, in blocks of equal size: for another size LiteRT plans its memory
    anew. `of_context`: the inputs that are the same for all.
    """
    block = min(max(_ROWS_MIN, _BLOCK_BYTES // (row_bytes or 1)), _ROWS_MAX)
    block = math.ceil(n / math.ceil(n / block))
    blocks = []
    for first in range(0, n, block):
        if first:
            execution.check()
        block_inputs = inputs
        if block < n:
            block_inputs = {name: array[first : first + block] for name, array in inputs.items()}
        blocks.append(part.network.run({**block_inputs, **of_context}))
    execution.count("tower_examples", n, tower.manifest.model, tower.name, part.entry.name)
    return _joined(blocks)


def _joined(blocks: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Returns the outputs of several blocks of examples one behind the other."""
    if len(blocks) == 1:
        return blocks[0]
    return {name: np.concatenate([outputs[name] for outputs in blocks]) for name in blocks[0]}

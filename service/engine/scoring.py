"""Contexts and candidates -> scores: the features of a context are looked up once and repeated for its candidates.

Many candidates are divided over the idle compute threads. Rows of tables and of compiled towers do not depend on each
other, so that scores have the same bits either way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bundle.columns import Column, checked_offsets, repeated
from bundle.errors import FeatureError
from service.engine import lookup, towers
from service.engine.context import Execution
from service.engine.requests import Offsets
from service.models.towers import LoadedTower, TowerPlan
from service.models.version import LoadedStore, ModelVersion

Columns = Mapping[str, Column]
Scores = NDArray[np.float32]

_RANGE_MIN = 512
"""Candidates of a range, at least: to divide a request takes about 0.3 ms, as long as a small tower computes these."""


@dataclass(frozen=True)
class Candidates:
    """m candidates; context i owns offsets[i]:offsets[i + 1]. Features as sent, the rest from the store by position."""

    offsets: Offsets
    sent: Columns
    corpus: LoadedStore | None = None
    positions: NDArray[np.int64] | None = None


def score(
    model_version: ModelVersion,
    tower: LoadedTower,
    plan: TowerPlan,
    context: Columns,
    candidates: Candidates,
    execution: Execution,
) -> dict[str, Scores]:
    """Computes outputs of a ranking tower for contexts and candidates; by name, [m] float32 each.

    Raises:
      FeatureError: a column does not fit its feature.
      NotFinite: an output holds NaN or an infinity.
    """
    offsets, m = candidates.offsets, int(candidates.offsets[-1])
    contexts = towers.ContextInputs(plan.layout, offsets.size - 1)
    with execution.phase("lookup"):
        lookup.write(model_version, contexts.places, context, contexts.n, execution)
    if m == 0:
        return {name: np.empty(0, np.float32) for name in plan.outputs}
    if any(plan.layout.once):
        with execution.phase("compute"):
            towers.run_contexts(tower, plan, contexts, model_version.model, execution)
    columns, counts = candidates.sent, offsets[1:] - offsets[:-1]
    if plan.crossed:  # what features of candidates read of their contexts
        sent = [name for name in plan.crossed if name in context]
        columns = {**columns, **{name: repeated(name, context[name], counts) for name in sent}}
    whole = _Range(0, m, columns, candidates.positions, contexts, counts)
    count = min(execution.idle_threads + 1, m // _RANGE_MIN)
    if count > 1 and all(part.form.kind == "litert" for part in plan.parts):
        try:
            return _compute(model_version, tower, plan, candidates.corpus, _divide(whole, offsets, count), execution)
        except FeatureError:  # computed as a whole, it names the right example
            pass
    return _compute(model_version, tower, plan, candidates.corpus, [whole], execution)


@dataclass(frozen=True)
class _Range:
    """Candidates from `start` to `stop`, and the contexts that they belong to; counts[i] to the i-th of these."""

    start: int
    stop: int
    columns: Columns
    positions: NDArray[np.int64] | None
    contexts: towers.ContextInputs
    counts: NDArray[np.int64]


def _compute(
    model_version: ModelVersion,
    tower: LoadedTower,
    plan: TowerPlan,
    corpus: LoadedStore | None,
    ranges: Sequence[_Range],
    execution: Execution,
) -> dict[str, Scores]:
    """Looks up and scores ranges of candidates, on idle threads too; several count as `compute`, lookups included."""
    scores = {name: np.empty(ranges[-1].stop, np.float32) for name in plan.outputs}

    def look_up(each: _Range) -> towers.CandidateInputs:
        inputs, columns = towers.CandidateInputs(plan.layout, each.stop - each.start), each.columns
        if corpus is not None and each.positions is not None:
            stored = set(corpus.entry.features).difference(columns)
            names = [name for name in plan.inputs["candidate"] if name in stored]
            columns = {**columns, **corpus.store.features(each.positions, names)}
        lookup.write(model_version, inputs.places, columns, inputs.m, execution)
        return inputs

    def run(each: _Range, inputs: towers.CandidateInputs) -> None:
        outputs = towers.run(tower, plan, inputs, each.contexts, each.counts, model_version.model, execution)
        for name, array in outputs.items():
            scores[name][each.start : each.stop] = array.reshape(inputs.m)

    if len(ranges) > 1:
        with execution.phase("compute"):
            execution.parallel(len(ranges), lambda number: run(ranges[number], look_up(ranges[number])))
    else:
        with execution.phase("lookup"):
            inputs = look_up(ranges[0])
        with execution.phase("compute"):
            run(ranges[0], inputs)
    return scores


def _divide(whole: _Range, offsets: Offsets, count: int) -> list[_Range]:
    """Returns as many ranges of equal size.

    Raises:
      FeatureError: a column cannot be divided.
    """
    m, positions = whole.stop, whole.positions
    for name, column in whole.columns.items():
        checked_offsets(name, column, m)
        if column.weights is not None and column.weights.shape != column.values.shape:
            raise FeatureError(name, f"{column.weights.size} weights for {column.values.size} values")
    ranges = []
    for start, stop in pairwise(m * number // count for number in range(count + 1)):
        first, last = int(offsets.searchsorted(start, "right")) - 1, int(offsets.searchsorted(stop, "left"))
        ranges.append(
            _Range(
                start,
                stop,
                {name: _rows(column, m, start, stop) for name, column in whole.columns.items()},
                None if positions is None else positions[start:stop],
                whole.contexts.rows(first, last),
                np.diff(offsets[first : last + 1].clip(start, stop)),
            )
        )
    return ranges


def _rows(column: Column, m: int, start: int, stop: int) -> Column:
    """Returns the examples from `start` to `stop` of a column of m."""
    values, offsets, weights = column
    if offsets is None:
        each = values.size // m
        first, last = start * each, stop * each
    else:
        first, last = int(offsets[start]), int(offsets[stop])
        offsets = offsets[start : stop + 1] - first
    return Column(values[first:last], offsets, None if weights is None else weights[first:last])

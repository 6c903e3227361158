"""Contexts and candidates -> scores: the features of a context are looked up once and repeated for
its candidates.

Many candidates are divided over the idle compute threads. Rows of tables and of compiled towers do
not depend on each other, so that scores have the same bits either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.columns import Column, checked_offsets, repeated
from bundle.features.sources import Fetched
from bundle.tables.offsets import lengths_of
from service.engine import towers
from service.engine.calls import Columns, Offsets
from service.engine.context import Execution
from service.engine.features import lookup
from service.versions.loaded_towers import LoadedTower, TowerPlan
from service.versions.version import LoadedStore, ModelVersion

Scores = NDArray[np.float32]

_RANGE_MIN = 512
"""Candidates of a range, at least: to divide a request takes about 0.3 ms, as long as a small tower
computes these.
"""


@dataclass(frozen=True)
class Candidates:
    """m candidates; context i owns offsets[i]:offsets[i + 1]. Features as sent, the rest from the
    store by position.
    """

    offsets: Offsets
    sent: Columns
    corpus: LoadedStore | None = None
    positions: NDArray[np.int64] | None = None

    def columns(self, names: Iterable[str], start: int, stop: int) -> Columns:
        """Returns the features of the candidates from `start` to `stop`; of `names`, those that are
        stored too.
        """
        m = int(self.offsets[-1])
        sent = self.sent
        if stop - start < m:
            sent = {name: _rows(column, m, start, stop) for name, column in sent.items()}
        if self.corpus is None or self.positions is None:
            return sent
        held = set(self.corpus.entry.features).difference(sent)
        wanted = [name for name in names if name in held]
        return {**sent, **self.corpus.store.features(self.positions[start:stop], wanted)}


async def score(
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
    offsets = candidates.offsets
    m = int(candidates.offsets[-1])
    n = offsets.size - 1
    contexts = towers.Contexts.of(plan.layout, offsets)
    # What features of candidates read of their contexts.
    crossed = [name for name in plan.crossed if name in context]
    if crossed:
        copies = {name: repeated(name, context[name], lengths_of(offsets)) for name in crossed}
        candidates = replace(candidates, sent={**candidates.sent, **copies})
    read = plan.inputs["candidate"]
    fetched = None
    execution.begin("lookup")
    if model_version.shards is not None:
        candidates = Candidates(offsets, candidates.columns(read, 0, m))
        fetched = await _fetch(model_version, plan, contexts, context, candidates, execution)
    lookup.write(model_version, contexts.frames, context, n, execution, fetched)
    scores = {name: np.empty(m, np.float32) for name in plan.outputs}
    if m == 0:
        return scores
    if any(plan.layout.once):
        execution.begin("compute")
        towers.run_contexts(tower, plan, contexts, execution)

    def look_up(start: int, stop: int) -> towers.Inputs:
        inputs = towers.Inputs(plan.layout, stop - start)
        columns = candidates.columns(read, start, stop)
        lookup.write(model_version, inputs.places, columns, inputs.m, execution, fetched)
        return inputs

    def run(start: int, stop: int, inputs: towers.Inputs) -> None:
        own = contexts if inputs.m == m else contexts.rows(start, stop)
        for name, array in towers.run(tower, plan, inputs, execution, own).items():
            scores[name][start:stop] = array.reshape(inputs.m)

    count = min(execution.idle_threads + 1, m // _RANGE_MIN)
    if count > 1 and all(part.form.kind == "litert" for part in plan.parts):
        ranges = list(pairwise(m * number // count for number in range(count + 1)))
        try:
            _check_divisible(candidates.sent, m)
            execution.begin("compute")  # lookups included
            execution.parallel(count, lambda number: run(*ranges[number], look_up(*ranges[number])))
            return scores
        except FeatureError:  # computed as a whole, it names the right example
            pass
    execution.begin("lookup")
    inputs = look_up(0, m)
    execution.begin("compute")
    run(0, m, inputs)
    return scores


async def _fetch(
    model_version: ModelVersion,
    plan: TowerPlan,
    contexts: towers.Contexts,
    context: Columns,
    candidates: Candidates,
    execution: Execution,
) -> Fetched:
    """Fetches the remote rows of contexts and candidates, in one call of each shard."""
    offsets = candidates.offsets
    m = int(offsets[-1])
    groups = [(contexts.frames, context, offsets.size - 1)]
    if m:
        groups.append((towers.Inputs(plan.layout, 0).places, candidates.sent, m))
    return await lookup.fetch(model_version, groups, execution)


def _check_divisible(columns: Columns, m: int) -> None:
    """Raises FeatureError if a column of m candidates cannot be divided."""
    for name, column in columns.items():
        checked_offsets(name, column, m)
        if column.weights is not None and column.weights.shape != column.values.shape:
            raise FeatureError(
                name, f"{column.weights.size} weights for {column.values.size} values"
            )


def _rows(column: Column, m: int, start: int, stop: int) -> Column:
    """Returns the examples from `start` to `stop` of a column of m."""
    values, offsets, weights = column
    if offsets is None:
        each = values.size // m
        first = start * each
        last = stop * each
    else:
        first = int(offsets[start])
        last = int(offsets[stop])
        offsets = offsets[start : stop + 1] - first
    return Column(values[first:last], offsets, None if weights is None else weights[first:last])

"""Synthetic requests that must succeed before a model version is served, computed as real ones
are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bundle.errors import Misfit, RowUnavailable
from runtime.errors import ComputationFailed
from service.config import ServiceSettings
from service.contract.messages import (
    EmbeddingRequest,
    RankingRequest,
    RecommendationRequest,
    RetrievalRequest,
    Target,
)
from service.engine import towers
from service.engine.computation import Computation, completed
from service.engine.examples import example_columns
from service.engine.execution import Execution
from service.engine.ranking import rank
from service.engine.retrieval import pipeline
from service.engine.validation import NotFinite
from service.errors import InvalidArgument, RowNotFinite
from service.versions.version import LoadedTower, ModelVersion, ServedIndex

_EXAMPLES = (1, 64)
"""Examples of each run of a tower: one alone, and enough to grow every buffer once."""
_EXACT_BYTES_MAX = 4 << 20
"""Of vectors that are all searched exactly: more would have to be read before a version is served.
"""

_NOT_COMPUTED = (
    ComputationFailed,
    InvalidArgument,
    Misfit,
    NotFinite,
    RowNotFinite,
    RowUnavailable,
)
"""What models and formulas may do with synthetic values, which callers would not send: an operation
may reject each of them. The exporter has compared every tower on examples that the model takes.
"""

_Compute = Callable[[ModelVersion, Any, ServiceSettings, Execution], Computation[object]]


def run(
    model_version: ModelVersion, settings: ServiceSettings, throttle: Callable[[], object]
) -> None:
    """Runs every tower, reads every table and store, searches every index, and computes one request
    of every call.

    Of large tables and indexes it reads few pages, so that its duration does not depend on their
    size.

    Args:
      model_version: The version.
      settings: The settings of the service.
      throttle: Pauses the load; called after each computation.
    Raises:
      ServiceError, BundleError: A request fails.
      Exception: An error of a tower or an index.
    """
    execution = Execution("warm_up")
    for table in model_version.tables.values():
        table.gather(np.array([0, table.rows - 1], np.int64))
        throttle()
    for tower in model_version.towers.values():
        _run_tower(tower, execution, throttle)
    for store in model_version.contexts.values():
        first_id = store.store.ids(np.zeros(1, np.int64))
        store.store.features(store.store.positions(first_id), store.entry.features)
        throttle()
    for name, index in model_version.indexes.items():
        for search in _searches(name, index):
            with contextlib.suppress(NotFinite):
                completed(pipeline.select(model_version, search, settings, execution))
            throttle()
    for compute, request in _requests(model_version):
        with contextlib.suppress(*_NOT_COMPUTED):
            completed(compute(model_version, request, settings, execution))
        throttle()


def _run_tower(tower: LoadedTower, execution: Execution, throttle: Callable[[], object]) -> None:
    """Runs a tower on zeros, for one example and for several."""
    plan = tower.plan(frozenset(output.name for output in tower.entry.outputs))
    for n in _EXAMPLES:
        inputs = towers.Inputs(plan.layout_alone, n)
        for block in inputs.blocks:
            zero: Any = 0
            if block.array.dtype == object:
                zero = ""
            block.array[...] = zero
        with contextlib.suppress(*_NOT_COMPUTED):
            towers.run(tower, plan, inputs, execution)[tower.entry.result].reshape(n, -1)
        throttle()


def _searches(name: str, index: ServedIndex) -> Iterator[RetrievalRequest]:
    """Yields searches for the candidate nearest to the first one of an index."""
    first_id = index.corpus.store.ids(np.zeros(1, np.int64))
    attributes = tuple(index.corpus.entry.attributes)
    search = RetrievalRequest(Target(), k=1, ids=first_id, index=name, attributes=attributes)
    yield search
    if index.here is not None and index.here.vectors.nbytes <= _EXACT_BYTES_MAX:
        yield replace(search, exact=True)


def _requests(model_version: ModelVersion) -> Iterator[tuple[_Compute, Any]]:
    """Yields requests with synthetic features for each tower and index, and what computes them."""
    manifest = model_version.manifest
    for name, tower in model_version.towers.items():
        columns = example_columns(model_version, tower.inputs)
        yield towers.embed, EmbeddingRequest(Target(), name, columns)
        if tower.entry.role != "ranking":
            continue
        context = tower.by_role["context"]
        candidate = tower.by_role["candidate"]
        context_columns = example_columns(model_version, context)
        if candidate:
            yield (
                rank.rank,
                RankingRequest(
                    Target(),
                    context_columns,
                    candidate_features=example_columns(model_version, candidate),
                    tower=name,
                ),
            )
        for index_name, index in model_version.indexes.items():
            scored = model_version.ranking_inputs(name, "candidate")
            not_stored = set(scored) - set(index.corpus.entry.features)
            if any(manifest.default_of(name) is None for name in not_stored):
                continue  # such candidates are ranked by features that clients send
            query = model_version.towers[index.entry.query_tower]
            ranked_by = model_version.ranking_inputs(name, "context")
            features = example_columns(model_version, [*ranked_by, *query.inputs])
            request = RecommendationRequest(
                Target(), context=features, k=1, pool_size=1, index=index_name, tower=name
            )
            yield pipeline.select, request

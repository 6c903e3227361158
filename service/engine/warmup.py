"""Synthetic requests that must succeed before a model version is served, computed as real ones
are.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import RowUnavailable, UnknownRejected
from bundle.features.columns import Column
from bundle.format.features import sent_dtype
from bundle.format.manifest import DenseFeature, EmbeddedFeature, Manifest
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
from service.engine.execution import Execution
from service.engine.ranking import rank
from service.engine.retrieval import pipeline
from service.engine.validation import NotFinite
from service.errors import RowNotFinite
from service.versions.version import LoadedTower, ModelVersion, ServedIndex

_EXAMPLES = (1, 64)
"""Examples of each run of a tower: one alone, and enough to grow every buffer once."""
_EXACT_BYTES_MAX = 4 << 20
"""Of vectors that are all searched exactly: more would have to be read before a version is served.
"""

_NOT_COMPUTED = (ComputationFailed, NotFinite, RowNotFinite, RowUnavailable, UnknownRejected)
"""What models may do with synthetic values, which callers would not send: the exporter has compared
every tower on examples that the model takes.
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
                completed(pipeline.retrieve(model_version, search, settings, execution))
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
        yield towers.embed, EmbeddingRequest(Target(), name, _columns(manifest, tower.inputs))
        if tower.entry.role != "ranking":
            continue
        context = tower.by_role["context"]
        candidate = tower.by_role["candidate"]
        context_columns = _columns(manifest, context)
        if candidate:
            yield (
                rank.rank,
                RankingRequest(
                    Target(),
                    context_columns,
                    candidate_features=_columns(manifest, candidate),
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
            features = _columns(manifest, dict.fromkeys([*ranked_by, *query.inputs]))
            request = RecommendationRequest(
                Target(), context=features, k=1, pool_size=1, index=index_name, tower=name
            )
            yield pipeline.recommend, request


def _columns(manifest: Manifest, names: Iterable[str]) -> dict[str, Column]:
    """Returns one example of each input: id 0 (or "0"), or as many zeros as it has values."""
    columns: dict[str, Column] = {}
    for name in names:
        readers = manifest.readers(name)
        sizes = [
            math.prod(reader.shape)
            for reader in readers
            if isinstance(reader, DenseFeature) and reader.take == "values"
        ]
        sizes += [
            reader.places
            for reader in readers
            if isinstance(reader, EmbeddedFeature) and reader.places is not None
        ]
        length = manifest.length_of(name)
        if length is not None:
            sizes.append(length.values)
        size = 1
        if sizes:
            size = sizes[0]
        values: NDArray[Any] = np.zeros(size, np.int64)
        if any(sent_dtype(reader, name) == "string" for reader in readers):
            values = np.full(size, "0", object)
        columns[name] = Column(values, np.array([0, size], np.int64))
    return columns

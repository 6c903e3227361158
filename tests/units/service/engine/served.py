"""A small bundle, loaded, and the compute functions of the engine called on it directly."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from bundle.features.columns import Column
from runtime.tower import Tower
from service.config import ServiceSettings
from service.engine import lookup, towers
from service.engine.calls import (
    EmbeddingRequest,
    LookupRequest,
    RankingRequest,
    RecommendationRequest,
    RetrievalRequest,
    Target,
)
from service.engine.computation import completed
from service.engine.context import RequestContext
from service.engine.execution import Execution
from service.engine.ranking import rank
from service.engine.retrieval import recommend, retrieve
from service.engine.scheduling.admission import Estimates
from service.engine.scheduling.compute_pool import ComputePool
from service.observability.metrics import Metrics
from service.versions.loader import Loader
from service.versions.version import ModelVersion
from tests.bundles.small import SmallBundle


class CountingTower:
    """Runs another network; keeps how many examples each run had, and in which threads."""

    def __init__(self, network: Tower) -> None:
        self._network = network
        self.examples: list[int] = []
        self.threads: set[int] = set()
        self.barrier: threading.Barrier | None = None
        """Threads that must be in a run at the same time."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.examples.append(len(next(iter(inputs.values()))))
        self.threads.add(threading.get_ident())
        if self.barrier is not None:
            self.barrier.wait(20)
        return self._network.run(inputs)


class SlowTower(CountingTower):
    """Takes a tenth of a second for each example."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        time.sleep(0.1 * len(next(iter(inputs.values()))))
        return super().run(inputs)


class Served:
    """A loaded model version with metrics of its own."""

    def __init__(self, small: SmallBundle, pool: ComputePool | None = None, **limits: Any) -> None:
        self.small = small
        self.pool = pool
        self.metrics = Metrics()
        self.estimates = Estimates()
        root = small.directory.parent.parent
        self.settings = ServiceSettings(root=root, **limits)
        self.version = load_version(root, small.manifest.model, small.manifest.version)

    def rank(self, **request: Any) -> Any:
        return self._compute(rank.rank, RankingRequest(Target(), **{"context": {}, **request}))

    def retrieve(self, **request: Any) -> Any:
        return self._compute(retrieve.retrieve, RetrievalRequest(Target(), **request))

    def recommend(self, timeout_s: float = math.inf, **request: Any) -> Any:
        return self._compute(
            recommend.recommend, RecommendationRequest(Target(), **request), timeout_s
        )

    def embed(self, tower: str, features: Mapping[str, Column]) -> Any:
        return self._compute(towers.embed, EmbeddingRequest(Target(), tower, features))

    def look_up(self, feature: str, ids: Column) -> Any:
        return self._compute(lookup.look_up, LookupRequest(Target(), feature, ids))

    def _compute(
        self, function: Callable[..., Any], request: Any, timeout_s: float = math.inf
    ) -> Any:
        call = function.__name__
        contexts = [RequestContext(call, "id", time.monotonic() + timeout_s)]
        execution = Execution(call, contexts, self.metrics, self.pool, self.estimates)
        return completed(function(self.version, request, self.settings, execution))

    def close(self) -> None:
        self.version.close()
        if self.pool is not None:
            self.pool.close()

    def value(self, metric: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.metrics.render().decode())
        samples = (sample for family in families for sample in family.samples)
        return sum(
            sample.value for sample in samples if (sample.name, sample.labels) == (metric, labels)
        )

    def counted(self, tower: str = "ranking") -> dict[str, CountingTower]:
        """Puts a counter before each part of a tower; returns them by part."""
        return self.wrapped(tower, CountingTower)

    def wrapped(self, tower: str, wrapper: Callable[[Tower], Any]) -> dict[str, Any]:
        """Puts a network of our own before each part of a tower; returns them by part."""
        loaded_tower = self.version.towers[tower]
        networks = {part.entry.name: wrapper(part.network) for part in loaded_tower.parts}
        parts = tuple(
            replace(part, network=networks[part.entry.name]) for part in loaded_tower.parts
        )
        self.version = replace(
            self.version, towers={**self.version.towers, tower: replace(loaded_tower, parts=parts)}
        )
        return networks


def load_version(root: Path, model: str, version: int) -> ModelVersion:
    """Loads a version without warming it up."""
    return Loader(ServiceSettings(root=root), 1, lambda version, throttle: None).load(
        model, version
    )


def examples(counters: Mapping[str, CountingTower]) -> dict[str, list[int]]:
    """Returns the examples of each run, by part that was run."""
    return {name: counter.examples for name, counter in counters.items() if counter.examples}


def column(
    *values: Any, offsets: Sequence[int] | None = None, weights: Sequence[float] | None = None
) -> Column:
    """A column of int64, str or float32 values."""
    kind = object if values and isinstance(values[0], str) else None
    array = np.array(values, kind) if values else np.empty(0, np.int64)
    return Column(
        array.astype(np.float32) if array.dtype == np.float64 else array,
        None if offsets is None else np.array(offsets, np.int64),
        None if weights is None else np.array(weights, np.float32),
    )

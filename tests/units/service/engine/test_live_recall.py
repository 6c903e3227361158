"""The recall of sampled retrievals: what is measured, when, and what is dropped."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from service.config import ServiceSettings
from service.engine.calls import (
    Condition,
    Filter,
    IdLists,
    RetrievalRequest,
    RetrievalResult,
    Target,
)
from service.engine.computation import completed
from service.engine.execution import Execution
from service.engine.live_recall import CpuBudget, LiveRecall
from service.engine.retrieval import retrieve
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.policy import Arrangement
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.making import candidate, change, deletion, indexed
from tests.units.service.engine.served import load_version
from tests.units.service.running import RunningService

SIZE = 400
TREE = {"num_leaves": 20, "leaves_to_search": 1, "dimensions_per_block": 4, "reorder": 10}
K = 10
Write = Callable[..., SmallBundle]


class Sampled:
    """A served tree index whose queries are all sampled; `inflight` requests are in progress."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.manager = VersionManager()
        self.metrics = Metrics()
        self.inflight = 0
        self.looks = 0
        self.recall = LiveRecall(self.manager, self.metrics, 1.0, 1.0, self._requests_in_progress)
        self.serve(1)
        self.manager.settle()

    def _requests_in_progress(self) -> int:
        self.looks += 1
        return self.inflight

    def serve(self, number: int) -> SmallBundle:
        """Makes a version current; others are retired."""
        self.small = self._write(version=number, size=SIZE, index_kind="tree_ah", parameters=TREE)
        root = self.small.directory.parent.parent
        self.settings = ServiceSettings(root=root)
        self.manager.add(load_version(root, "movies", number))
        self.manager.arrange("movies", Arrangement(number, frozenset({number})))
        return self.small

    def retrieve(self, vectors: NDArray[np.float32], **request: Any) -> RetrievalResult:
        """Returns the result of a retrieval of the current version."""
        execution = Execution("retrieve", live_recall=self.recall)
        request_object = RetrievalRequest(Target(), vectors=vectors, **{"k": K, **request})
        with self.manager.acquire("movies") as version:
            result: RetrievalResult = completed(
                retrieve.retrieve(version, request_object, self.settings, execution)
            )
        return result

    def value(self, metric: str, **labels: str) -> float:
        """Returns the sum of the samples of a metric that have these labels; NaN: there are
        none.
        """
        self.recall.report()
        text = self.metrics.render().decode()
        values = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == metric and labels.items() <= sample.labels.items()
        ]
        return sum(values) if values else math.nan

    def counted(self, outcome: str) -> float:
        """Returns how many sampled queries have had this outcome."""
        count = self.value("rowcast_live_recall_queries_total", outcome=outcome)
        return 0.0 if math.isnan(count) else count

    def searched(self) -> float:
        return self.counted("searched")

    def dropped(self) -> float:
        return self.counted("dropped")


@pytest.fixture
def sampled(write: Write) -> Iterator[Sampled]:
    sampled = Sampled(write)
    yield sampled
    sampled.recall.close()
    sampled.manager.close()


class SampledChanges(Sampled):
    """The same, of a service whose candidates change."""

    def __init__(self, service: RunningService) -> None:
        self.settings = service.settings
        self.manager = service.worker.versions
        self.metrics = Metrics()
        self.inflight = 0
        self.looks = 0
        self.recall = LiveRecall(self.manager, self.metrics, 1.0, 1.0, self._requests_in_progress)


@pytest.fixture
def changing(
    write: Write, serve: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> RunningService:
    """A service with a tree index, which makes trees of changed candidates, too."""
    monkeypatch.setattr("service.changes.segments._TREE_MIN", 100)
    write(size=SIZE, index_kind="tree_ah", parameters=TREE)
    return serve(live_recall_share=0.0, absorb_changed_at=200)


def add(service: RunningService, first: int, count: int) -> None:
    """Adds candidates with random vectors, a third of which are classics."""
    items = [
        candidate(
            first + number,
            vectors={"movies": vector.tolist()},
            attributes={"classic": number % 3 == 0},
        )
        for number, vector in enumerate(queries(count, first))
    ]
    change(service, "candidates/upsert", *items)


def queries(count: int, seed: int = 3) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)


def sampler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rowcast-live-recall"]


def exact_ids(
    small: SmallBundle, query: NDArray[np.float32], allowed: NDArray[np.bool_]
) -> set[int]:
    """Returns the ids of the K nearest, by another computation."""
    scores = small.vectors.astype(np.float64) @ query
    scores[~allowed] = -np.inf
    count = min(K, int(allowed.sum()))
    return set(small.ids[np.argsort(-scores)[:count]].tolist())


def test_recall_is_that_of_an_exact_search_among_what_each_query_may_find(
    sampled: Sampled,
) -> None:
    small = sampled.small
    denied = small.ids[::9]
    with sampled.manager.acquire("movies") as version:
        version.deny(tuple(str(identifier) for identifier in denied))
    excluded = small.ids[5:60]
    is_classic = np.array([position % 3 == 0 for position in range(SIZE)])
    is_sent = ~np.isin(small.ids, denied)
    cases: list[tuple[dict[str, Any], NDArray[np.bool_]]] = [
        ({}, is_sent),
        ({"exclude_ids": IdLists(excluded)}, is_sent & ~np.isin(small.ids, excluded)),
        (
            {"filter": Filter({"classic": Condition(allow=np.array(["true"], object))})},
            is_sent & is_classic,
        ),
    ]
    hits = 0
    neighbors = 0
    by_index = 0
    for seed, (request, allowed) in enumerate(cases):
        vectors = queries(20, seed)
        result = sampled.retrieve(vectors, explain=True, **request)
        is_by_index = [explanation.path == "index" for explanation in result.explanations]
        assert any(is_by_index), f"the tree computes none of {request}"
        by_index += sum(is_by_index)
        for number in np.flatnonzero(is_by_index):
            first, last = result.offsets[number : number + 2].tolist()
            nearest = exact_ids(small, vectors[number], allowed)
            hits += len(nearest & set(result.ids[first:last].tolist()))
            neighbors += len(nearest)
    until(lambda: sampled.searched() == by_index)
    assert sampled.value("rowcast_live_recall_hits_total") == hits
    assert sampled.value("rowcast_live_recall_neighbors_total") == neighbors
    recall = sampled.value("rowcast_live_recall", model="movies", index="movies")
    assert recall == pytest.approx(hits / neighbors)
    assert 0.2 < recall < 1
    low = sampled.value("rowcast_live_recall_low")
    high = sampled.value("rowcast_live_recall_high")
    assert low < recall < high
    assert sampled.value("rowcast_live_recall_target") == 0.95
    assert sampled.dropped() == 0


def test_recall_is_that_of_lists_with_candidates_that_changed(changing: RunningService) -> None:
    add(changing, 5000, 500)
    until(lambda: indexed(changing) == 500)
    add(changing, 6000, 100)
    add(changing, 5000, 10)
    base_ids = [1000 + 7 * position for position in range(30)]
    change(changing, "candidates/delete", *deletion([*base_ids, *range(5010, 5050), 6000]))
    (segment,) = changing.current().indexes["movies"].segments
    assert segment.approximate is not None
    with changing.worker.versions.acquire("movies") as version:
        version.deny(("5050", "6001", "1700"))

    sampled = SampledChanges(changing)
    cases: list[dict[str, Any]] = [
        {},
        {"exclude_ids": IdLists(np.array([*range(5050, 5100), *range(6000, 6020)]))},
        {"filter": Filter({"classic": Condition(allow=np.array(["true"], object))})},
    ]
    hits = 0
    neighbors = 0
    by_index = 0
    nearest_ids = set()
    for seed, request in enumerate(cases):
        vectors = queries(20, seed)
        result = sampled.retrieve(vectors, explain=True, **request)
        exact_ids = sampled.retrieve(vectors, exact=True, **request).ids.reshape(20, K)
        for number, explanation in enumerate(result.explanations):
            if explanation.path == "index":
                by_index += 1
                row = result.ids[K * number : K * (number + 1)]
                hits += int(np.isin(exact_ids[number], row).sum())
                neighbors += K
        nearest_ids.update(exact_ids.ravel().tolist())
    until(lambda: sampled.searched() == by_index)
    sampled.recall.close()
    assert sampled.value("rowcast_live_recall_hits_total") == hits
    assert sampled.value("rowcast_live_recall_neighbors_total") == neighbors
    assert 0.2 < hits / neighbors < 1
    assert {1000 <= key < 5000 for key in nearest_ids} == {True, False}
    assert any(5000 <= key < 6000 for key in nearest_ids)
    assert any(key >= 6000 for key in nearest_ids)


def test_retired_version_is_closed_and_freed_while_its_queries_wait(sampled: Sampled) -> None:
    sampled.inflight = 1
    sampled.retrieve(queries(3))
    until(lambda: sampled.looks > 3)
    with sampled.manager.acquire("movies") as version:
        retired: list[weakref.ref[Any]] = [weakref.ref(version)]
        retired.append(weakref.ref(version.indexes["movies"].here))
    del version
    sampled.serve(2)
    sampled.manager.wait_closed()
    gc.collect()
    assert [reference() for reference in retired] == [None, None]
    assert sampled.dropped() == 3
    sampled.inflight = 0
    sampled.retrieve(queries(2))
    until(lambda: sampled.searched() == 2)


def test_budget_lets_a_thread_spend_its_share_and_save_little() -> None:
    times = {"wall": 100.0, "cpu": 5.0}
    budget = CpuBudget(0.02, lambda: times["wall"], lambda: times["cpu"])
    assert budget.pause_s() == 0
    times["cpu"] += 0.004
    assert budget.pause_s() == pytest.approx(0.2)
    times["wall"] += 0.2
    assert budget.pause_s() == pytest.approx(0)
    times["wall"] += 1_000_000
    assert budget.pause_s() == 0
    times["cpu"] += 0.06
    assert budget.pause_s() == pytest.approx(0.5)  # 0.05 s were saved


def test_service_measures_its_responses_unless_the_share_is_zero(
    write: Write, serve: Callable[..., RunningService]
) -> None:
    write(size=SIZE, index_kind="tree_ah", parameters=TREE)
    service = serve(live_recall_share=1.0, live_recall_cpu=1.0)
    silent = serve(live_recall_share=0.0)
    for running in (service, silent):
        for query in queries(5):
            body = {"k": K, "vectors": [query.tolist()]}
            response = httpx.post(f"{running.http}/v1/models/movies:retrieve", json=body)
            assert response.status_code == 200
    queries_metric = "rowcast_live_recall_queries_total"
    until(lambda: service.value(queries_metric, model="movies", outcome="searched") == 5)
    until(lambda: service.value("rowcast_live_recall", index="movies") > 0)
    assert silent.value(queries_metric) == 0
    service.close()
    assert not sampler_threads()

"""The recall of sampled retrievals, as a service reports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bundle.format.indexes import Engine
from tests.bundles.indexes import ENGINES
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.making import (
    add,
    candidate,
    change,
    deletion,
    deny,
    random_vectors,
    responds,
)
from tests.units.service.running import RunningService

SIZE = 400
TREE = {"num_leaves": 20, "leaves_to_search": 1, "dimensions_per_block": 4, "reorder": 10}
BUNDLE: dict[str, Any] = {"size": SIZE, "index_kind": "tree_ah", "parameters": TREE}
MEASURED: dict[str, Any] = {"live_recall_share": 1.0, "live_recall_cpu": 1.0}
K = 10
QUERIES = "rowcast_live_recall_queries_total"
Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]


def retrieved(service: RunningService, count: int, seed: int, **options: Any) -> list[Any]:
    """The results of queries by random vectors; `exclude_ids` are those of each."""
    of_each = {"exclude_ids": options.pop("exclude_ids", [])}
    vectors = random_vectors(count, seed=seed).tolist()
    requests = [{"vectors": [vector], **of_each} for vector in vectors]
    results: list[Any] = []
    for first in range(0, count, 5):
        body = {"requests": requests[first : first + 5], "k": K, **options}
        results += responds(service, "retrieve", **body)["results"]
    return results


@pytest.mark.parametrize("engine", ENGINES)
def test_recall_is_that_of_exact_searches_among_what_each_query_may_find(
    write: Write, serve: Serve, engine: Engine
) -> None:
    write(**BUNDLE, engine=engine)
    service = serve(**MEASURED)
    add(service, random_vectors(500, seed=5), 5000)
    add(service, random_vectors(100, seed=6), 6000)
    classics = [
        candidate(key, vectors={"movies": vector.tolist()}, attributes={"classic": True})
        for key, vector in zip(range(5000, 5100), random_vectors(100, seed=7), strict=True)
    ]
    change(service, "candidates/upsert", *classics)
    deleted = [*range(1000, 1000 + 7 * 30, 7), *range(5010, 5050), 6000]
    change(service, "candidates/delete", *deletion(deleted))
    deny(service, 5050, 6001, 1700)

    cases: list[dict[str, Any]] = [
        {},
        {"exclude_ids": [*range(5050, 5100), *range(6000, 6020)]},
        {"filter": {"classic": {"allow": [True]}}},
    ]
    hits = 0
    by_index = 0
    nearest = set[int]()
    for seed, options in enumerate(cases):
        results = retrieved(service, 20, seed, explain=True, **options)
        exact_results = retrieved(service, 20, seed, exact=True, **options)
        for result, exact in zip(results, exact_results, strict=True):
            nearest.update(exact["ids"])
            if result["explanation"]["path"] == "index":
                by_index += 1
                hits += len({*result["ids"]} & {*exact["ids"]})
    until(lambda: service.value(QUERIES, outcome="searched") == by_index)
    assert by_index > 20
    assert service.value(QUERIES, outcome="dropped") == 0
    assert {key // 1000 for key in nearest} >= {1, 5, 6}
    until(lambda: service.value("rowcast_live_recall_neighbors_total") == by_index * K)
    assert service.value("rowcast_live_recall_hits_total") == hits
    labels = {"model": "movies", "index": "movies"}
    recall = hits / (by_index * K)
    assert 0.2 < recall < 1
    until(lambda: service.value("rowcast_live_recall", **labels) == pytest.approx(recall))
    low, high = (service.value(f"rowcast_live_recall_{end}") for end in ("low", "high"))
    assert low < recall < high
    assert service.value("rowcast_live_recall_target") == 0.95

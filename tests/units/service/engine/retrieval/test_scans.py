"""Filtered searches that scan the codes of what matches: recall, and a list that depends on the
request alone.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.engine.calls import Condition, Filter, IdLists
from service.engine.retrieval.search_depth import plan_search
from service.versions.filter_cache import FilterCache
from service.versions.version import LoadedIndex
from tests.bundles.search_costs import COSTS
from tests.random_cases import seeds
from tests.units.service.engine.retrieval.large_index import (
    clustered,
    find,
    load_index,
    nearest,
)

SIZE = 60_000
DIM = 32
TREE = {"num_leaves": 245, "leaves_to_search": 150, "dimensions_per_block": 2, "reorder": 120}
"""Searched so deep that scans cost less than the tree."""
DISTANCES = ("dot_product", "squared_l2", "cosine")


QUERIES = clustered(40, DIM, seed=2)[0]


@functools.cache
def attributes() -> dict[str, NDArray[np.int64]]:
    percent = np.random.default_rng(3).integers(0, 100, SIZE)
    cluster = clustered(SIZE, DIM)[1]
    return {"percent": percent, "cluster": cluster, "position": np.arange(SIZE)}


@pytest.fixture(scope="module", params=DISTANCES)
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedIndex:
    return load_index(
        tmp_path_factory.mktemp("index"),
        clustered(SIZE, DIM)[0],
        attributes(),
        distance=request.param,
        parameters=TREE,
        coded=True,
        costs=COSTS.model_copy(update={"exact_start": 20_000, "scan_start": 4000, "found": 3}),
    )


def without_cache(index: LoadedIndex) -> LoadedIndex:
    return replace(index, compiled=FilterCache(0))


def scanned(index: LoadedIndex, matching: int, k: int) -> bool:
    """Whether a search scans codes: that costs less than the tree, and than exact scores."""
    plan = plan_search(index, 0.9, k, matching)
    return plan.depth is None and plan.scan is not None


@pytest.mark.parametrize("k", [10, 100, 1000])
@pytest.mark.parametrize(
    ("name", "below"), [("percent", 20), ("cluster", 20)], ids=["even", "clusters"]
)
def test_scan_has_the_recall_at_every_k(index: LoadedIndex, name: str, below: int, k: int) -> None:
    """Also where what matches lies together: near to some queries and far from the others."""
    matching = attributes()[name] < below
    assert scanned(index, int(matching.sum()), k) == (k < 1000)
    percent_filter = Filter({name: Condition(lt=below)})
    hits = 0
    for query in QUERIES:
        neighbors = find(index, query[np.newaxis], k, filter=percent_filter, recall=0.9)
        assert matching[neighbors.positions].all()
        assert neighbors.positions.size == k
        hits += len({*neighbors.positions.tolist()} & {*nearest(index, query, matching, k)})
    assert hits / (k * len(QUERIES)) >= 0.9


def a_filter(random: Random) -> tuple[Filter, NDArray[np.bool_]]:
    """A filter of one to three conditions, and what matches it."""
    conditions = {}
    matching = np.ones(SIZE, bool)
    for name in random.sample(list(attributes()), random.choice([1, 1, 2, 3])):
        values = attributes()[name]
        top = int(values.max()) + 1
        first = random.randrange(top)
        last = random.randrange(first, top) + 1
        conditions[name] = Condition(ge=first, lt=last)
        matching &= (values >= first) & (values < last)
    return Filter(conditions), matching


def test_list_is_the_same_whatever_is_cached_and_whatever_else_is_sought(
    index: LoadedIndex, request: pytest.FixtureRequest
) -> None:
    cases = seeds(request, 66, first=5_000)
    scans = 0
    hits = 0
    wanted = 0
    for seed in cases:
        random = Random(seed)
        random_filter, matching = a_filter(random)
        k = random.choice([1, 10, 30, 100])
        chosen = random.sample(range(len(QUERIES)), 3)
        excluded = random.sample(range(SIZE), random.choice([0, 0, 5]))
        options: dict[str, Any] = {"filter": random_filter, "recall": 0.9}
        if excluded:
            options["exclude_ids"] = IdLists(np.array(excluded))
        alone = [
            find(without_cache(index), QUERIES[[query_number]], k, **options).positions.tolist()
            for query_number in chosen
        ]
        together = find(index, QUERIES[chosen], k, **options)
        repeated = [find(index, QUERIES[[query_number]], k, **options) for query_number in chosen]
        split = np.split(together.positions, together.offsets[1:-1])
        assert [positions.tolist() for positions in split] == alone, seed
        assert [neighbors.positions.tolist() for neighbors in repeated] == alone, seed

        allowed = matching.copy()
        allowed[excluded] = False
        for number, expected in zip(chosen, alone, strict=True):
            assert allowed[expected].all(), seed
            true = nearest(index, QUERIES[number], allowed, k)
            assert len(expected) == len(true), seed
            hits += len({*expected} & {*true})
            wanted += len(true)
        scans += scanned(index, int(matching.sum()), k)
    assert hits / wanted >= 0.9
    assert scans >= len(cases) / 10

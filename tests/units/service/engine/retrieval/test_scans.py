"""Filtered searches that scan the codes of what matches: recall, and a list that depends on the
request alone.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.exact import ExactIndex
from service.engine.calls import Condition, Filter, IdLists
from service.engine.retrieval.search_depth import plan_search
from service.versions.filter_cache import FilterCache
from service.versions.version import LoadedIndex
from tests.bundles.search_costs import COSTS
from tests.random_cases import seeds
from tests.units.service.engine.retrieval.large_index import find, load_index

SIZE = 60_000
DIM = 32
CLUSTERS = 100
TREE = {"num_leaves": 245, "leaves_to_search": 150, "dimensions_per_block": 2, "reorder": 120}
"""Searched so deep that scans cost less than the tree."""
DISTANCES = ("dot_product", "squared_l2", "cosine")


@functools.cache
def clustered(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    centers = np.random.default_rng(7).normal(size=(CLUSTERS, DIM))
    random = np.random.default_rng(seed)
    cluster = random.integers(0, CLUSTERS, count)
    vectors = centers[cluster] + random.normal(size=(count, DIM)) * 0.8
    return vectors.astype(np.float32), cluster


QUERIES = clustered(40, seed=2)[0]


@functools.cache
def attributes() -> dict[str, NDArray[np.int64]]:
    percent = np.random.default_rng(3).integers(0, 100, SIZE)
    cluster = clustered(SIZE, seed=1)[1]
    return {"percent": percent, "cluster": cluster, "position": np.arange(SIZE)}


@pytest.fixture(scope="module", params=DISTANCES)
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedIndex:
    return load_index(
        tmp_path_factory.mktemp("index"),
        clustered(SIZE, seed=1)[0],
        attributes(),
        distance=request.param,
        parameters=TREE,
        coded=True,
        costs=COSTS.model_copy(update={"exact_start": 20_000, "scan_start": 4000, "found": 3}),
    )


def without_cache(index: LoadedIndex) -> LoadedIndex:
    return replace(index, compiled=FilterCache(0))


def exact_list(
    index: LoadedIndex, query: NDArray[np.float32], matching: NDArray[np.bool_], k: int
) -> list[int]:
    exact = ExactIndex(index.vectors, index.entry.distance)
    exact_positions, _ = exact.search(query[np.newaxis], k, np.flatnonzero(matching))
    return [position for position in exact_positions[0].tolist() if position >= 0]


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
        hits += len({*neighbors.positions.tolist()} & {*exact_list(index, query, matching, k)})
    assert hits / (k * len(QUERIES)) >= 0.9


@pytest.mark.parametrize("recipe", [False, True], ids=["asked", "recipe"])
def test_recall_of_one_with_a_filter_misses_no_neighbor(index: LoadedIndex, recipe: bool) -> None:
    recall = index.entry.recall.model_copy(update={"target": 1.0})
    entry = index.entry.model_copy(update={"recall": recall})
    if recipe:
        index = replace(index, entry=entry, plans={})
    for name, below in (("percent", 20), ("cluster", 20), ("percent", 80)):
        matching = attributes()[name] < below
        percent_filter = Filter({name: Condition(lt=below)})
        neighbors = find(
            index, QUERIES[:20], 10, filter=percent_filter, recall=0.0 if recipe else 1.0
        )
        for row, query in zip(neighbors.positions.reshape(20, 10), QUERIES, strict=False):
            assert row.tolist() == exact_list(index, query, matching, 10)


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
            true = exact_list(index, QUERIES[number], allowed, k)
            assert len(expected) == len(true), seed
            hits += len({*expected} & {*true})
            wanted += len(true)
        scans += scanned(index, int(matching.sum()), k)
    assert hits / wanted >= 0.9
    assert scans >= len(cases) / 10


def test_exclusions_leave_the_order_of_the_others(index: LoadedIndex) -> None:
    percent_filter = Filter({"percent": Condition(lt=20)})
    matching = attributes()["percent"] < 20
    for query in QUERIES[:10]:
        free = find(index, query[np.newaxis], 30, filter=percent_filter).positions.tolist()
        excluded = IdLists(np.array(free[3:20:4]))
        fewer = find(index, query[np.newaxis], 30, filter=percent_filter, exclude_ids=excluded)
        expected = [position for position in free if position not in {*free[3:20:4]}]
        assert fewer.positions.tolist()[: len(expected)] == expected

        # All that are near: others are found farther away.
        seen = exact_list(index, query, matching, 2000)
        allowed = matching.copy()
        allowed[seen] = False
        far = find(
            index, query[np.newaxis], 30, filter=percent_filter, exclude_ids=IdLists(np.array(seen))
        )
        true = exact_list(index, query, allowed, 30)
        assert len({*far.positions.tolist()} & {*true}) >= 24
        assert allowed[far.positions].all()


def test_codes_of_a_filter_are_cached_within_their_bytes(index: LoadedIndex) -> None:
    cached = replace(index, compiled=FilterCache(4 << 20))
    percent_filter = Filter({"percent": Condition(lt=20)})
    matching = int((attributes()["percent"] < 20).sum())
    assert scanned(index, matching, 10)
    find(cached, QUERIES[:1], 10, filter=percent_filter)
    # 4 bytes for each position and 8 of codes; neither a mask nor vectors.
    assert 12 * matching <= cached.compiled.bytes <= 12 * matching + 2000


def test_scan_is_not_used_where_exact_scores_cost_less(index: LoadedIndex) -> None:
    assert plan_search(index, 0.9, 10, 24_000).scan is not None
    assert plan_search(index, 0.9, 10, 200).scan is None
    assert plan_search(index, 0.9, 5000, 24_000).scan is None
    assert plan_search(replace(index, codes=None, plans={}), 0.9, 10, 24_000).scan is None


def test_costs_in_the_manifest_choose_whether_codes_are_scanned(index: LoadedIndex) -> None:
    def scans(**costs: float) -> bool:
        changed = COSTS.model_copy(update={"fetched": 3e4, **costs})
        entry = index.entry.model_copy(update={"costs": changed})
        return scanned(replace(index, entry=entry, plans={}), 12_000, 10)

    assert scans(exact_start=1e6)
    assert not scans(scan_start=1e6)
    assert not scans(scanned=20)
    assert not scans(found=3e4)
    assert not scans(code_gathered=200)


def test_more_is_reordered_for_a_higher_recall(index: LoadedIndex) -> None:
    cluster_filter = Filter({"cluster": Condition(lt=20)})
    scored = []
    for recall in (0.8, 0.95, 0.99):
        explanations = [
            find(index, query[np.newaxis], 100, filter=cluster_filter, recall=recall).explanations[
                0
            ]
            for query in QUERIES
        ]
        scored.append(sum(explanation.scored for explanation in explanations))
    assert scored[0] < scored[1] < scored[2]


def test_vectors_that_codes_cannot_tell_apart_are_found(tmp_path: Path) -> None:
    vectors = np.ones((SIZE, 4), np.float32)
    percent = np.arange(SIZE) % 100
    index = load_index(tmp_path, vectors, {"percent": percent}, parameters=TREE, coded=True)
    neighbors = find(index, vectors[:1], 20, filter=Filter({"percent": Condition(lt=20)}))
    assert neighbors.positions.size == 20
    assert (percent[neighbors.positions] < 20).all()

"""Search among what is allowed, of a corpus large enough for an index to pay: by the tree, by the
codes of what matches, or exactly, lists have their recall and depend on the request alone.
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

from bundle.format.indexes import CurvePoint, RecallCurve
from service.contract.forms import IdLists
from service.contract.messages import Condition, Filter
from service.engine.retrieval.search_depth import plan_search
from service.versions.deny_list import DenyList
from service.versions.filter_cache import FilterCache
from service.versions.version import LoadedIndex, LoadedStore
from tests.bundles.search_costs import COSTS
from tests.random_cases import seeds
from tests.units.service.engine.retrieval.large_index import (
    clustered,
    find,
    load_index,
    nearest,
)

pytestmark = pytest.mark.slow

SIZE = 60_000
DIM = 32
K = 20
CASES = 40
TREE = {"num_leaves": 245, "leaves_to_search": 20, "dimensions_per_block": 2, "reorder": 120}
DEEP_TREE = TREE | {"leaves_to_search": 150}
"""Searched so deep that scans cost less than the tree."""
CHEAP_SCANS = COSTS.model_copy(update={"exact_start": 20_000, "scan_start": 4000, "found": 3})
CURVE = (
    CurvePoint(leaves_to_search=2, reorder=40, recall=0.4, low=0.38),
    CurvePoint(leaves_to_search=60, reorder=400, recall=0.98, low=0.97),
    CurvePoint(leaves_to_search=150, reorder=400, recall=0.99, low=0.985),
)
CURVES = (RecallCurve(k=K, points=CURVE),)
AS_EXPORTED = CurvePoint(leaves_to_search=150, reorder=120, recall=0.92, low=0.9)
"""The setting of DEEP_TREE."""
QUERIES = clustered(40, DIM, seed=2)[0]
EVERYTHING = np.ones(SIZE, bool)


@functools.cache
def attributes() -> dict[str, NDArray[np.int64]]:
    percent = np.random.default_rng(3).integers(0, 100, SIZE)
    cluster = clustered(SIZE, DIM)[1]
    return {"percent": percent, "cluster": cluster, "position": np.arange(SIZE)}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> LoadedIndex:
    """An index without codes."""
    place = tmp_path_factory.mktemp("tree")
    vectors, _ = clustered(SIZE, DIM)
    return load_index(place, vectors, attributes(), parameters=TREE, recall_curves=CURVES)


@pytest.fixture(scope="module")
def faiss_tree(tmp_path_factory: pytest.TempPathFactory) -> LoadedIndex:
    """The same index by the other engine."""
    return load_index(
        tmp_path_factory.mktemp("faiss"),
        clustered(SIZE, DIM)[0],
        attributes(),
        parameters=TREE,
        recall_curves=CURVES,
        engine="faiss",
    )


@pytest.fixture(
    scope="module",
    params=["tree", "faiss_tree", "dot_product", "squared_l2", "cosine", "squared_l2 by faiss"],
)
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedIndex:
    """A tree, or an index with codes of a distance."""
    distance, _, engine = request.param.partition(" by ")
    if distance in ("tree", "faiss_tree"):
        loaded: LoadedIndex = request.getfixturevalue(distance)
        return loaded
    return load_index(
        tmp_path_factory.mktemp("index"),
        clustered(SIZE, DIM)[0],
        attributes(),
        distance=distance,
        parameters=DEEP_TREE,
        recall_curves=[RecallCurve(k=K, points=(AS_EXPORTED,))],
        coded=True,
        costs=CHEAP_SCANS,
        engine=engine or None,
    )


def way(index: LoadedIndex, matching: int, k: int) -> str:
    plan = plan_search(index, 0.9, k, matching)
    if plan.depth is not None:
        return "tree"
    return "exact" if plan.scan is None else "scan"


def a_filter(random: Random) -> tuple[Filter, NDArray[np.bool_]]:
    """A filter of at most three conditions, and what matches it."""
    conditions = {}
    matching = EVERYTHING.copy()
    for name in random.sample(list(attributes()), random.choice([0, 1, 1, 2, 3])):
        values = attributes()[name]
        top = int(values.max()) + 1
        first = random.randrange(top)
        last = random.randrange(first, top) + 1
        conditions[name] = Condition(ge=first, lt=last)
        matching &= (values >= first) & (values < last)
    return Filter(conditions), matching


def with_denied(index: LoadedIndex, is_live: NDArray[np.bool_]) -> LoadedIndex:
    assert isinstance(index.corpus, LoadedStore)
    deny_list = DenyList()
    deny_list.positions = np.flatnonzero(~is_live).astype(np.uint32)
    corpus = replace(index.corpus, deny_list=deny_list)
    return replace(index, corpus=corpus, compiled=FilterCache(64 << 20))


def test_any_request_gets_the_same_list_with_the_recall_whatever_is_cached_or_sought_beside_it(
    index: LoadedIndex, request: pytest.FixtureRequest
) -> None:
    ways = set[str]()
    hits = 0
    wanted = 0
    for seed in seeds(request, CASES, first=5_000):
        random = Random(seed)
        random_filter, allowed = a_filter(random)
        k = random.choice([1, 10, 30, 100, 1000])
        chosen = random.sample(range(len(QUERIES)), 3)
        live_share = random.choice([1, 1, 1, 0.3, 0.003])
        is_live = np.random.default_rng(seed).random(SIZE) < live_share
        excluded = random.sample(range(SIZE), random.choice([0, 0, 5]))
        if random.random() < 0.2:  # those that are nearest to the query
            excluded = nearest(index, QUERIES[chosen[0]], EVERYTHING, 3000)
        served = with_denied(index, is_live)
        options: dict[str, Any] = {"filter": random_filter, "recall": 0.9}
        if excluded:
            options["exclude_ids"] = IdLists(np.array(excluded))
        allowed &= is_live
        allowed[excluded] = False
        uncached = replace(served, compiled=FilterCache(0))
        alone = [find(uncached, QUERIES[[number]], k, **options) for number in chosen]
        together = find(served, QUERIES[chosen], k, **options)
        repeated = [find(served, QUERIES[[number]], k, **options) for number in chosen]
        lists = np.split(together.positions, together.offsets[1:-1])
        for number, found, again, listed in zip(chosen, alone, repeated, lists, strict=True):
            expected = found.positions.tolist()
            assert again.positions.tolist() == listed.tolist() == expected, seed
            assert allowed[expected].all(), seed
            assert found.explanations[0].matches == np.count_nonzero(allowed)
            true = nearest(index, QUERIES[number], allowed, k)
            assert len(expected) == len(true), seed
            hits += len({*expected} & {*true})
            wanted += len(true)
        ways.add(way(served, int(allowed.sum()), k))
    assert hits / wanted >= 0.9
    assert ways >= {"tree", "exact"} | ({"scan"} if index.codes is not None else set())


def test_list_without_a_candidate_is_the_same_but_for_it(tree: LoadedIndex) -> None:
    def coarsely(query: NDArray[np.float32], **request: Any) -> list[int]:
        """Searches so few leaves that the list shows how deep the search went."""
        found = find(tree, query[np.newaxis], K, recall=0.3, **request)
        return [int(position) for position in found.positions]

    for query in QUERIES:
        listed = coarsely(query)
        for absent in (listed[7], listed[-1], (listed[0] + 1) % SIZE):
            positions = coarsely(query, exclude_ids=IdLists(np.array([absent])))
            remaining = [position for position in listed if position != absent]
            assert positions[: len(remaining)] == remaining


def test_search_at_a_level_of_recall_takes_the_cheapest_setting_that_reaches_it(
    tree: LoadedIndex,
) -> None:
    true = [nearest(tree, query, EVERYTHING, K) for query in QUERIES]

    def searched(index: LoadedIndex, recall: float) -> tuple[float, str]:
        """Returns the recall, and how the searches were made."""
        hits = 0
        for query, positions in zip(QUERIES, true, strict=True):
            found = find(index, query[np.newaxis], K, recall=recall)
            hits += len({*found.positions.tolist()} & {*positions})
        return hits / (K * len(QUERIES)), found.explanations[0].path

    low, _ = searched(tree, 0.3)
    exported, _ = searched(tree, 0.0)
    high, path = searched(tree, 0.95)
    assert low < exported <= high
    assert path == "index"
    assert find(tree, QUERIES[:1], K, recall=0.95).explanations[0].scored == 400
    assert searched(tree, 0.995) == (1.0, "exact")
    assert searched(tree, 1.0) == (1.0, "exact")


def test_filters_used_again_are_cached_within_their_bytes(tmp_path: Path) -> None:
    vectors, _ = clustered(2000, 8)
    parameters = {"num_leaves": 20, "leaves_to_search": 5, "dimensions_per_block": 2, "reorder": 30}
    group = np.arange(2000) % 40
    index = load_index(tmp_path, vectors, {"group": group}, parameters=parameters)
    index = replace(index, compiled=FilterCache(20_000))
    cached_bytes = []
    for number in [0, 0, *range(40), 0]:
        wanted = Filter({"group": Condition(allow=np.array([number]))})
        found = find(index, vectors[:1], 5, filter=wanted)
        assert found.positions.tolist() == nearest(index, vectors[0], group == number, 5)
        cached_bytes.append(index.compiled.bytes)
    assert cached_bytes[0] < cached_bytes[1], "the vectors are kept when it is requested again"
    assert 0 < max(cached_bytes) <= 20_000

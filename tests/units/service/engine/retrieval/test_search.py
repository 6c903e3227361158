"""Search among what is allowed, of a corpus large enough for an index to pay: recall, bits, and
what is kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import CostPoint
from service.engine.calls import Condition, Filter, IdLists
from service.engine.retrieval.search import Neighbors
from service.versions.version import LoadedIndex, LoadedStore
from tests.bundles.search_costs import COSTS
from tests.units.service.engine.retrieval.large_index import (
    clustered,
    find,
    load_index,
    nearest,
)

SIZE = 100_000
DIM = 32
K = 20
TREE = {"num_leaves": 300, "leaves_to_search": 24, "dimensions_per_block": 2, "reorder": 120}
CURVE = (
    CostPoint(parameters={"leaves_to_search": 2, "reorder": 40}, recall=0.4, relative_cost=0.1),
    CostPoint(parameters={"leaves_to_search": 150, "reorder": 400}, recall=0.99, relative_cost=0.6),
    CostPoint(parameters={"leaves_to_search": 60, "reorder": 400}, recall=0.98, relative_cost=0.3),
)
Attributes = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def attributes() -> Attributes:
    random = np.random.default_rng(8)
    (_, belongs) = clustered(SIZE, DIM)
    shares = {"half": 2, "tenth": 10, "twentieth": 20, "hundredth": 100, "thousandth": 1000}
    return {
        **{name: random.integers(0, parts, SIZE) for name, parts in shares.items()},
        "cluster": belongs,
    }


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, attributes: Attributes) -> LoadedIndex:
    vectors, _ = clustered(SIZE, DIM)
    return load_index(
        tmp_path_factory.mktemp("index"), vectors, attributes, parameters=TREE, curve=CURVE
    )


@pytest.fixture(scope="module")
def queries() -> NDArray[np.float32]:
    vectors, _ = clustered(SIZE, DIM)
    return (
        vectors[:: SIZE // 40]
        + np.random.default_rng(9).normal(size=(40, DIM)).astype(np.float32) * 0.5
    )


def recall(
    index: LoadedIndex, queries: NDArray[np.float32], allowed: NDArray[np.bool_], **request: Any
) -> tuple[float, set[str]]:
    """Recall against exact search, each query alone, and the paths taken; checks how many there
    are, and which.
    """
    hits = 0
    paths = set[str]()
    wanted = min(K, int(np.count_nonzero(allowed)))
    for query in queries:
        neighbors = find(index, query[np.newaxis], K, **request)
        assert neighbors.positions.size == wanted
        assert allowed[neighbors.positions].all()
        hits += len(set(neighbors.positions.tolist()) & set(nearest(index, query, allowed, K)))
        paths.add(neighbors.explanations[0].path)
    return hits / (len(queries) * wanted), paths


def allow(**values: Any) -> Filter:
    return Filter({name: Condition(allow=np.atleast_1d(value)) for name, value in values.items()})


@pytest.mark.parametrize(
    ("name", "path"),
    [("half", "index"), ("tenth", "index"), ("hundredth", "exact"), ("thousandth", "exact")],
)
def test_search_with_a_filter_of_any_selectivity_has_the_recall(
    index: LoadedIndex, queries: NDArray[np.float32], attributes: Attributes, name: str, path: str
) -> None:
    share, paths = recall(index, queries, attributes[name] == 1, filter=allow(**{name: 1}))
    assert share >= 0.95
    assert path in paths


@pytest.mark.parametrize(("count", "path"), [(50, "index"), (3000, "index"), (6000, "exact")])
def test_search_with_exclusions_nearest_to_the_query_has_the_recall(
    index: LoadedIndex, queries: NDArray[np.float32], count: int, path: str
) -> None:
    shares = []
    for query in queries[::4]:
        allowed = np.ones(SIZE, bool)
        allowed[nearest(index, query, allowed, count)] = False
        share, paths = recall(
            index, query[np.newaxis], allowed, exclude_ids=IdLists(np.flatnonzero(~allowed))
        )
        shares.append(share)
        assert paths == {path}
    assert np.mean(shares) >= 0.95


def coarsely(index: LoadedIndex, vectors: NDArray[np.float32], k: int, **request: Any) -> Neighbors:
    """Searches so few leaves that the list shows how deep the search went."""
    return find(index, vectors, k, recall=0.3, **request)


def test_list_without_a_candidate_is_the_same_but_for_it(
    index: LoadedIndex, queries: NDArray[np.float32]
) -> None:
    for query in queries:
        listed = coarsely(index, query[np.newaxis], K).positions.tolist()
        for absent in (listed[7], listed[-1], (listed[0] + 1) % SIZE):
            excluded = IdLists(np.array([absent]))
            positions = coarsely(
                index, query[np.newaxis], K, exclude_ids=excluded
            ).positions.tolist()
            remaining = [position for position in listed if position != absent]
            assert positions[: len(remaining)] == remaining


def test_search_at_a_level_of_recall_takes_the_cheapest_setting_that_reaches_it(
    index: LoadedIndex, queries: NDArray[np.float32]
) -> None:
    everything = np.ones(SIZE, bool)
    low, _ = recall(index, queries, everything, recall=0.3)
    exported, _ = recall(index, queries, everything)
    high, paths = recall(index, queries, everything, recall=0.95)
    assert low < exported < high
    assert paths == {"index"}
    assert find(index, queries[:1], K, recall=0.95).explanations[0].scored == 400
    assert recall(index, queries[:5], everything, recall=0.995) == (1.0, {"exact"})
    point = CURVE[1].model_copy(update={"recall": 1.0})  # on the queries that it was measured on
    perfect = replace(index, entry=index.entry.model_copy(update={"curve": (point,)}), plans={})
    assert recall(perfect, queries[:5], everything, recall=0.995)[1] == {"index"}
    assert recall(perfect, queries[:5], everything, recall=1.0) == (1.0, {"exact"})


@pytest.mark.parametrize("live_count", [0, 20, 400, 2_000, 40_000])
@pytest.mark.parametrize("name", ["", "half", "hundredth"])
def test_search_of_an_index_whose_candidates_are_nearly_all_denied_scores_the_others_alone(
    index: LoadedIndex,
    queries: NDArray[np.float32],
    attributes: Attributes,
    live_count: int,
    name: str,
) -> None:
    is_live = np.zeros(SIZE, bool)
    is_live[np.random.default_rng(11).choice(SIZE, live_count, replace=False)] = True
    allowed = is_live
    request = {}
    if name:
        allowed = is_live & (attributes[name] == 1)
        request["filter"] = allow(**{name: 1})
    assert isinstance(index.corpus, LoadedStore)
    index.corpus.denied.positions = np.flatnonzero(~is_live).astype(np.uint32)
    try:
        neighbors = find(index, queries[:2], K, **request)
    finally:
        index.corpus.denied.positions = np.empty(0, np.uint32)
    lists = np.split(neighbors.positions, neighbors.offsets[1:-1])
    are_scored_alone = live_count <= 2_000
    for query, listed, explanation in zip(queries[:2], lists, neighbors.explanations, strict=True):
        expected = nearest(index, query, allowed, K)
        assert len(listed) == len(expected)
        assert allowed[listed].all()
        if are_scored_alone:
            assert listed.tolist() == expected
        assert explanation.matches == np.count_nonzero(allowed)
    if are_scored_alone and name != "hundredth":
        assert {explanation.scored for explanation in neighbors.explanations} == {allowed.sum()}


def test_costs_in_the_manifest_choose_the_way(
    index: LoadedIndex, queries: NDArray[np.float32]
) -> None:
    """Neither the machine nor its load does: where the manifest states high costs of exact scores,
    the tree is searched, and the other way round.
    """
    tenth = allow(tenth=1)

    def path(**costs: float) -> str:
        changed = COSTS.model_copy(update=costs)
        entry = index.entry.model_copy(update={"costs": changed})
        priced = replace(index, entry=entry, plans={})
        return find(priced, queries[:1], K, filter=tenth).explanations[0].path

    assert path(exact_start=1e6) == "index"
    assert path(gathered=200) == "index"
    assert path(uncached=50, cached=100) == "index"
    assert path(fetched=3e4) == "exact"
    assert path(leaf_vector=20) == "exact"
    assert path(tree_start=1e7) == "exact"


def test_filters_used_again_are_cached_within_their_bytes(tmp_path: Path) -> None:
    vectors, _ = clustered(2000, 8)
    tree = {"num_leaves": 20, "leaves_to_search": 5, "dimensions_per_block": 2, "reorder": 30}
    group = np.arange(2000) % 40
    index = load_index(tmp_path, vectors, {"group": group}, parameters=tree, cache_bytes=20_000)
    cached_bytes = []
    for group_number in [0, 0, *range(40), 0]:
        neighbors = find(index, vectors[:1], 5, filter=allow(group=group_number))
        expected = nearest(index, vectors[0], group == group_number, 5)
        assert neighbors.positions.tolist() == expected
        cached_bytes.append(index.compiled.bytes)
    assert cached_bytes[0] < cached_bytes[1], "the vectors are kept when it is requested again"
    assert 0 < max(cached_bytes) <= 20_000
    index.compiled.forget(index)
    assert index.compiled.bytes == 0

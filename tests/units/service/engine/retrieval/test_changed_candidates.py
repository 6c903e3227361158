"""Search among changed candidates whose codes are scanned: lists hold what exact scores find of
what is allowed, in whatever parts the candidates came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from bundle.changes.states import WHOLE, ChangedItem, State, contents_of
from bundle.format.manifest import Distance
from runtime.exact import normalized, rank_exactly
from service.changes.growing_vectors import CODED_BYTES_MIN
from service.changes.store_changes import ChangedCorpus
from service.contract.forms import IdLists
from service.contract.messages import Condition, Filter, RetrievalRequest, Target
from service.engine.computation import completed
from service.engine.execution import Execution
from service.engine.neighbors import Neighbors, Queries, SearchOptions
from service.engine.retrieval import served_search
from service.engine.retrieval.queries import allowed_candidates
from service.versions.version import LoadedIndex, LoadedStore, ServedIndex
from tests.units.service.engine.retrieval.large_index import clustered, load_index

pytestmark = pytest.mark.slow

Vectors = NDArray[np.float32]
DIM = 256
BASE = 3_000
CHANGED = CODED_BYTES_MIN // (4 * DIM) + 3_000
DISTANCES: tuple[Distance, ...] = get_args(Distance)
QUERIES = clustered(12, DIM, seed=2)[0]
VECTORS = np.concatenate([clustered(BASE, DIM)[0], clustered(CHANGED, DIM, seed=3)[0]])
# Zeros have no direction, by which cosine compares.
VECTORS[BASE + 100 :: 1_000] = 0
PERCENT = np.arange(len(VECTORS)) % 100


@pytest.fixture(scope="module", params=[*DISTANCES, "cosine by faiss"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedIndex:
    parameters = {"num_leaves": 20, "leaves_to_search": 20, "dimensions_per_block": 2}
    distance, _, engine = request.param.partition(" by ")
    return load_index(
        tmp_path_factory.mktemp("base"),
        VECTORS[:BASE],
        {"percent": PERCENT[:BASE]},
        distance=distance,
        parameters=parameters | {"reorder": 300},
        engine=engine or None,
    )


class Corpus:
    """The candidates of an index, and their changes, of which each candidate is added once."""

    def __init__(self, base: LoadedIndex, kind: str = "tree_ah") -> None:
        store = base.corpus
        assert isinstance(store, LoadedStore)
        entry = base.entry.model_copy(update={"kind": kind})
        base = replace(base, entry=entry)
        served = ServedIndex("items", entry, store, base, None, base.compiled)
        self.changes = ChangedCorpus(store, {"items": served})
        self.base = base

    def add(self, ids: NDArray[np.int64], has_vectors: bool = True) -> None:
        columns = {"feature:item": pa.array(ids), "attribute:percent": pa.array(PERCENT[ids])}
        vectors = {"items": VECTORS[ids]} if has_vectors else {}
        self._apply(ids, contents_of(columns, vectors, ids.size))

    def delete(self, ids: NDArray[np.int64]) -> None:
        self._apply(ids, [None] * ids.size)

    def _apply(self, ids: NDArray[np.int64], contents: Sequence[str | None]) -> None:
        """Applies states as of the version 1, by the ids of candidates."""
        fields = (WHOLE, None, 1, False, None, 0.0)
        items = [
            ChangedItem.of(key, State(0, "candidates", "items", key, *fields, content), [])
            for key, content in zip(ids.tolist(), contents, strict=True)
        ]
        assert not self.changes.apply(items, 1, lambda _: "")

    def find(self, k: int, queries: Vectors = QUERIES, **options: Any) -> Neighbors:
        _, indexes = self.changes.served()
        index = indexes["items"]
        request = RetrievalRequest(Target(), vectors=queries, **options)
        execution = Execution("retrieve")
        allowed = allowed_candidates(index, request, len(queries), execution)
        search_options = SearchOptions(k, request.exact, request.recall, True, request.filter)
        search = served_search.nearest(index, Queries(queries, allowed), search_options, execution)
        return completed(search)

    def ids(self, neighbors: Neighbors) -> list[list[int]]:
        ids = self.changes.store.ids(neighbors.positions)
        return [part.tolist() for part in np.split(ids, neighbors.offsets[1:-1])]


@pytest.fixture(scope="module")
def grown(base: LoadedIndex) -> Corpus:
    """All candidates were added, some at a time."""
    corpus = Corpus(base)
    for ids in np.split(np.arange(BASE, len(VECTORS)), [1, 5_000, 9_000, 9_100]):
        corpus.add(ids)
        corpus.find(1)
    return corpus


def true(corpus: Corpus, allowed: NDArray[np.bool_], k: int) -> list[list[int]]:
    distance = corpus.base.entry.distance
    queries = normalized(QUERIES) if distance == "cosine" else QUERIES
    (positions,) = allowed.nonzero()
    ranked = [rank_exactly(VECTORS, query, positions, k, distance) for query in queries]
    return [positions.tolist() for positions, _ in ranked]


def recall(lists: list[list[int]], expected: list[list[int]]) -> float:
    pairs = [({*neighbors}, {*wanted}) for neighbors, wanted in zip(lists, expected, strict=True)]
    return sum(len(neighbors & wanted) for neighbors, wanted in pairs) / sum(map(len, expected))


@pytest.mark.parametrize(
    ("k", "share"),
    [
        *((10, 1.0), (2_000, 1.0), (100, 0.97), (1, 0.3)),
        *((10, 0.3), (2_000, 0.3), (10, 0.01), (100, 0.01)),
    ],
)
def test_lists_hold_the_nearest_of_what_matches(grown: Corpus, k: int, share: float) -> None:
    below = round(100 * share)
    options: dict[str, Any] = {}
    if share < 1:
        options["filter"] = Filter({"percent": Condition(lt=below)})
    matching = np.less(PERCENT, below)
    expected = true(grown, matching, k)
    neighbors = grown.find(k, **options)
    lists = grown.ids(neighbors)
    assert [len(ids) for ids in lists] == [len(ids) for ids in expected]
    assert matching[np.concatenate(lists)].all()
    assert recall(lists, expected) >= 0.98
    assert neighbors.explanations[0].matches == np.count_nonzero(matching)

    assert grown.ids(grown.find(k, exact=True, **options)) == expected
    alone = grown.find(k, QUERIES[:1], **options)
    assert grown.ids(alone)[0] == lists[0]
    nearest = lists[0][:5]
    rest = grown.find(k, exclude_ids=IdLists(np.array(nearest)), **options)
    assert {*nearest}.isdisjoint(np.concatenate(grown.ids(rest)).tolist())


def test_lists_are_those_of_the_same_candidates_added_at_once(
    grown: Corpus, base: LoadedIndex
) -> None:
    at_once = Corpus(base)
    at_once.add(np.arange(BASE, len(VECTORS)))
    for k in (10, 100):
        neighbors = at_once.find(k)
        expected = grown.find(k)
        assert neighbors.positions.tolist() == expected.positions.tolist()
        assert neighbors.scores.tobytes() == expected.scores.tobytes()
        assert neighbors.explanations[0].scored < CHANGED / 2, "their codes were not scanned"


def test_deleted_and_replaced_candidates_are_not_found_and_the_nearest_others_are(
    base: LoadedIndex,
) -> None:
    corpus = Corpus(base)
    changed = np.arange(BASE, len(VECTORS))
    corpus.add(changed)
    is_live = np.ones(len(VECTORS), bool)
    for number in range(2):
        is_deleted = changed % 5 == number
        corpus.delete(changed[is_deleted])
        is_live[changed[is_deleted]] = False
        corpus.add(changed[changed % 50 == 9])
        for k in (10, 100):
            lists = corpus.ids(corpus.find(k))
            assert is_live[np.concatenate(lists)].all()
            assert [len({*ids}) for ids in lists] == [k] * len(QUERIES)
            assert recall(lists, true(corpus, is_live, k)) >= 0.98


def test_vectors_of_ended_candidates_change_no_list(base: LoadedIndex) -> None:
    ids = np.arange(BASE, len(VECTORS))
    is_deleted = ids % 4 == 1
    lists = []
    for factor in (0.0, 3.0):
        corpus = Corpus(base)
        vectors = np.where(is_deleted[:, np.newaxis], factor * VECTORS[ids], VECTORS[ids])
        corpus.add(ids[~is_deleted & (ids % 2 == 0)])
        corpus.add(ids, has_vectors=False)
        positions = corpus.changes.store.positions(ids)
        corpus.changes.embed("items", positions, vectors.astype(np.float32))
        corpus.changes.note_embedded(ids, np.ones(ids.size, bool))
        corpus.delete(ids[is_deleted])
        corpus.find(1)
        lists.append([corpus.ids(corpus.find(k)) for k in (1, 10, 100)])
    assert lists[0] == lists[1]
    assert ids[~is_deleted][0] <= np.max(lists[0][2])


def test_candidates_without_vectors_are_in_no_list(base: LoadedIndex) -> None:
    corpus = Corpus(base)
    corpus.add(np.arange(BASE, len(VECTORS)), has_vectors=False)
    in_bundle = np.arange(len(VECTORS)) < BASE
    for k in (1, 10, 100):
        lists = corpus.ids(corpus.find(k))
        assert [len(ids) for ids in lists] == [k] * len(QUERIES)
        assert recall(lists, true(corpus, in_bundle, k)) >= 0.98
    assert corpus.ids(corpus.find(10, exact=True)) == true(corpus, in_bundle, 10)


def test_index_of_exact_search_stays_exact(base: LoadedIndex) -> None:
    corpus = Corpus(base, "brute_force")
    corpus.add(np.arange(BASE, len(VECTORS)))
    _, indexes = corpus.changes.served()
    assert indexes["items"].added is not None
    assert indexes["items"].added.codes is None

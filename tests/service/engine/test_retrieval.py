"""Neighbors by features, vectors and ids, against the reference model in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError, UnknownCandidate
from service.engine.requests import Exclusion, Retrieved
from service.errors import InvalidArgument, NotFound, TooLarge, Unimplemented
from tests.service import oracles
from tests.service.engine.served import Served, column

Load = Callable[..., Served]
ONES = np.ones(8, np.float32)
ID = np.array([1000])


def check(answer: Retrieved, query: int, expected: list[tuple[Any, float]]) -> None:
    first, last = answer.neighbors.offsets[query : query + 2]
    assert answer.neighbors.ids[first:last].tolist() == [movie for movie, _ in expected]
    np.testing.assert_allclose(answer.neighbors.scores[first:last], [score for _, score in expected], 1e-5, 1e-5)


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_retrieve_by_features_finds_the_nearest_of_each_query(load: Load, id_kind: str) -> None:
    service = load(id_kind=id_kind)
    small = service.small
    movies = small.ids.tolist()
    stranger = 999 if id_kind == "int64" else "m-999"
    history = column(movies[3], movies[4], stranger, movies[9], offsets=[0, 3, 3, 4])
    features = {"user": column(4, 7, 11), "history": history, "city": column("oslo", "bonn", "lima")}
    answer = service.retrieve(features={**features, "hour": column(0.5, 2.0, 23.0)}, k=5)

    assert (answer.model, answer.version, answer.searched) == ("movies", 1, 40)
    expected = [
        oracles.query_vector(small, 4, [movies[3], movies[4], stranger], "oslo", 0.5),
        oracles.query_vector(small, 7, [], "bonn", 2.0),
        oracles.query_vector(small, 11, [movies[9]], "lima", 23.0),
    ]
    for query, vector in enumerate(expected):
        check(answer, query, oracles.neighbors(small, vector, 5))


def test_retrieve_with_defaults_only_for_what_is_left_out(load: Load) -> None:
    service = load()
    answer = service.retrieve(features={"user": column(3)})
    check(answer, 0, oracles.neighbors(service.small, oracles.query_vector(service.small, 3), 10))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_retrieve_by_vectors_takes_them_flat_or_not(load: Load, exact: bool, flat: bool) -> None:
    service = load()
    vectors = np.random.default_rng(3).normal(size=(2, 8)).astype(np.float32)
    answer = service.retrieve(vectors=vectors.reshape(-1) if flat else vectors, k=7, exact=exact)
    for query in range(2):
        check(answer, query, oracles.neighbors(service.small, vectors[query].astype(np.float64), 7))


def test_retrieve_by_id_uses_the_stored_vector_and_leaves_itself_out(load: Load) -> None:
    service = load()
    asked = [5, 0]
    answer = service.retrieve(ids=service.small.ids[asked], k=4)
    for query, place in enumerate(asked):
        vector = service.small.vectors[place].astype(np.float64)
        check(answer, query, oracles.neighbors(service.small, vector, 4, [service.small.ids[place]]))


def test_retrieve_by_id_sent_as_decimal_string_is_the_integer(load: Load) -> None:
    service = load()
    as_text = service.retrieve(ids=np.array([str(service.small.ids[5])], object), k=4)
    assert as_text.neighbors.ids.tolist() == service.retrieve(ids=service.small.ids[5:6], k=4).neighbors.ids.tolist()


def test_retrieve_excluding_for_all_queries_still_returns_k(load: Load) -> None:
    service = load()
    small = service.small
    vectors = np.random.default_rng(4).normal(size=(3, 8)).astype(np.float32)
    excluded = [*small.ids[:25].tolist(), 123456]
    answer = service.retrieve(vectors=vectors, k=10, exclude=Exclusion(np.array(excluded)))
    for query in range(3):
        check(answer, query, oracles.neighbors(small, vectors[query].astype(np.float64), 10, excluded))


def test_retrieve_excluding_by_query_keeps_the_others_whole(load: Load) -> None:
    service = load()
    small = service.small
    vectors = np.random.default_rng(5).normal(size=(3, 8)).astype(np.float32)
    ids = np.concatenate([small.ids[:38], small.ids[:2], small.ids[:2]])
    exclude = Exclusion(ids, np.array([0, 38, 38, 42]))
    answer = service.retrieve(vectors=vectors, k=6, exclude=exclude)
    assert np.diff(answer.neighbors.offsets).tolist() == [2, 6, 6]
    ids_by_query: list[list[Any]] = [small.ids[:38].tolist(), [], small.ids[:2].tolist()]
    for query, excluded in enumerate(ids_by_query):
        check(answer, query, oracles.neighbors(small, vectors[query].astype(np.float64), 6, excluded))


def test_retrieve_excluding_everything_returns_nothing(load: Load) -> None:
    service = load()
    small = service.small
    answer = service.retrieve(vectors=ONES, exclude=Exclusion(small.ids), attributes=("title",))
    assert answer.neighbors.offsets.tolist() == [0, 0]
    assert answer.neighbors.attributes == {"title": []}


def test_retrieve_from_a_tree_that_searches_few_leaves_still_returns_k(load: Load) -> None:
    tree = {"num_leaves": 20, "leaves_to_search": 1, "dimensions_per_block": 2, "reorder": 10}
    service = load(size=400, index_kind="tree_ah", parameters=tree)
    vectors = np.random.default_rng(6).normal(size=(4, 8)).astype(np.float32)
    found, _ = service.version.indexes["movies"].approximate.search(vectors, 200)
    assert (found < 0).any(), "the tree alone finds too few, else this test shows nothing"

    excluded = service.small.ids[::2]
    answer = service.retrieve(vectors=vectors, k=150, exclude=Exclusion(excluded))
    assert np.diff(answer.neighbors.offsets).tolist() == [150] * 4
    assert not set(answer.neighbors.ids.tolist()) & set(excluded.tolist())
    for query in range(4):
        first, last = answer.neighbors.offsets[query : query + 2]
        assert len(set(answer.neighbors.ids[first:last].tolist())) == 150
        assert (np.diff(answer.neighbors.scores[first:last]) <= 0).all()


def test_retrieve_more_than_there_are_returns_all(load: Load) -> None:
    service = load()
    answer = service.retrieve(vectors=ONES, k=1000)
    assert sorted(answer.neighbors.ids.tolist()) == sorted(service.small.ids.tolist())


def test_retrieve_with_attributes_returns_those_of_each_neighbor(load: Load) -> None:
    service = load()
    answer = service.retrieve(vectors=ONES, k=40, attributes=("title", "year", "genres"))
    places = [service.small.ids.tolist().index(each) for each in answer.neighbors.ids.tolist()]
    assert answer.neighbors.attributes["title"] == [service.small.titles[place] for place in places]
    assert answer.neighbors.attributes["genres"] == [list(service.small.genres[place]) for place in places]
    assert answer.neighbors.attributes["year"] == [None if place == 1 else 1990 + place for place in places]


def test_retrieve_many_queries_with_one_long_exclusion_searches_in_bounded_blocks(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = load()
    small = service.small
    monkeypatch.setattr("service.engine.retrieval._CELLS_MAX", 60)
    vectors = np.random.default_rng(8).normal(size=(9, 8)).astype(np.float32)
    exclude = Exclusion(small.ids[:30], np.array([0, 0, 0, 0, 0, 30, 30, 30, 30, 30]))
    answer = service.retrieve(vectors=vectors, k=5, exclude=exclude)
    for query in range(9):
        excluded = list(small.ids[:30]) if query == 4 else []
        check(answer, query, oracles.neighbors(small, vectors[query].astype(np.float64), 5, excluded))


def test_retrieve_with_a_filter_is_unimplemented(load: Load) -> None:
    with pytest.raises(Unimplemented, match="filter"):
        load().retrieve(vectors=ONES, filter={"year": 1990})


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        ({}, InvalidArgument, "exactly one of features .or context ids., vectors and ids; got none"),
        ({"vectors": ONES, "ids": np.array([1000])}, InvalidArgument, "got vectors, ids"),
        ({"vectors": np.ones(7)}, InvalidArgument, r"shape \[7\]; \[n, 8\] float32"),
        ({"vectors": np.ones((2, 4))}, InvalidArgument, r"shape \[2, 4\]"),
        ({"vectors": np.empty(0)}, InvalidArgument, "holds no query"),
        ({"vectors": np.array([1.0] * 9 + [np.nan] + [1.0] * 6)}, InvalidArgument, "vector 1 holds NaN"),
        ({"vectors": np.full(8, 1e300)}, InvalidArgument, "vector 0 holds NaN or an infinity"),
        ({"vectors": np.ones(8 * 9)}, TooLarge, r"9 queries in one request; at most 8 .*max_queries"),
        ({"vectors": ONES, "k": -1}, InvalidArgument, "k is -1"),
        ({"vectors": ONES, "k": 2_000_000_000}, InvalidArgument, r"k is 2000000000; 1 to 1000 .*max_k"),
        ({"vectors": ONES, "index": "books"}, NotFound, "no index 'books'; it has 'movies'"),
        ({"vectors": ONES, "attributes": ("titel",)}, InvalidArgument, "'titel' .* did you mean 'title'"),
        ({"ids": np.array([1000, 4])}, InvalidArgument, "candidate 4 is not in corpus 'movies' of 40"),
        ({"ids": np.array(["x"], object)}, UnknownCandidate, "'x'"),
        ({"ids": np.arange(60)}, TooLarge, "60 values and ids in one request; at most 50"),
        ({"features": {"usr": column(1)}}, InvalidArgument, "'usr' .* did you mean 'user'"),
        ({"features": {"movie": column(1000), "user": column(1)}}, InvalidArgument, "'movie' is not taken by"),
        ({"features": {}}, FeatureError, "'user'.*must be sent"),
        ({"features": {"user": column(1.5)}}, FeatureError, "'user'"),
        ({"features": {"user": column(1, 2), "hour": column(0.5)}}, FeatureError, "'hour'"),
        ({"features": {"user": column(1), "hour": column(float("nan"))}}, FeatureError, "'hour'"),
        (
            {"vectors": ONES, "exclude": Exclusion(np.array([1000]), np.array([0, 1, 1]))},
            InvalidArgument,
            "exclude: 3 offsets; 2 are expected",
        ),
        (
            {"vectors": ONES, "exclude": Exclusion(np.array([1000]), np.array([0, 2]))},
            InvalidArgument,
            "exclude: offsets must",
        ),
        ({"vectors": ONES, "exclude": Exclusion(np.array(["x"], object))}, UnknownCandidate, "'x'"),
    ],
)
def test_retrieve_invalid_request_is_rejected_with_what_is_wrong(
    load: Load, request_: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load({"max_queries": 8, "max_values": 50}).retrieve(**request_)

"""Every call against a running service, by every client and transport: as computed by numpy, and
the same by all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rowcast_client import (
    Client,
    Column,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Retries,
    RowcastError,
    TooLarge,
    calls,
    where,
)
from rowcast_client.calls import Call
from rowcast_client.sources import Source

from tests.bundles.small import SmallBundle
from tests.models import linear
from tests.units.client.conftest import RunningService
from tests.units.client.servers import WAYS

USER = 7
HOUR = 0.5
ONCE = Retries(attempts_max=1)
FEATURES = {"user": USER, "history": [1007, 1021], "city": "nowhere", "hour": HOUR}
OTHER = {"user": 8, "history": [], "city": "nowhere", "hour": 0.25}


def same_by_all_ways(service: RunningService, call: Call[Any]) -> Any:
    """Returns the result of a call, once it is known to be the same whichever way it was sent."""
    results = [way.send(service.url(way), call, retries=ONCE) for way in WAYS]
    for way, result in zip(WAYS, results, strict=True):
        assert plain(result) == plain(results[0]), way
    return results[0]


def plain(value: Any) -> Any:
    """Returns a result as nested plain values with its dtypes, to be compared bit by bit."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tolist())
    if isinstance(value, dict):
        return {name: plain(element) for name, element in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return [plain(element) for element in value] if isinstance(value, (list, tuple)) else value


def query_vector(bundle: SmallBundle, features: dict[str, Any]) -> NDArray[np.float64]:
    """What the query tower makes of features whose city is the default."""
    positions = [bundle.ids.tolist().index(movie) for movie in features["history"]]
    rows = bundle.tables["movies"][[1 + position for position in positions]]
    city = same_city(bundle)
    inputs = {
        "user": bundle.tables["users"][[features["user"]]],
        "history": (rows.mean(axis=0) if len(rows) else np.zeros(8))[None],
        "city": city[None],
        "hour": np.array([features["hour"]]),
    }
    vector: NDArray[np.float64] = linear.formula("query", bundle.edition, inputs)["vector"][0]
    return vector


def same_city(bundle: SmallBundle) -> NDArray[np.float32]:
    """The row of the default city, by the hash that the bundle's id rule names."""
    import farmhash

    row: NDArray[np.float32] = bundle.tables["cities"][
        farmhash.fingerprint64("nowhere") % len(bundle.tables["cities"])
    ]
    return row


def test_retrieve_by_features_finds_the_nearest_with_their_attributes(
    service: RunningService,
) -> None:
    attributes = ["title", "year", "rating", "genres"]
    call = calls.retrieve(FEATURES, k=5, attributes=attributes, model="movies")
    result = same_by_all_ways(service, call)
    expected = service.movies.vectors @ query_vector(service.movies, FEATURES)
    best = np.argsort(-expected)[:5]
    assert (result.model, result.version, result.searched) == ("movies", 2, 40)
    assert len(result) == 1
    assert [neighbor.id for neighbor in result[0]] == service.movies.ids[best].tolist()
    np.testing.assert_allclose(result[0].scores, expected[best], rtol=1e-4, atol=1e-4)
    for neighbor, position in zip(result[0], best, strict=True):
        assert neighbor.attributes["title"] == service.movies.titles[position]
        assert neighbor.attributes["year"] == (None if position == 1 else 1990 + position)
        assert neighbor.attributes["rating"] == position / 4
        assert neighbor.attributes["genres"] == list(service.movies.genres[position])


def test_retrieve_of_several_queries_returns_results_in_their_order(
    service: RunningService,
) -> None:
    together = same_by_all_ways(service, calls.retrieve([FEATURES, OTHER], k=4, model="movies"))
    for features, neighbors in zip((FEATURES, OTHER), together, strict=True):
        alone = same_by_all_ways(service, calls.retrieve(features, k=4, model="movies"))
        assert neighbors.ids.tolist() == alone[0].ids.tolist()
        np.testing.assert_allclose(neighbors.scores, alone[0].scores, rtol=1e-6)


def test_retrieve_with_exclusions_never_returns_them(service: RunningService) -> None:
    free = same_by_all_ways(service, calls.retrieve([FEATURES, OTHER], k=3, model="movies"))
    excluded_ids = [neighbors.ids.tolist() for neighbors in free]
    call = calls.retrieve([FEATURES, OTHER], k=3, exclude_ids=excluded_ids, model="movies")
    for neighbors, gone in zip(same_by_all_ways(service, call), excluded_ids, strict=True):
        assert len(neighbors) == 3
        assert not set(neighbors.ids.tolist()) & set(gone)
    call = calls.retrieve([FEATURES, OTHER], k=3, exclude_ids=excluded_ids[0], model="movies")
    for neighbors in same_by_all_ways(service, call):
        assert not set(neighbors.ids.tolist()) & set(excluded_ids[0])


def test_retrieve_by_vectors_and_by_ids_finds_the_nearest(service: RunningService) -> None:
    vectors = service.movies.vectors[[3, 9]]
    by_vector = same_by_all_ways(
        service, calls.retrieve(vectors=vectors[:, None], k=3, exact=True, model="movies")
    )
    expected = np.argsort(-(service.movies.vectors @ vectors.T.astype(np.float64)), axis=0)[:3].T
    assert [neighbors.ids.tolist() for neighbors in by_vector] == service.movies.ids[
        expected
    ].tolist()
    ids = service.movies.ids[[3, 9]].tolist()
    by_id = same_by_all_ways(
        service, calls.retrieve(ids=[[movie] for movie in ids], k=3, model="movies")
    )
    for query_id, neighbors in zip(ids, by_id, strict=True):
        assert query_id not in neighbors.ids.tolist()
        assert len(neighbors) == 3


def test_retrieve_with_a_filter_finds_the_nearest_that_match_and_explains(
    service: RunningService,
) -> None:
    wanted = (
        where("genres").any_of("comedy", "drama")
        & where("genres").none_of("horror")
        & where("year").at_least(2000)
    )
    call = calls.retrieve(
        FEATURES, k=40, filter=wanted, attributes=["genres", "year"], model="movies", explain=True
    )
    with Client(service.grpc) as client:
        result = client.send(call)
        every = client.retrieve(FEATURES, k=40, attributes=["genres", "year"], model="movies")

    def matches(genres: list[str] | None, year: int | None) -> bool:
        allowed = bool({"comedy", "drama"} & {*(genres or ())}) and "horror" not in (genres or ())
        return allowed and year is not None and year >= 2000

    expected = [
        neighbor.id
        for neighbor in every[0]
        if matches(neighbor.attributes["genres"], neighbor.attributes["year"])
    ]
    assert result[0].ids.tolist() == expected
    (explained,) = result.explanations
    assert 0 < len(expected) < 20
    assert (explained.matches, explained.selectivity) == (len(expected), len(expected) / 40)
    assert "candidates pass the filter" in explained.shortfall


def test_retrieve_with_several_queries_merges_them_by_all_ways(service: RunningService) -> None:
    several = [[1007, 1021], [1028]]
    result = same_by_all_ways(service, calls.retrieve(ids=several, k=3, model="movies"))
    for merged, ids in zip(result, several, strict=True):
        alone = same_by_all_ways(
            service,
            calls.retrieve(ids=[[movie] for movie in ids], k=40, exclude_ids=ids, model="movies"),
        )
        best: dict[int | str, float] = {}
        for scored in (neighbor for neighbors in alone for neighbor in neighbors):
            best[scored.id] = max(scored.score, best.get(scored.id, scored.score))
        assert merged.ids.tolist() == sorted(best, key=lambda movie: -best[movie])[:3]
    vectors = [service.movies.vectors[[1, 3]], service.movies.vectors[[4]]]
    by_vectors = same_by_all_ways(
        service, calls.retrieve(vectors=vectors, exclude_ids=several, k=3, model="movies")
    )
    assert [neighbors.ids.tolist() for neighbors in by_vectors] == [
        neighbors.ids.tolist() for neighbors in result
    ]


def test_retrieve_of_string_candidates_returns_strings(service: RunningService) -> None:
    features = {"user": USER, "history": ["m-3", "m-5"]}
    result = same_by_all_ways(
        service, calls.retrieve(features, k=3, exclude_ids=["m-1"], model="named")
    )
    assert all(isinstance(neighbor.id, str) for neighbor in result[0])
    ranked = same_by_all_ways(service, calls.rank({"user": USER}, result[0].ids, model="named"))
    assert ranked[0].ids is not None
    assert ranked[0].ids.tolist() == result[0].ids.tolist()


def test_rank_scores_candidates_in_the_order_sent(service: RunningService) -> None:
    positions = [4, 11, 2]
    candidates = service.movies.ids[positions].tolist()
    context = {
        "user": USER,
        "liked": ([1007, 1014], [0.5, 2.0]),
        "recent": [1000],
        "hour": HOUR,
        "mood": [0.1, -0.2],
    }
    call = calls.rank(context, candidates, heads=["watch", "rating"], model="movies")
    result = same_by_all_ways(service, call)
    movies = service.movies.tables["movies"]
    genres = service.movies.tables["genres"]
    recent = np.zeros((3, 8))
    recent[0] = movies[1]
    names = ("comedy", "drama", "action", "horror", "other")
    inputs = {
        "user": np.repeat(service.movies.tables["users"][[USER]], 3, axis=0),
        "liked": np.repeat([0.5 * movies[2] + 2.0 * movies[3]], 3, axis=0),
        "recent": np.repeat([recent], 3, axis=0),
        "hour": np.full(3, HOUR),
        "mood": np.repeat([[0.1, -0.2]], 3, axis=0),
        "movie": movies[[1 + position for position in positions]],
        "genres": np.array(
            [
                genres[[names.index(genre) for genre in service.movies.genres[position]]].sum(
                    axis=0
                )
                for position in positions
            ]
        ),
        "year": service.movies.years[positions],
    }
    expected = linear.formula("ranking", service.movies.edition, inputs)
    assert result[0].ids.tolist() == candidates
    assert [candidate.position for candidate in result[0]] == [0, 1, 2]
    np.testing.assert_allclose(result[0].scores, expected["score"], rtol=1e-4, atol=1e-4)
    for name in ("watch", "rating"):
        np.testing.assert_allclose(result[0].heads[name], expected[name], rtol=1e-4, atol=1e-4)


def test_rank_with_k_returns_the_best_first(service: RunningService) -> None:
    candidates = service.movies.ids[:10].tolist()
    every = same_by_all_ways(service, calls.rank({"user": USER}, candidates, model="movies"))
    best = same_by_all_ways(service, calls.rank({"user": USER}, candidates, k=3, model="movies"))
    order = np.argsort(-every[0].scores, kind="stable")[:3]
    assert best[0].positions.tolist() == order.tolist()
    assert best[0].scores.tolist() == every[0].scores[order].tolist()


def test_rank_of_several_contexts_returns_results_in_their_order(service: RunningService) -> None:
    lists = [service.movies.ids[:4].tolist(), service.movies.ids[7:9].tolist()]
    contexts = [{"user": 7, "liked": [1007]}, {"user": 8, "liked": []}]
    together = same_by_all_ways(service, calls.rank(contexts, lists, model="movies"))
    for context, candidates, ranked in zip(contexts, lists, together, strict=True):
        alone = same_by_all_ways(service, calls.rank(context, candidates, model="movies"))
        assert ranked.ids.tolist() == candidates
        np.testing.assert_allclose(ranked.scores, alone[0].scores, rtol=1e-6)


def test_rank_of_candidates_given_by_features_equals_that_of_their_ids(
    service: RunningService,
) -> None:
    positions = [1, 6]
    features = {
        "movie": service.movies.ids[positions],
        "genres": [list(service.movies.genres[position]) for position in positions],
        "year": service.movies.years[positions],
    }
    by_features = same_by_all_ways(
        service, calls.rank({"user": USER}, candidate_features=features, model="movies")
    )
    by_id = same_by_all_ways(
        service, calls.rank({"user": USER}, service.movies.ids[positions], model="movies")
    )
    assert by_features[0].ids is None
    assert by_features[0].scores.tolist() == by_id[0].scores.tolist()


def test_recommend_ranks_what_it_retrieves(service: RunningService) -> None:
    features = {**FEATURES, "liked": ([1007], [2.0])}
    call = calls.recommend(features, k=4, pool_size=12, attributes=["title"], model="movies")
    result = same_by_all_ways(service, call)
    retrieved = same_by_all_ways(service, calls.retrieve(FEATURES, k=12, model="movies"))
    context = {name: value for name, value in features.items() if name in ("user", "liked", "hour")}
    ranked = same_by_all_ways(service, calls.rank(context, retrieved[0].ids, k=4, model="movies"))
    assert result[0].ids.tolist() == ranked[0].ids.tolist()
    np.testing.assert_allclose(result[0].scores, ranked[0].scores, rtol=1e-5)
    retrieval = dict(zip(retrieved[0].ids.tolist(), retrieved[0].scores.tolist(), strict=True))
    assert [neighbor.retrieval_score for neighbor in result[0]] == [
        retrieval[neighbor.id] for neighbor in result[0]
    ]


def test_recommend_tells_the_source_of_each_neighbor(service: RunningService) -> None:
    movies = service.movies.ids.tolist()
    listed = [movies[:3], movies[3:5]]
    recent: Source = {"name": "recent", "ids": listed, "min_count": 2}
    call = calls.recommend(
        [FEATURES, OTHER],
        k=4,
        sources=[{"index": "movies", "pool_size": 6}, recent],
        model="movies",
    )
    result = same_by_all_ways(service, call)
    for neighbors, movies_of_request in zip(result, listed, strict=True):
        assert len(neighbors) == 4
        assert [neighbor.source for neighbor in neighbors] == neighbors.sources
        of_source = [neighbor.id for neighbor in neighbors if neighbor.source == "recent"]
        assert set(of_source) <= set(movies_of_request)


def test_recommend_keeps_what_the_stage_finds_best(service: RunningService) -> None:
    every = service.movies.ids
    context = {"user": 7}
    rated = same_by_all_ways(
        service, calls.rank(context, every, k=6, tower="quick", model="movies")
    )
    ranked = same_by_all_ways(service, calls.rank(context, rated[0].ids, k=4, model="movies"))
    staged = calls.recommend(context, k=4, keep=6, model="movies")
    assert same_by_all_ways(service, staged)[0].ids.tolist() == ranked[0].ids.tolist()
    ranked = same_by_all_ways(service, calls.rank(context, every, k=4, model="movies"))
    whole = calls.recommend(context, k=4, skip_stage=True, model="movies")
    assert same_by_all_ways(service, whole)[0].ids.tolist() == ranked[0].ids.tolist()
    (stage,) = same_by_all_ways(service, calls.model("movies")).stages
    assert (stage.before, stage.tower, stage.keep, stage.recall_k) == ("ranking", "quick", 60, 0)


def test_embed_and_lookup_return_vectors_and_rows(service: RunningService) -> None:
    embedded = same_by_all_ways(
        service, calls.embed([FEATURES, OTHER], tower="query", model="movies")
    )
    expected = [query_vector(service.movies, features) for features in (FEATURES, OTHER)]
    np.testing.assert_allclose(embedded.vectors, expected, rtol=1e-4, atol=1e-4)
    rows = same_by_all_ways(service, calls.lookup("user", [3, 10**9], model="movies"))
    assert rows.vectors[0].tolist() == service.movies.tables["users"][3].tolist()
    assert rows.vectors[1].tolist() == service.movies.tables["users"][0].tolist()
    assert (rows.found.tolist(), rows.table) == ([True, False], "users")


def test_packed_columns_are_the_same_requests_as_lists(service: RunningService) -> None:
    packed = {
        "user": Column(np.array([7, 8])),
        "history": Column(np.array([1007, 1021]), np.array([0, 2, 2])),
        "city": Column(["nowhere", "nowhere"]),
        "hour": Column(np.array([0.5, 0.25])),
    }
    result = same_by_all_ways(service, calls.embed(packed, tower="query", model="movies"))
    listed = same_by_all_ways(
        service, calls.embed([FEATURES, OTHER], tower="query", model="movies")
    )
    assert result.vectors.tolist() == listed.vectors.tolist()


def test_models_and_model_return_the_same_by_all_ways(service: RunningService) -> None:
    states = same_by_all_ways(service, calls.models())
    versions = [state.versions[0] for state in states]
    assert [state.name for state in states] == ["movies", "named"]
    assert [(version.version, version.state) for version in versions] == [
        (2, "available"),
        (1, "available"),
    ]
    assert all(version.current and version.memory_bytes > 0 for version in versions)
    details = same_by_all_ways(service, calls.model("movies"))
    assert (details.model, details.version) == ("movies", 2)
    assert {call.call for call in details.calls} == {"retrieve", "rank", "recommend", "embed"}
    assert same_by_all_ways(service, calls.model("movies", version=2)) == details


REJECTED: list[tuple[Call[Any], type[RowcastError]]] = [
    (calls.embed({"user": 1}, tower="query", model="nobody"), NotFound),
    (calls.embed({"user": 1}, tower="query", model="movies", version=99), NotFound),
    (calls.embed({"user": 1}, tower="query", model="movies", label="no such"), NotFound),
    (calls.embed({"user": 1}, tower="nothing", model="movies"), NotFound),
    (calls.embed({"usr": 1}, tower="query", model="movies"), InvalidArgument),
    (calls.embed({"user": 0.5}, tower="query", model="movies"), InvalidArgument),
    (calls.embed({"user": [1, 2]}, tower="query", model="movies"), InvalidArgument),
    (calls.embed({"user": 1}, model="movies"), InvalidArgument),
    (calls.retrieve({"user": 1}, k=-1, model="movies"), InvalidArgument),
    (calls.retrieve({"user": 1}, k=100_000, model="movies"), InvalidArgument),
    (calls.retrieve({"user": 1}, attributes=["nothing"], model="movies"), InvalidArgument),
    (calls.retrieve(ids=[5], model="movies"), InvalidArgument),
    (calls.retrieve(vectors=[1.0, 2.0], model="movies"), InvalidArgument),
    (calls.retrieve({"user": 1}), InvalidArgument),
    (calls.rank({"user": 1}, [5], model="movies"), InvalidArgument),
    (calls.rank({"user": 1}, [1000], heads=["nothing"], model="movies"), InvalidArgument),
    (calls.rank({"user": 1}, list(range(50_000)), model="movies"), TooLarge),
    (calls.lookup("nothing", [1], model="movies"), NotFound),
    (calls.lookup("user", ["a"], model="movies"), InvalidArgument),
    (calls.model("nobody"), NotFound),
]


@pytest.mark.parametrize(
    ("call", "kind"), REJECTED, ids=lambda parameter: getattr(parameter, "method", "")
)
def test_rejected_calls_raise_the_same_error_by_all_ways(
    service: RunningService, call: Call[Any], kind: type[RowcastError]
) -> None:
    raised = {}
    for way in WAYS:
        with pytest.raises(RowcastError) as caught:
            way.send(service.url(way), call, retries=ONCE)
        raised[str(way)] = (type(caught.value), caught.value.code)
        assert caught.value.message
    assert set(raised.values()) == {(kind, kind.code)}, raised


def test_call_out_of_time_ends_with_the_deadline_by_all_ways(service: RunningService) -> None:
    candidates = np.tile(service.movies.ids, 400)
    call = calls.rank({"user": 1}, candidates, model="movies", timeout_s=0.001)
    for way in WAYS:
        with pytest.raises(DeadlineExceeded) as caught:
            way.send(service.url(way), call, retries=ONCE)
        assert caught.value.code == "DEADLINE", way


def test_request_id_comes_back_with_the_services_error(service: RunningService) -> None:
    for way in WAYS:
        with pytest.raises(NotFound) as caught:
            way.send(service.url(way), calls.model("nobody", request_id="shop-17/b"))
        assert caught.value.request_id == "shop-17/b", way


def test_ids_that_do_not_exist_are_skipped_by_all_ways(service: RunningService) -> None:
    skipping: Any = {"model": "movies", "not_found": "skip"}
    ranked = same_by_all_ways(service, calls.rank({"user": USER}, [1, 1007, 2, 1014], **skipping))
    np.testing.assert_array_equal(ranked[0].ids, [1007, 1014])
    assert ranked[0].positions.tolist() == [1, 3]
    assert plain(ranked.not_found) == [("<i8", (2,), [1, 2])]
    retrieved = same_by_all_ways(service, calls.retrieve(ids=[[1], [1007, 2]], **skipping))
    assert [len(neighbors) for neighbors in retrieved] == [0, 10]
    assert [ids.tolist() for ids in retrieved.not_found] == [[1], [2]]
    looked_up = same_by_all_ways(service, calls.lookup("movie", [1, 1007], **skipping))
    assert looked_up.not_found.tolist() == [1]


def test_rowcast_shows_ids_that_do_not_exist(
    service: RunningService, rowcast: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        options = ("--url", service.http, "--model", "movies", "--not-found", "skip")
        assert rowcast(*arguments, *options) == 0
        return capsys.readouterr().out

    rank = ("rank", "-f", "user=7", "-c", "1,1007,2")
    assert "not found: 1, 2" in run(*rank)
    assert json.loads(run(*rank, "--json"))["not_found"] == [1, 2]
    assert "not found: 1" in run("retrieve", "--ids", "1")
    lookup = ("lookup", "-f", "movie", "1007", "1")
    assert "no" in run(*lookup)
    assert json.loads(run(*lookup, "--json"))["not_found"] == [1]


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_rowcast_prints_recommendations_with_titles(
    service: RunningService,
    transport: str,
    rowcast: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*arguments: str) -> str:
        assert rowcast(*arguments, "--url", getattr(service, transport)) == 0
        return capsys.readouterr().out

    features = (
        "--feature=user=7",
        "--feature=history=1007,1021",
        "--feature=city=nowhere",
        "--feature=hour=0.5",
    )
    of_movies = ("--model", "movies")
    expected = same_by_all_ways(
        service, calls.retrieve(FEATURES, k=3, attributes=["title"], model="movies")
    )
    printed = run("retrieve", *features, "-k", "3", "--attribute", "title", *of_movies)
    for neighbor in expected[0]:
        assert neighbor.attributes["title"] in printed
        assert f"{neighbor.score:.4f}" in printed
    as_json = json.loads(
        run("retrieve", *features, "-k", "3", "--attribute", "title", *of_movies, "--json")
    )
    assert as_json["ids"] == expected[0].ids.tolist()
    assert "movies" in run("models")
    assert "history" in run("model", "movies")
    assert "1014" in run("rank", "-f", "user=7", "--candidate-ids", "1007,1014", *of_movies)
    assert "retrieval score" in run("recommend", *features, "-k", "2", *of_movies)
    assert "dim" in run("embed", "--tower", "query", *features, *of_movies)
    assert "yes" in run("lookup", "--feature", "user", "5", "6", *of_movies)

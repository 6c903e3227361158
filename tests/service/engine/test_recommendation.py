"""Retrieve, then rank, against an oracle that does both by loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.engine.requests import Exclusion, Recommendation, Recommended, Target
from service.errors import InvalidArgument, NotFound, TooLarge
from tests.service import oracles
from tests.service.running import CALL, Running, column
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]


def recommend(service: Running, **request: Any) -> Recommended:
    return service.ask(service.engine.recommend(Recommendation(Target(), **request), CALL))


def expected(
    small: SmallBundle,
    user: int,
    history: list[Any],
    mood: tuple[float, float],
    fetched: int,
    k: int,
    excluded: Any = (),
) -> list[tuple[Any, float, float]]:
    """(id, ranking score, retrieval score), best first."""
    near = oracles.neighbors(small, oracles.query_vector(small, user, history), fetched, excluded)
    rows = [(movie, oracles.ranked(small, movie, user, mood=mood)["score"], score) for movie, score in near]
    return sorted(rows, key=lambda row: -row[1])[:k]


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_recommend_ranks_what_was_retrieved_and_keeps_both_scores(write: Write, run: Run, id_kind: str) -> None:
    small = write(id_kind=id_kind)
    movies = small.ids.tolist()
    features = {
        "user": column(2, 9),
        "history": column(*movies[:3], offsets=[0, 3, 3]),
        "mood": column(0.5, -0.5, 2.0, 1.0),
    }
    exclude = Exclusion(small.ids[:4], np.array([0, 0, 4]))
    answer = recommend(run(), features=features, k=3, candidates=12, exclude=exclude, attributes=("title",))
    assert answer.neighbors.offsets.tolist() == [0, 3, 6]
    rows = [
        *expected(small, 2, movies[:3], (0.5, -0.5), 12, 3),
        *expected(small, 9, [], (2.0, 1.0), 12, 3, movies[:4]),
    ]
    assert answer.neighbors.ids.tolist() == [row[0] for row in rows]
    np.testing.assert_allclose(answer.neighbors.scores, [row[1] for row in rows], 1e-5, 1e-5)
    np.testing.assert_allclose(answer.retrieval_scores, [row[2] for row in rows], 1e-5, 1e-5)
    assert answer.neighbors.attributes["title"] == [small.titles[movies.index(row[0])] for row in rows]


def test_recommend_by_default_ranks_ten_times_k_at_least_a_hundred(write: Write, run: Run) -> None:
    small = write(size=300)
    service = run()
    answer = recommend(service, features={"user": column(2)}, k=5)
    rows = expected(small, 2, [], (0.0, 0.0), 100, 5)
    assert answer.neighbors.ids.tolist() == [row[0] for row in rows]
    recommend(service, features={"user": column(2)}, k=20)
    assert service.value("rowcast_candidates_total", call="recommend") == 100 + 200


def test_recommend_of_everything_excluded_is_empty(write: Write, run: Run) -> None:
    small = write()
    answer = recommend(run(), features={"user": column(2)}, exclude=Exclusion(small.ids))
    assert answer.neighbors.offsets.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        ({"k": 5, "candidates": 4}, InvalidArgument, "candidates is 4, fewer than the k = 5"),
        ({"candidates": -1}, InvalidArgument, "candidates is -1"),
        ({"candidates": 31}, TooLarge, "31 candidates to rank in one request; at most 30"),
        ({"features": {"user": column(1), "movie": column(1000)}}, InvalidArgument, "'movie' is not taken"),
        ({"attributes": ("name",)}, InvalidArgument, "'name'"),
        ({"index": "x"}, NotFound, "index 'x'"),
        ({"tower": "x"}, NotFound, "ranking tower 'x'"),
    ],
)
def test_recommend_refused_names_what_is_wrong(
    write: Write, run: Run, request_: dict[str, Any], kind: type[Exception], message: str
) -> None:
    write()
    with pytest.raises(kind, match=message):
        recommend(run(candidates_max=30), **{"features": {"user": column(1)}, "candidates": 20, **request_})


def test_recommend_of_a_bundle_without_a_ranking_tower_is_not_found(write: Write, run: Run) -> None:
    write(without=frozenset({"ranking"}))
    with pytest.raises(NotFound, match="no ranking tower"):
        recommend(run(), features={"user": column(1)})


def test_recommend_of_a_bundle_without_an_index_is_not_found(write: Write, run: Run) -> None:
    write(without=frozenset({"indexes"}))
    with pytest.raises(NotFound, match="has no index"):
        recommend(run(), features={"user": column(1)})

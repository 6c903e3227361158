"""Retrieve, then rank, against the reference model, which does both in loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.engine.requests import Exclusion
from service.errors import InvalidArgument, NotFound, TooLarge
from tests.service import oracles
from tests.service.engine.served import Served, column
from tests.service.small_bundle import SmallBundle

Load = Callable[..., Served]


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
def test_recommend_ranks_what_was_retrieved_and_keeps_both_scores(load: Load, id_kind: str) -> None:
    service = load(id_kind=id_kind)
    small = service.small
    movies = small.ids.tolist()
    features = {
        "user": column(2, 9),
        "history": column(*movies[:3], offsets=[0, 3, 3]),
        "mood": column(0.5, -0.5, 2.0, 1.0),
    }
    exclude = Exclusion(small.ids[:4], np.array([0, 0, 4]))
    answer = service.recommend(features=features, k=3, candidates=12, exclude=exclude, attributes=("title",))
    assert answer.neighbors.offsets.tolist() == [0, 3, 6]
    rows = [
        *expected(small, 2, movies[:3], (0.5, -0.5), 12, 3),
        *expected(small, 9, [], (2.0, 1.0), 12, 3, movies[:4]),
    ]
    assert answer.neighbors.ids.tolist() == [row[0] for row in rows]
    np.testing.assert_allclose(answer.neighbors.scores, [row[1] for row in rows], 1e-5, 1e-5)
    np.testing.assert_allclose(answer.retrieval_scores, [row[2] for row in rows], 1e-5, 1e-5)
    assert answer.neighbors.attributes["title"] == [small.titles[movies.index(row[0])] for row in rows]


def test_recommend_by_default_ranks_ten_times_k_at_least_a_hundred(load: Load) -> None:
    service = load(size=300)
    answer = service.recommend(features={"user": column(2)}, k=5)
    rows = expected(service.small, 2, [], (0.0, 0.0), 100, 5)
    assert answer.neighbors.ids.tolist() == [row[0] for row in rows]
    service.recommend(features={"user": column(2)}, k=20)
    assert service.value("rowcast_candidates_total", call="recommend") == 100 + 200


def test_recommend_of_everything_excluded_is_empty(load: Load) -> None:
    service = load()
    answer = service.recommend(features={"user": column(2)}, exclude=Exclusion(service.small.ids))
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
def test_recommend_invalid_request_is_rejected_with_what_is_wrong(
    load: Load, request_: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load({"max_candidates": 30}).recommend(**{"features": {"user": column(1)}, "candidates": 20, **request_})


def test_recommend_of_a_bundle_without_a_ranking_tower_is_not_found(load: Load) -> None:
    with pytest.raises(NotFound, match="no ranking tower"):
        load(without=frozenset({"ranking"})).recommend(features={"user": column(1)})


def test_recommend_of_a_bundle_without_an_index_is_not_found(load: Load) -> None:
    with pytest.raises(NotFound, match="has no index"):
        load(without=frozenset({"indexes"})).recommend(features={"user": column(1)})

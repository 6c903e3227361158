"""Contexts by id, formulas and the whole description of a model, of a running service by every way
to send calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from rowcast_client import InvalidArgument, calls

from tests.bundles.small import STORED_USERS
from tests.units.client.conftest import RunningService
from tests.units.client.servers import WAYS
from tests.units.client.test_client_service import same_by_all_ways
from tests.units.service import reference

FORMULA = "watch^0.5 * exp(-0.1 * rating)"


def stored(service: RunningService, user: int) -> dict[str, Any]:
    positions, weights, mood = STORED_USERS[user]
    ids = service.movies.ids[list(positions)].tolist()
    return {"liked": dict(zip(ids, weights, strict=True)), "mood": mood}


def test_rank_by_context_ids_is_the_same_by_all_ways(service: RunningService) -> None:
    movies = service.movies.ids[:3].tolist()
    single = same_by_all_ways(
        service, calls.rank(candidate_ids=movies, context_ids=7, model="movies")
    )
    expected = [
        reference.ranked(service.movies, movie, 7, **stored(service, 7))["score"]
        for movie in movies
    ]
    np.testing.assert_allclose(single[0].scores, expected, 1e-4, 1e-4)
    several = calls.rank(candidate_ids=[movies, movies[:1]], context_ids=[7, 21], model="movies")
    result = same_by_all_ways(service, several)
    assert result[0].scores.tolist() == single[0].scores.tolist()
    expected = [reference.ranked(service.movies, movies[0], 21, **stored(service, 21))["score"]]
    np.testing.assert_allclose(result[1].scores, expected, 1e-4, 1e-4)


def test_sent_features_override_stored_ones_by_all_ways(service: RunningService) -> None:
    movies = service.movies.ids[:2].tolist()
    call = calls.rank(
        [{"mood": [0.5, 0.25]}, {"mood": [1, 2]}],
        [movies, movies],
        context_ids=[7, 3],
        model="movies",
    )
    result = same_by_all_ways(service, call)
    for position, (user, mood) in enumerate(((7, (0.5, 0.25)), (3, (1, 2)))):
        features = {**stored(service, user), "mood": mood}
        expected = [
            reference.ranked(service.movies, movie, user, **features)["score"] for movie in movies
        ]
        np.testing.assert_allclose(result[position].scores, expected, 1e-4, 1e-4)


def test_retrieve_and_recommend_by_context_ids_are_the_same_by_all_ways(
    service: RunningService,
) -> None:
    by_id = same_by_all_ways(service, calls.retrieve(context_ids=[7, 21], k=3, model="movies"))
    by_features = same_by_all_ways(
        service, calls.retrieve([{"user": 7}, {"user": 21}], k=3, model="movies")
    )
    for neighbors, expected in zip(by_id, by_features, strict=True):
        assert neighbors.ids.tolist() == expected.ids.tolist()
    by_both = same_by_all_ways(
        service, calls.retrieve({"hour": 3}, context_ids=7, k=3, model="movies")
    )
    assert len(by_both[0]) == 3
    call = calls.recommend(context_ids=[7, 21], k=3, formula=FORMULA, model="movies")
    result = same_by_all_ways(service, call)
    assert [len(neighbors) for neighbors in result] == [3, 3]
    scores = [
        reference.ranked(service.movies, movie, 7, **stored(service, 7))
        for movie in service.movies.ids.tolist()
    ]
    best = max(
        candidate["watch"] ** 0.5 * np.exp(-0.1 * candidate["rating"]) for candidate in scores
    )
    assert result[0][0].score == pytest.approx(best, rel=1e-4)


def test_formula_orders_by_all_ways(service: RunningService) -> None:
    movies = service.movies.ids[:8].tolist()
    heads = ["watch", "rating"]
    call = calls.rank({"user": 7}, movies, heads=heads, formula=FORMULA, k=5, model="movies")
    result = same_by_all_ways(service, call)[0]
    expected = np.sqrt(result.heads["watch"].astype(float)) * np.exp(
        -0.1 * result.heads["rating"].astype(float)
    )
    np.testing.assert_allclose(result.scores, expected, 1e-5)
    assert result.scores.tolist() == sorted(result.scores.tolist(), reverse=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (calls.rank({"user": 7}, [1000], formula="watch *", model="movies"), "invalid syntax"),
        (calls.rank({"user": 7}, [1000], formula="wach", model="movies"), "did you mean 'watch'"),
        (
            calls.rank(candidate_ids=[1000], context_ids=999, model="movies"),
            "context 999 is not in store 'users'",
        ),
        (calls.rank(candidate_ids=[1000], context_ids="a", model="movies"), "id"),
        (calls.retrieve(context_ids=7, model="named"), "no context store"),
    ],
)
def test_rejected_calls_report_why_by_all_ways(
    service: RunningService, call: Any, message: str
) -> None:
    for way in WAYS:
        with pytest.raises(InvalidArgument, match=message):
            way.send(service.url(way), call)


def test_model_describes_the_whole_path_of_an_input(service: RunningService) -> None:
    details = same_by_all_ways(service, calls.model("movies"))
    assert [store.name for store in details.contexts] == ["users"]
    readers = {reader.name: reader for reader in details.readers}
    assert readers["city"].ids["expression"] == "fingerprint64(city) mod 16"
    ranking = {tower.name: tower for tower in details.towers}["ranking"]
    assert [part.name for part in ranking.parts] == ["context", "trunk", "score", "watch", "rating"]
    assert (
        ranking.parts[1].inputs[1].tensor == "context"
        or ranking.parts[1].inputs[0].tensor == "context"
    )
    assert {table.name: table.bytes for table in details.tables}["users"] == 50 * 8 * 4


def test_rowcast_takes_context_ids_and_formulas(
    service: RunningService, rowcast: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    of_user = ("--context-id", "7", "-m", "movies", "--json", "--url", service.http)
    assert (
        rowcast("rank", "-c", "1000,1007", "--formula", "watch", "--head", "watch", *of_user) == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["scores"] == printed["heads"]["watch"]
    for command in (("retrieve", "-k", "2"), ("recommend", "-k", "2", "--formula", "watch")):
        assert rowcast(*command, *of_user) == 0
        assert len(json.loads(capsys.readouterr().out)["ids"]) == 2


def test_rowcast_model_shows_parts_and_stores(
    service: RunningService, rowcast: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert rowcast("model", "movies", "--url", service.http) == 0
    printed = capsys.readouterr().out
    for text in (
        "tower ranking on cpu",
        "trunk",
        "per context",
        "litert f32",
        "contexts",
        "or the context's id",
    ):
        assert text in printed
    assert rowcast("model", "movies", "--url", service.http, "--json") == 0
    assert (
        json.loads(capsys.readouterr().out) == httpx.get(f"{service.http}/v1/models/movies").json()
    )

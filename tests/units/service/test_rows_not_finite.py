"""A row that holds NaN is the service's error, with table and id, and fails one candidate alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rowcast_client import Client, FailedCandidate

from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import write_small_bundle
from tests.units.service.cases import LIMITS, MODEL, Case
from tests.units.service.clients import Clients
from tests.units.service.running import RunningService

LOST = {"users": 5, "movies": 3}
"""Row 3 of the movies is that of the third candidate: row 0 is no movie."""
MOVIES = [1000, 1007, 1014, 1021]


def message(table: str, value: int) -> str:
    return (
        f"the row of id {value} in table {table!r} holds NaN or an infinity, and nothing can be "
        "computed with it; the model is at fault, not the request"
    )


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "parts"])
def clients(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, small_towers: Path
) -> Iterator[Clients]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, 1, lost_rows=LOST, parts=request.param)
    service = RunningService(root, **LIMITS)
    clients = Clients(service)
    yield clients
    clients.close()
    service.close()


def of_user(user: int, **features: Any) -> dict[str, Any]:
    return {"context": {"user": user, **features}}


@pytest.mark.parametrize(
    ("name", "body", "table", "value"),
    [
        ("embed", {"tower": "query", "requests": [{"features": {"user": 5}}]}, "users", 5),
        ("retrieve", {"requests": [of_user(5)]}, "users", 5),
        ("recommend", {"requests": [of_user(5)]}, "users", 5),
        ("rank", {"requests": [of_user(5) | {"candidate_ids": MOVIES}]}, "users", 5),
        # One of several ids of a bag and of a sequence.
        ("retrieve", {"requests": [of_user(7, history=[1000, 1014])]}, "movies", 1014),
        (
            "rank",
            {"requests": [of_user(7, recent=[1007, 1014]) | {"candidate_ids": MOVIES[:2]}]},
            "movies",
            1014,
        ),
        ("lookup", {"feature": "user", "ids": [1, 5]}, "users", 5),
    ],
)
def test_row_of_a_context_fails_the_request_as_an_error_of_the_service(
    name: str, body: Any, table: str, value: int, clients: Clients
) -> None:
    outcomes = clients.all(Case(name, "lost", body))
    assert outcomes == [("INTERNAL", message(table, value))] * 3


def test_row_beyond_what_a_sequence_reads_fails_nothing(clients: Clients) -> None:
    body = {"requests": [of_user(7, recent=[1000, 1007, 1021, 1014]) | {"candidate_ids": [1000]}]}
    assert [code for code, _ in clients.all(Case("rank", "cut", body))] == ["OK"] * 3


@pytest.mark.parametrize("k", [0, 2])
def test_row_of_a_candidate_fails_this_candidate_alone(k: int, clients: Clients) -> None:
    finite_movies = [movie for movie in MOVIES if movie != 1014]
    with Client(clients.service.http) as client:
        alone = client.rank({"user": 7}, finite_movies, k=k, heads=["watch"])
        ranked = client.rank({"user": 7}, MOVIES, k=k, heads=["watch"])
        typed = client.rank([{"user": 6}, {"user": 7}], [[1000], MOVIES], k=k)
    assert ranked.failed == (FailedCandidate(0, 2, message("movies", 1014)),)
    assert [candidate.id for candidate in ranked[0]] == [one.id for one in alone[0]]
    np.testing.assert_array_equal(ranked[0].scores, alone[0].scores)
    np.testing.assert_array_equal(ranked[0].heads["watch"], alone[0].heads["watch"])
    assert all(MOVIES[candidate.position] == candidate.id for candidate in ranked[0])
    assert typed.failed == (FailedCandidate(1, 2, message("movies", 1014)),)
    assert [candidate.id for candidate in typed[1]] == [one.id for one in ranked[0]]


def test_candidate_that_fails_stands_in_the_response_of_every_transport(clients: Clients) -> None:
    body = {"requests": [of_user(7) | {"candidate_ids": MOVIES}]}
    outcomes = clients.all(Case("rank", "lost", body))
    assert [code for code, _ in outcomes] == ["OK"] * 3
    assert b'"failed":[{"position":2,"message":"the row of id 1014 in table' in outcomes[0][1]
    for _, content in outcomes[1:]:
        result = (
            content if isinstance(content, pb.RankResponse) else pb.RankResponse.FromString(content)
        )
        assert [
            (failed_candidate.context, failed_candidate.position)
            for failed_candidate in result.failed
        ] == [(0, 2)]


def test_candidate_that_fails_is_left_out_of_recommendations(clients: Clients) -> None:
    with Client(clients.service.http) as client:
        recommendations = client.recommend({"user": 7}, k=40, pool_size=40)
    assert 1014 not in recommendations[0].ids
    assert len(recommendations[0].ids) == 39
    assert recommendations.degraded
    assert recommendations.degraded_reason == (
        "1 of 40 candidates are left out, because they read rows that hold NaN or an infinity, "
        "such as one of table 'movies'"
    )


def test_numbers_that_are_too_large_are_still_the_clients_error(clients: Clients) -> None:
    body = {"requests": [of_user(7, hour=3e38, mood=[3e38, 3e38]) | {"candidate_ids": [1000]}]}
    outcomes = clients.all(Case("rank", "large", body))
    assert [code for code, _ in outcomes] == ["INVALID_ARGUMENT"] * 3
    assert all("the request has values with which " in text for _, text in outcomes)

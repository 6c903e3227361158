"""Responses above `max_response_bytes` are rejected alike on every transport, before anything is
computed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import write_small_bundle
from tests.units.service.cases import Case
from tests.units.service.clients import Clients
from tests.units.service.running import RunningService

LIMIT = 64 << 10
CANDIDATES = 1500


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Clients]:
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers, size=CANDIDATES)
    service = RunningService(root, max_response_bytes=LIMIT)
    clients = Clients(service)
    yield clients
    clients.close()
    service.close()


def candidates(count: int) -> list[int]:
    return [1000 + 7 * number for number in range(count)]


def retrievals(count: int, k: int, **options: Any) -> Case:
    body = {"requests": [{"context": {"user": 7}}] * count, "k": k, **options}
    return Case("retrieve", "large", body)


# A neighbor of an integer id counts 56 bytes, a number 16, a candidate 52.
@pytest.mark.parametrize(
    ("fits", "exceeds", "message"),
    [
        (
            retrievals(2, 585),
            retrievals(2, 586),
            "1172 neighbors with 0 attributes, about 65632 bytes; at most 65536 are sent "
            "(max_response_bytes); lower k",
        ),
        (retrievals(11, 100), retrievals(12, 100), "1200 neighbors"),
        (
            retrievals(1, 300, attributes=["title"]),
            retrievals(1, 1000, attributes=["title"]),
            "1000 neighbors with 1 attributes",
        ),
        (
            Case("recommend", "large", {"context": {"user": 7}, "k": 100}),
            Case("recommend", "large", {"requests": [{"context": {"user": 7}}] * 12, "k": 100}),
            "1200 neighbors",
        ),
        (
            Case(
                "embed", "large", {"tower": "query", "requests": [{"features": {"user": 7}}] * 512}
            ),
            Case(
                "embed", "large", {"tower": "query", "requests": [{"features": {"user": 7}}] * 513}
            ),
            "513 vectors of 8 numbers, about 65664 bytes; at most 65536 are sent "
            "(max_response_bytes); send fewer features at a time",
        ),
        (
            Case("lookup", "large", {"feature": "user", "ids": [7] * 512}),
            Case("lookup", "large", {"feature": "user", "ids": [7] * 513}),
            "513 vectors of 8 numbers",
        ),
        (
            Case("rank", "large", {"context": {"user": 7}, "candidate_ids": candidates(1260)}),
            Case("rank", "large", {"context": {"user": 7}, "candidate_ids": candidates(1261)}),
            "1261 candidates with 0 heads, about 65572 bytes",
        ),
    ],
    ids=lambda value: value.call if isinstance(value, Case) else "",
)
def test_large_response_is_rejected_before_it_is_computed(
    fits: Case, exceeds: Case, message: str, clients: Clients
) -> None:
    assert [code for code, _ in clients.all(fits)] == ["OK"] * 3
    computed = examples(clients, exceeds.call)
    for code, error in clients.all(exceeds):
        assert (code, message in error) == ("TOO_LARGE", True), error
    assert examples(clients, exceeds.call) == computed


def test_ranking_of_many_candidates_fits_if_few_are_returned(clients: Clients) -> None:
    body = {"context": {"user": 7}, "candidate_ids": candidates(CANDIDATES), "k": 1000}
    assert [code for code, _ in clients.all(Case("rank", "k", body))] == ["OK"] * 3


def test_estimate_is_at_least_the_size_of_the_response(clients: Clients) -> None:
    for case in (
        retrievals(2, 585),
        Case("lookup", "large", {"feature": "user", "ids": [7] * 512}),
        Case("rank", "large", {"context": {"user": 7}, "candidate_ids": candidates(1260)}),
    ):
        code, body = clients.by_http(case, protobuf=False)
        assert code == "OK"
        assert len(body) <= LIMIT + 200  # the names of the model and of the fields


def test_large_response_is_the_same_in_pieces(small_towers: Path, tmp_path: Path) -> None:
    write_small_bundle(tmp_path, small_towers)
    service = RunningService(tmp_path)
    ids = [number % 50 for number in range(30_000)]
    try:
        body = {"feature": "user", "ids": ids}
        large = httpx.post(f"{service.http}/v1/models/movies:lookup", json=body, timeout=30)
        response = httpx.post(
            f"{service.http}/v1/models/movies:lookup",
            json={"feature": "user", "ids": list(range(50))},
        ).json()
        assert len(large.content) > 1 << 20
        assert int(large.headers["content-length"]) == len(large.content)
        content = json.loads(large.content)
        assert content["vectors"] == [response["vectors"][movie_id] for movie_id in ids]
        assert content["found"] == [True] * len(ids)
        accept = {"accept": "application/x-protobuf"}
        message = pb.LookupResponse.FromString(
            httpx.post(
                f"{service.http}/v1/models/movies:lookup", json=body, headers=accept, timeout=30
            ).content
        )
        expected = struct.pack("<8f", *response["vectors"][7])
        assert message.vectors[7 * 32 : 8 * 32] == expected
        assert len(message.vectors) == len(ids) * 32
    finally:
        service.close()


def examples(clients: Clients, call: str) -> float:
    return clients.service.value("rowcast_examples_total", call=call)

"""Random requests to a router with shards, and to one process that holds everything: the same
statuses, and with exact indexes the same responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bundle.format.indexes import Engine
from tests.bundles.indexes import ENGINES
from tests.differential.random_requests import (
    IDS,
    OPTIONS,
    RandomRequests,
    Services,
    differences,
    options_of,
    response,
    responses,
    serving,
)
from tests.e2e.process import WAIT_S
from tests.random_cases import seeds

pytestmark = pytest.mark.slow

REQUESTS = 300
TREE_REQUESTS = 100
LOST_ROWS = {"users": 3, "movies": 7900}
"""They hold NaN, which fails the requests and candidates that read them."""


TREE = {"num_leaves": 40, "leaves_to_search": 4, "dimensions_per_block": 2, "reorder": 40}


def drawn_requests(seed: int, count: int) -> list[Any]:
    requests = RandomRequests(seed)
    return [requests.draw() for _ in range(count)]


@pytest.fixture(scope="module")
def services(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    root = tmp_path_factory.mktemp("exact")
    with serving(root, small_towers, lost_rows=LOST_ROWS) as services:
        yield services


WHOLE_CORPUS: dict[str, Any] = {"crowding": {"classic": 1}, "k": 30}
EDGES: list[tuple[str, dict[str, Any], int]] = [
    ("embed", {"tower": "query", "features": {"user": 1, "history": IDS[:7500]}}, 200),
    ("retrieve", {"ids": IDS[:4], "exclude_ids": IDS[1000:7000]}, 200),
    ("retrieve", {"vectors": [[1.0] * 8] * 4, "exclude_ids": IDS[:7000]}, 200),
    ("retrieve", {"vectors": [[1.0] * 8], **WHOLE_CORPUS}, 200),
    ("retrieve", {"vectors": [[1e17] * 8]}, 200),
    ("retrieve", {"vectors": [[3e38] * 8]}, 400),
    ("retrieve", {"vectors": [[1.0] * 8], "filter": {"no such": {"ge": 1}}}, 400),
    ("retrieve", {"vectors": [[1.0] * 8], "filter": {"genres": {"ge": 1}}}, 400),
    ("retrieve", {"vectors": [[1.0] * 8], "filter": {"year": {"allow": ["x"]}}}, 400),
    ("recommend", {"context": {"user": 1}, "filter": {"near": [{"radius_m": 1}]}}, 400),
]
"""Requests that need several messages, or that only the search finds to be at fault, and their
statuses.
"""


def test_router_responds_to_random_requests_as_one_process(
    services: Services, request: pytest.FixtureRequest
) -> None:
    (seed,) = seeds(request, 1, 43)[:1]
    drawn = drawn_requests(seed, REQUESTS)
    assert not OPTIONS - options_of(drawn), "never drawn"
    received, expected = [responses(service, drawn) for service in services]
    differing = differences(drawn, received, expected)
    assert not differing, f"{len(differing)} of {REQUESTS} differ: {differing[0]}"


@pytest.mark.parametrize("engine", ENGINES)
def test_router_with_trees_responds_to_random_requests_with_the_statuses_of_one_process(
    small_towers: Path, tmp_path: Path, request: pytest.FixtureRequest, engine: Engine
) -> None:
    def status_and_message(received: tuple[int, Any]) -> tuple[int, Any]:
        return received[0], received[1].get("error")

    (seed,) = seeds(request, 1, 44)[:1]
    tree: dict[str, Any] = {"index_kind": "tree_ah", "parameters": TREE, "engine": engine}
    with serving(tmp_path, small_towers, **tree) as services:
        drawn = drawn_requests(seed, TREE_REQUESTS)
        received, expected = [responses(service, drawn) for service in services]
    differing = differences(drawn, received, expected, status_and_message)
    assert not differing, f"{len(differing)} of {TREE_REQUESTS} differ: {differing[0]}"


@pytest.mark.parametrize(("call", "body", "status"), EDGES)
def test_router_responds_to_chosen_requests_as_one_process(
    call: str,
    body: dict[str, Any],
    status: int,
    services: Services,
) -> None:
    router, alone = services
    with (
        httpx.Client(base_url=router.http, timeout=WAIT_S, verify=False) as ours,
        httpx.Client(base_url=alone.http, timeout=WAIT_S, verify=False) as theirs,
    ):
        expected = response(theirs, call, body)
        assert expected[0] == status, expected
        assert response(ours, call, body) == expected

"""Random requests that are sent at the same time get what each gets alone, bit for bit: from one
process, from one whose candidates were changed and withdrawn, and from a router with shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bundles.small import write_small_bundle
from tests.differential.random_requests import (
    IDS,
    LIMITS,
    Call,
    Services,
    options_of,
    serving,
)
from tests.differential.requests_together import (
    AlikeRequests,
    alone,
    merged_share,
    read,
    together,
)
from tests.random_cases import seeds
from tests.units.service.changes.making import candidate, change, deletion, deny
from tests.units.service.running import RunningService

pytestmark = pytest.mark.slow

ROUNDS = 12
FAMILIES = 5
FAMILY = 6
OWN_OPTIONS = {"retrieve.explain", "retrieve.recall", "recommend.explain", "rank.heads"}
CALLS = ("retrieve", "rank", "recommend", "embed", "lookup")
LOST_ROWS = {"users": 3, "movies": 900}
"""They hold NaN, which fails the requests and candidates that read them."""
TREE = {"num_leaves": 16, "leaves_to_search": 4, "dimensions_per_block": 2, "reorder": 40}
LOOP: dict[str, Any] = {"inline_max_us": 1_000_000, "live_recall_share": 0}
"""Settings that have all batches computed on the event loop, so that they have many requests."""


def assert_equal_together(service: RunningService, seed: int, rounds: int = ROUNDS) -> None:
    requests = AlikeRequests(seed)
    failed = 0
    options = set[str]()
    for _ in range(rounds):
        calls: list[Call] = []
        for _ in range(FAMILIES):
            calls += requests.family(FAMILY)
        options |= options_of(calls)
        drawn = read(service, [calls[number] for number in requests.order(len(calls))])
        expected = alone(service, drawn)
        responses = together(service, drawn)
        for drawn_request, response, response_alone in zip(drawn, responses, expected, strict=True):
            assert response == response_alone, drawn_request
        failed += sum([isinstance(response, tuple) for response in expected])
    assert not OWN_OPTIONS - options, "never drawn"
    assert 0 < failed < rounds * FAMILIES * FAMILY / 2


@pytest.fixture(scope="module")
def services(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    root = tmp_path_factory.mktemp("whole")
    with serving(root, small_towers, LOOP, lost_rows=LOST_ROWS) as services:
        yield services


@pytest.fixture(scope="module")
def changed(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A service of a tree some of whose candidates are added, replaced, deleted or denied."""
    root = tmp_path_factory.mktemp("changed")
    write_small_bundle(
        root, small_towers, users=True, size=2000, index_kind="tree_ah", parameters=TREE
    )
    service = RunningService(root, **LIMITS, **LOOP)
    change(service, "candidates/upsert", *[candidate(key) for key in range(5000, 5300)])
    change(service, "candidates/upsert", *[candidate(key) for key in (*IDS[:20], 6001, 6002)])
    change(service, "candidates/delete", *deletion([IDS[30], 5010]))
    deny(service, IDS[40], 5020, 6001)
    yield service
    service.close()


def test_requests_sent_together_get_what_they_get_alone(
    services: Services, request: pytest.FixtureRequest
) -> None:
    for seed in seeds(request, 1, 71):
        assert_equal_together(services[1], seed)
    for call in CALLS:
        assert merged_share(services[1], call) > 1.2, call


def test_requests_to_changed_candidates_get_what_they_get_alone(
    changed: RunningService, request: pytest.FixtureRequest
) -> None:
    for seed in seeds(request, 1, 75):
        assert_equal_together(changed, seed)


def test_requests_to_a_router_get_what_they_get_alone(
    services: Services, request: pytest.FixtureRequest
) -> None:
    for seed in seeds(request, 1, 73):
        assert_equal_together(services[0], seed, rounds=ROUNDS // 2)

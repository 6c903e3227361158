"""Random requests that are sent at the same time get what each gets alone, bit for bit: from one
process, from one whose candidates were changed and withdrawn, and from a router with shards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.engine.calls import (
    Condition,
    Filter,
    IdLists,
    RecommendationRequest,
    RetrievalRequest,
    RetrievalResult,
    Source,
    Target,
)
from service.engine.context import RequestContext
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.random_cases import seeds
from tests.units.service.changes.making import absorb, candidate, change, deletion
from tests.units.service.engine.merging.together import (
    AlikeRequests,
    Call,
    alone,
    merged_share,
    read,
    together,
)
from tests.units.service.engine.served import CountingTower, column
from tests.units.service.running import RunningService
from tests.units.service.shards.comparing import IDS, LIMITS, Services, serving

ROUNDS = 12
FAMILIES = 5
FAMILY = 6
CALLS = ("retrieve", "rank", "recommend", "embed", "lookup")
LOST_ROWS = {"users": 3, "movies": 900}
"""They hold NaN, which fails the requests and candidates that read them."""
TREE = {"num_leaves": 16, "leaves_to_search": 4, "dimensions_per_block": 2, "reorder": 40}
POOL = 20
TARGET = Target("movies")
NOT_OLD = Filter({"year": Condition(ge=1992)})
LOOP: dict[str, Any] = {"inline_max_us": 1_000_000, "live_recall_share": 0}
"""Settings that have all batches computed on the event loop, so that they have many requests."""


class SlowTower(CountingTower):
    """Takes 15 ms for each candidate."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        time.sleep(0.015 * len(next(iter(inputs.values()))))
        return super().run(inputs)


def assert_equal_together(service: RunningService, seed: int) -> None:
    requests = AlikeRequests(seed)
    failed = 0
    for _ in range(ROUNDS):
        calls: list[Call] = []
        for _ in range(FAMILIES):
            calls += requests.family(FAMILY)
        drawn = read(service, [calls[number] for number in requests.order(len(calls))])
        expected = alone(service, drawn)
        responses = together(service, drawn)
        for drawn_request, response, response_alone in zip(drawn, responses, expected, strict=True):
            assert response == response_alone, drawn_request
        failed += sum([isinstance(response, tuple) for response in expected])
    assert 0 < failed < ROUNDS * FAMILIES * FAMILY / 2


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
    absorb(service)
    change(service, "candidates/upsert", *[candidate(key) for key in (*IDS[:20], 6001, 6002)])
    change(service, "candidates/delete", *deletion([IDS[30], 5010]))
    with service.worker.versions.acquire("movies") as version:
        version.deny((str(IDS[40]), "5020", "6001"))
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
    for seed in seeds(request, 1, 72):
        assert_equal_together(changed, seed)


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"filter": NOT_OLD}])
def test_depth_of_a_search_depends_on_what_its_own_request_excludes(
    changed: RunningService, options: dict[str, Any]
) -> None:
    index = changed.current().indexes["movies"].here
    assert index is not None
    random = np.random.default_rng(5)
    drawn = []
    for count in (0, 5, 40, 100, 400, 1000, 1900, 1999):
        vector = random.normal(size=(1, 8)).astype(np.float32)
        nearest = np.argsort(-(index.vectors @ vector[0]))[:count]
        # What a user has seen is often what is nearest.
        excluded = IdLists(np.array(IDS)[nearest])
        drawn.append(
            RetrievalRequest(TARGET, vectors=vector, k=50, exclude_ids=excluded, **options)
        )
    requests = [("retrieve", request) for request in drawn]
    expected = alone(changed, requests)
    batches = changed.value("rowcast_batch_requests_count", call="retrieve")
    assert together(changed, requests) == expected
    assert changed.value("rowcast_batch_requests_count", call="retrieve") == batches + 1


def test_batch_is_not_degraded_for_want_of_time_of_one_of_its_requests(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(**LOOP)
    tower = SlowTower(service.current().towers["ranking"].parts[0].network)
    service.with_network("ranking", tower)
    wanted = RecommendationRequest(TARGET, context={"user": column(1)}, pool_size=POOL, k=5)
    service.execute(wanted, "recommend")

    async def execute(timeout_s: float) -> RetrievalResult:
        context = RequestContext("recommend", "test-request", time.monotonic() + timeout_s)
        response: RetrievalResult = await service.dataplane.engine.execute(wanted, context)
        return response

    async def execute_both() -> tuple[RetrievalResult, RetrievalResult]:
        # Ranking takes 0.3 s, and twice as much must be left.
        return await asyncio.gather(execute(0.5), execute(25))

    tower.examples.clear()
    hasty, patient = service.call(execute_both())
    assert "candidates are ranked" in hasty.degraded_reason
    assert patient.degraded_reason == ""
    assert tower.examples[-1] == POOL


def test_limit_of_sources_is_that_of_each_request(services: Services) -> None:
    pool_size = LIMITS["max_candidates"] // 2 + 1
    source = Source(index="movies", pool_size=pool_size)
    wanted = RecommendationRequest(TARGET, context={"user": column(1)}, k=5, sources=(source,))
    requests = [("recommend", wanted)] * 2
    expected = alone(services[1], requests)
    failures = services[1].value("rowcast_failed_batches_total", call="recommend")
    assert together(services[1], requests) == expected
    assert isinstance(expected[0], list)
    assert services[1].value("rowcast_failed_batches_total", call="recommend") == failures


def test_requests_to_a_router_get_what_they_get_alone(
    services: Services, request: pytest.FixtureRequest
) -> None:
    for seed in seeds(request, 1, 73):
        assert_equal_together(services[0], seed)

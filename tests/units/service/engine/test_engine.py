"""The engine of a running service: what its requests get, and what it counts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from service.contract.messages import (
    RecommendationRequest,
    RetrievalResult,
    Target,
)
from service.engine.context import RequestContext
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S, until
from tests.units.service.engine.served import SlowTower, StepClock
from tests.units.service.running import RunningService, WaitingTower, log_lines

RETRIEVE = "/v1/models/movies:retrieve"
QUERIES = 3


class OneQueryTower(WaitingTower):
    """Fails if it is run for several queries."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if max(len(values) for values in inputs.values()) > 1:
            raise RuntimeError("several queries")
        return super().run(inputs)


def test_failed_batch_is_counted_and_logged_and_its_requests_are_computed_alone(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(inline_max_us=0, threads=1)
    tower = OneQueryTower(service.current().towers["query"].parts[0].network)
    service.with_network("query", tower)

    def post(user: int) -> httpx.Response:
        body = {"context": {"user": user}, "k": 2}
        return httpx.post(service.http + RETRIEVE, json=body, timeout=WAIT_S, verify=False)

    with log_lines() as written, ThreadPoolExecutor(1 + QUERIES) as pool:
        first = pool.submit(post, 0)
        assert tower.entered.wait(WAIT_S)
        # The others wait for the only thread, as one batch.
        other_posts = [pool.submit(post, user) for user in range(1, 1 + QUERIES)]
        until(lambda: service.dataplane.engine.inflight == 1 + QUERIES)
        tower.release.set()
        assert {post.result().status_code for post in (first, *other_posts)} == {200}
    until(lambda: service.value("rowcast_failed_batches_total", call="retrieve") == 1)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    (failed,) = [line for line in lines if line["event"] == "batch_failed"]
    assert (failed["call"], failed["requests"]) == ("retrieve", QUERIES)


def test_batch_is_not_degraded_for_want_of_time_of_one_of_its_requests(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], clock: StepClock
) -> None:
    write()
    service = serve(inline_max_us=1_000_000)
    tower = SlowTower(service.current().towers["ranking"].parts[0].network, clock)
    service.with_network("ranking", tower)
    user = {"user": Column(np.array([1]))}
    wanted = RecommendationRequest(Target("movies"), context=user, pool_size=20, k=5)
    service.execute(wanted, "recommend")

    async def execute(timeout_s: float) -> RetrievalResult:
        context = RequestContext("recommend", "test-request", time.monotonic() + timeout_s)
        response: RetrievalResult = await service.dataplane.engine.execute(wanted, context)
        return response

    async def execute_both() -> tuple[RetrievalResult, RetrievalResult]:
        # Ranking takes 2,000 s, and twice as much must be left.
        return await asyncio.gather(execute(3000), execute(100_000))

    tower.examples.clear()
    hasty, patient = service.call(execute_both())
    assert "candidates are ranked" in hasty.degraded_reason
    assert patient.degraded_reason == ""
    assert tower.examples[-1] == 20

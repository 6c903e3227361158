"""The engine of a running service: what its requests get, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from numpy.typing import NDArray

from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.service.running import RunningService, WaitingTower

RETRIEVE = "/v1/models/movies:retrieve"
QUERIES = 3


class OneQueryTower(WaitingTower):
    """Fails if it is run for several queries."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if max(len(values) for values in inputs.values()) > 1:
            raise RuntimeError("several queries")
        return super().run(inputs)


def test_failed_batch_is_counted_and_its_requests_are_computed_alone(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(inline_max_us=0, threads=1)
    tower = OneQueryTower(service.current().towers["query"].parts[0].network)
    service.with_network("query", tower)

    def post(user: int) -> httpx.Response:
        body = {"context": {"user": user}, "k": 2}
        return httpx.post(service.http + RETRIEVE, json=body, timeout=30)

    with ThreadPoolExecutor(1 + QUERIES) as pool:
        first = pool.submit(post, 0)
        assert tower.entered.wait(20)
        # The others wait for the only thread, as one batch.
        others = [pool.submit(post, user) for user in range(1, 1 + QUERIES)]
        until(lambda: service.dataplane.engine.inflight == 1 + QUERIES)
        tower.release.set()
        assert {each.result().status_code for each in (first, *others)} == {200}
    until(lambda: service.value("rowcast_failed_batches_total", call="retrieve") == 1)

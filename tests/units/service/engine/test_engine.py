"""The engine of a running service: what its requests get, and what it counts."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.sources import FetchedRows
from service.config import ServiceSettings
from service.engine.calls import RankingRequest, RankingResult, Target
from service.engine.context import RequestContext
from service.engine.engine import Engine
from service.engine.execution import Execution, RowsLost
from service.errors import (
    DataLoss,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotReady,
    Overloaded,
    ServiceError,
)
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.policy import Arrangement
from service.versions.version import ModelVersion
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
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
        return httpx.post(service.http + RETRIEVE, json=body, timeout=30)

    with log_lines() as written, ThreadPoolExecutor(1 + QUERIES) as pool:
        first = pool.submit(post, 0)
        assert tower.entered.wait(20)
        # The others wait for the only thread, as one batch.
        other_posts = [pool.submit(post, user) for user in range(1, 1 + QUERIES)]
        until(lambda: service.dataplane.engine.inflight == 1 + QUERIES)
        tower.release.set()
        assert {post.result().status_code for post in (first, *other_posts)} == {200}
    until(lambda: service.value("rowcast_failed_batches_total", call="retrieve") == 1)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    (failed,) = [line for line in lines if line["event"] == "batch_failed"]
    assert (failed["call"], failed["requests"]) == ("retrieve", QUERIES)


def execute_together(compute: Callable[..., Any], count: int, root: Path) -> list[Any]:
    """Executes rankings that are alike with one function; returns responses and failures."""

    async def execute() -> list[Any]:
        nothing: Any = None
        manifest: Any = SimpleNamespace(unread_inputs=())
        versions = VersionManager()
        versions.add(
            ModelVersion("m", 1, Path(), manifest, {}, nothing, {}, {}, {}, {}, close=lambda: None)
        )
        versions.arrange("m", Arrangement(1, frozenset((1,))))
        engine = Engine(
            versions, ServiceSettings(root=root), Metrics(), 1, compute={RankingRequest: compute}
        )
        requests = [
            RankingRequest(Target("m"), {}, candidate_ids=np.array([number]))
            for number in range(count)
        ]
        try:
            return await asyncio.gather(
                *(
                    engine.execute(request, RequestContext("rank", "id", math.inf))
                    for request in requests
                ),
                return_exceptions=True,
            )
        finally:
            engine.close()

    return asyncio.run(execute())


@pytest.mark.parametrize(
    "problem",
    [
        Overloaded("shard 1/2 is overloaded", 2.0, "shard"),
        NotReady("shard 1/2 is gone"),
        DeadlineExceeded("shard 1/2 took too long"),
        DataLoss("shard 1/2 is damaged"),
        Internal("shard 1/2 returned 3 rows of 4"),
    ],
)
def test_failure_of_a_shard_fails_all_requests_of_a_batch_without_another_call(
    problem: ServiceError, tmp_path: Path
) -> None:
    batches = []

    async def compute(_: Any, request: RankingRequest, __: Any, execution: Execution) -> Any:
        batches.append(execution.request_count)
        raise problem

    assert execute_together(compute, 5, tmp_path) == [problem] * 5
    assert batches == [5]


def test_failure_that_a_request_may_have_caused_is_that_of_one_request(tmp_path: Path) -> None:
    batches = []

    async def compute(_: Any, request: RankingRequest, __: Any, execution: Execution) -> Any:
        batches.append(execution.request_count)
        if request.candidate_ids is not None and 3 in request.candidate_ids:
            raise InvalidArgument("3")
        return "ranked"

    results = execute_together(compute, 5, tmp_path)
    assert batches == [5, 1, 1, 1, 1, 1]
    assert [str(result) for result in results] == ["ranked"] * 3 + ["3", "ranked"]


def test_requests_of_a_batch_whose_rows_are_lost_use_what_the_batch_fetched(
    tmp_path: Path,
) -> None:
    rows = FetchedRows(np.arange(2), np.zeros((2, 1), np.float32), np.array([False, True]))
    calls = 0

    async def compute(_: Any, request: RankingRequest, __: Any, execution: Execution) -> Any:
        nonlocal calls
        if execution.fetched_before is None:
            calls += 1
            raise RowsLost({"layout": rows})
        assert request.candidate_ids is not None
        lost = execution.fetched_before["layout"].is_lost(request.candidate_ids)
        execution.rows_fetched = lost.size
        execution.rows_lost = int(lost.sum())
        none = np.empty(0, np.float32)
        return RankingResult("m", 1, None, none.astype(np.int32), none, {}, np.zeros(2, np.int64))

    results = execute_together(compute, 2, tmp_path)
    assert calls == 1
    assert [result.coverage for result in results] == [1.0, 0.0]

"""What a router makes of a shard that fails, or that returns what was not requested."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest

from service.codec.failures import Failure
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.errors import Code, DataLoss, Internal, NotReady, Overloaded, ServiceError
from service.grpc_api.status import abort
from service.shards.division import Layout
from service.shards.remote_version import ShardCall
from service.shards.router import Shards
from service.shards.row_reads import LayoutRead
from tests.e2e.process import WAIT_S
from tests.units.service.shards.fixed_shards import (
    CALL,
    KEY,
    ONLY,
    FixedShard,
    Responder,
    listening,
    routing,
    well,
)


class Called(NamedTuple):
    """What came of calls of a shard with several replicas.

    Attributes:
      results: What each call returned or raised.
      calls: How often replicas were called.
      addresses: The addresses of the replicas.
      problems: What the router reports of each replica.
    """

    results: list[Any]
    calls: int
    addresses: list[str]
    problems: list[str]


def called(
    root: Path,
    *responders: Responder,
    times: int = 1,
    call: ShardCall | None = None,
    enough: Callable[[Shards], bool] = lambda _: False,
    timeout_s: float = WAIT_S,
    description: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Called:
    """Starts a router, and one replica of a shard for each of the responses; calls it."""

    async def run() -> Called:
        shards = [FixedShard(responder, description or {}) for responder in responders]
        async with (
            listening(*shards) as addresses,
            routing(root, *addresses, **settings) as router,
        ):
            results = list[Any]()
            while len(results) < times and not enough(router):
                try:
                    results.append(await router.call(KEY, call or CALL, timeout_s))
                except ServiceError as problem:
                    results.append(problem)
            calls = sum(shard.calls for shard in shards)
            problems = [str(entry["problem"]) for entry in router.status()]
            return Called(results, calls, addresses, problems)

    return asyncio.run(run())


def events_of(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [
        record.__dict__["rowcast_fields"] for record in caplog.records if record.message == event
    ]


def succeeded(results: list[Any]) -> int:
    return sum(not isinstance(result, ServiceError) for result in results)


def failing(code: Code) -> Responder:
    async def fail(context: grpc.aio.ServicerContext) -> None:
        await abort(context, Failure(code, "why", "r-1", 3 if code is Code.OVERLOADED else None))

    return fail


async def vanish(context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


async def exceed_limit(context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "as gRPC itself does")


async def send_garbage(context: grpc.aio.ServicerContext) -> None:
    details = (("grpc-status-details-bin", b"\xff\xff\xff"),)
    await context.abort(grpc.StatusCode.INTERNAL, "garbage", details)


async def never_return(context: grpc.aio.ServicerContext) -> None:
    await asyncio.Event().wait()


async def lie(context: grpc.aio.ServicerContext) -> shard_pb.RowsResponse:
    return shard_pb.RowsResponse(rows=[shard_pb.StoredRows(values=b"another size")])


async def send_unreadable(context: grpc.aio.ServicerContext) -> shard_pb.RowsResponse:
    return shard_pb.RowsResponse(rows=[shard_pb.StoredRows()])


BAD: Mapping[str, Responder] = {
    **{code.value: failing(code) for code in Code if code is not Code.CANCELLED},
    "gone": vanish,
    "limit of gRPC": exceed_limit,
    "garbage": send_garbage,
    "lie": lie,
    "unreadable": send_unreadable,
    "stopped": never_return,
}


def checked(response: shard_pb.RowsResponse) -> shard_pb.RowsResponse:
    if response.rows and not response.rows[0].values:
        raise KeyError("a value of another release")
    if response.rows:
        raise Internal("shard 1/1 returned another size")
    return response


CHECKED = ShardCall(ONLY, "Rows", shard_pb.RowsRequest(), checked)


@pytest.mark.parametrize("bad", BAD)
def test_replica_that_fails_in_any_way_costs_no_request_and_few_calls(
    bad: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timeout_s = 4.0 if bad == "stopped" else WAIT_S
    done = called(tmp_path, BAD[bad], well, times=200, call=CHECKED, timeout_s=timeout_s)
    assert succeeded(done.results) >= 198
    assert done.calls <= 240
    ejected = {event["address"] for event in events_of(caplog, "shard_ejected")}
    assert ejected == {done.addresses[0]}


def test_calls_of_replicas_that_all_fail_are_bounded_and_none_is_ejected(tmp_path: Path) -> None:
    requests = 300
    seconds = time.monotonic()
    done = called(tmp_path, *[failing(Code.OVERLOADED)] * 3, times=requests)
    seconds = time.monotonic() - seconds
    # Beside a share of the calls, there is a reserve, and one per second.
    assert done.calls <= 1.2 * requests + 10 + seconds
    assert done.problems == ["", "", ""]


def test_ejected_replica_is_named_with_its_address_and_returns_when_it_is_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rowcast")
    problems = list[str]()

    async def recover(context: grpc.aio.ServicerContext) -> Any:
        if problems:
            return await well(context)
        return await failing(Code.DATA_LOSS)(context)

    def is_readmitted(router: Shards) -> bool:
        problems.extend([str(entry["problem"]) for entry in router.status() if entry["problem"]])
        time.sleep(0.001)
        return bool(events_of(caplog, "shard_readmitted"))

    done = called(tmp_path, recover, well, times=100_000, enough=is_readmitted)
    assert "DATA_LOSS" in problems[0]
    for event in ("shard_ejected", "shard_readmitted"):
        assert events_of(caplog, event)[0]["address"] == done.addresses[0]
    assert events_of(caplog, "shard_call_failed")[0]["problem"] == "why"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.NOT_READY, NotReady),
        (Code.NOT_FOUND, NotReady),
        (Code.DATA_LOSS, DataLoss),
        (Code.OVERLOADED, Overloaded),
        (Code.INTERNAL, Internal),
        # the router checks requests itself, so that nothing that a shard rejects is their fault
        (Code.INVALID_ARGUMENT, Internal),
        (Code.TOO_LARGE, Internal),
        # what only the operator can repair
        (Code.UNAUTHENTICATED, Internal),
        (Code.PERMISSION_DENIED, Internal),
        (Code.UNIMPLEMENTED, Internal),
    ],
)
def test_call_that_every_replica_fails_names_the_shard_and_no_address(
    code: Code, expected: type[ServiceError], tmp_path: Path
) -> None:
    done = called(tmp_path, failing(code), failing(code))
    (error,) = done.results
    assert type(error) is expected
    assert done.calls == 2
    assert "shard 1/1" in str(error)
    assert "127.0.0.1" not in str(error)
    if isinstance(error, Overloaded):
        assert error.retry_after_s == 3


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        ({"number": 0, "total": 0}, "shard 0/0"),
        ({"number": 2, "total": 1}, "shard 2/1"),
        ({"total": (1 << 31) - 1}, "1/2147483647"),
        ({"min_bytes": 5}, "at least 5 bytes"),
        ({"max_request_bytes": 5}, "max_request_bytes is 5"),
        ({"max_response_bytes": 0}, "max_response_bytes is 0"),
        ({"max_filter_terms": 99}, "max_filter_terms is 99"),
    ],
)
def test_shard_that_does_not_fit_the_router_is_not_called_and_says_why(
    description: dict[str, int], problem: str, tmp_path: Path
) -> None:
    done = called(tmp_path, well, description=description)
    assert (type(done.results[0]), done.calls) == (NotReady, 0)
    assert problem in done.problems[0]


ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)
LAYOUT = Layout(["movies", "users"], np.array([0, 2, 4]), "float32", 2, [True, True])
ALL_ROWS = LayoutRead(LAYOUT, np.arange(4)).slice_on(ONLY)


def read_rows(response: shard_pb.RowsResponse) -> Any:
    vectors = ALL_ROWS.vectors(ONLY, response.rows[0])
    return [vectors]


READ_ROWS = ShardCall(ONLY, "Rows", shard_pb.RowsRequest(), read_rows, [ALL_ROWS])


def returning(vectors: Any) -> Responder:
    stored = shard_pb.StoredRows(values=vectors.astype("<f4").tobytes())

    async def respond(context: grpc.aio.ServicerContext) -> shard_pb.RowsResponse:
        return shard_pb.RowsResponse(rows=[stored])

    return respond


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_that_are_not_finite_in_one_replica_fail_no_call_and_eject_it(
    value: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = np.where(ROWS == 5, np.float32(value), ROWS)
    done = called(tmp_path, returning(broken), returning(ROWS), times=100, call=READ_ROWS)
    assert all(np.array_equal(vectors, ROWS) for (vectors,) in done.results)
    ejections = events_of(caplog, "shard_ejected")
    assert {event["address"] for event in ejections} == {done.addresses[0]}
    assert "NOT_FINITE" in ejections[0]["problem"]

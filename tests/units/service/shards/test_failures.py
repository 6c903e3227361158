"""What a router makes of a shard that fails, or that returns what was not requested."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

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


@contextlib.asynccontextmanager
async def routed(
    root: Path, *responders: Responder, **description: Any
) -> AsyncIterator[tuple[Shards, list[FixedShard]]]:
    """Starts a router, and one replica of a shard for each of the responses."""
    shards = [FixedShard(responder, description) for responder in responders]
    async with listening(*shards) as addresses, routing(root, *addresses) as router:
        yield router, shards


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
    requests = 200
    timeout_s = 1.0 if bad == "stopped" else 60.0

    async def succeeded() -> tuple[int, int, set[str]]:
        responders = [BAD[bad], well]
        async with routed(tmp_path, *responders) as (router, shards):
            completed = 0
            for _ in range(requests):
                with contextlib.suppress(ServiceError):
                    await router.call(KEY, CHECKED, timeout_s)
                    completed += 1
            calls = sum(shard.calls for shard in shards)
            return completed, calls, {*list(router.replicas)[:1]}

    completed, calls, bad_addresses = asyncio.run(succeeded())
    assert completed >= 0.99 * requests
    assert calls <= 1.2 * requests
    ejected = {
        record.__dict__["rowcast_fields"]["address"]
        for record in caplog.records
        if record.message == "shard_ejected"
    }
    assert ejected
    assert ejected <= bad_addresses


def test_calls_are_bounded_by_the_retry_budget(tmp_path: Path) -> None:
    requests = 300

    async def count() -> int:
        async with routed(tmp_path, *[failing(Code.INTERNAL)] * 3) as (router, shards):
            for _ in range(requests):
                with contextlib.suppress(ServiceError):
                    await router.call(KEY, CALL, 60.0)
            return sum(shard.calls for shard in shards)

    seconds = time.monotonic()
    calls = asyncio.run(count())
    seconds = time.monotonic() - seconds
    # beside a share of the calls, a reserve, and one per second
    assert calls <= 1.2 * requests + 10 + seconds


def test_no_replica_is_ejected_if_all_fail_alike(tmp_path: Path) -> None:
    async def problems() -> list[str]:
        async with routed(tmp_path, *[failing(Code.OVERLOADED)] * 3) as (router, _):
            for _ in range(100):
                with contextlib.suppress(ServiceError):
                    await router.call(KEY, CALL, 60.0)
            return [entry["problem"] for entry in router.status()]

    assert asyncio.run(problems()) == ["", "", ""]


def test_ejected_replica_is_named_with_its_address_and_returns_when_it_is_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rowcast")

    async def eject_and_recover() -> tuple[str, str, int]:
        async with routed(tmp_path, failing(Code.DATA_LOSS), well) as (router, shards):
            address, replica = next(iter(router.replicas.items()))
            while not replica.outliers.problem:
                await router.call(KEY, CALL, 60.0)
            problem = next(e["problem"] for e in router.status() if e["address"] == address)
            shards[0].respond = well
            before = shards[0].calls
            while shards[0].calls < before + 20:
                await router.call(KEY, CALL, 60.0)
                await asyncio.sleep(0.01)
            assert replica.is_well
            assert not replica.outliers.on_probation
            return address, problem, replica.inflight

    address, problem, inflight = asyncio.run(eject_and_recover())
    assert "DATA_LOSS" in problem
    assert inflight == 0
    events = {record.message: record.__dict__["rowcast_fields"] for record in caplog.records}
    assert events["shard_ejected"]["address"] == address
    assert events["shard_readmitted"]["address"] == address
    assert events["shard_call_failed"]["problem"] == "why"


def failure_of_call(root: Path, *responders: Responder) -> tuple[ServiceError, int]:
    """Calls a shard whose replicas all fail; returns the router's error and the number of calls."""

    async def call() -> tuple[ServiceError, int]:
        async with routed(root, *responders) as (router, shards):
            with pytest.raises(ServiceError) as failed:
                await router.call(KEY, CALL, 60.0)
        return failed.value, sum(shard.calls for shard in shards)

    return asyncio.run(call())


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
    error, calls = failure_of_call(tmp_path, failing(code), failing(code))
    assert type(error) is expected
    assert calls == 2
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
    async def status() -> str:
        async with routed(tmp_path, well, **description) as (router, shards):
            with pytest.raises(NotReady):
                await router.call(KEY, CALL, 60.0)
            assert shards[0].calls == 0
            return str(router.status()[0]["problem"])

    assert problem in asyncio.run(status())


ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)
FLIPPED = np.where(np.arange(8).reshape(4, 2) == 5, 4.5, ROWS).astype(np.float32)
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


def events_of(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [
        record.__dict__["rowcast_fields"] for record in caplog.records if record.message == event
    ]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_that_are_not_finite_in_one_replica_fail_no_call_and_eject_it(
    value: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = np.where(ROWS == 5, np.float32(value), ROWS)

    async def call_often() -> list[str]:
        async with routed(tmp_path, returning(broken), returning(ROWS)) as (router, _):
            for _ in range(100):
                (vectors,) = await router.call(KEY, READ_ROWS, 60.0)
                assert np.array_equal(vectors, ROWS)
            return list(router.replicas)

    addresses = asyncio.run(call_often())
    ejections = events_of(caplog, "shard_ejected")
    assert {event["address"] for event in ejections} == {addresses[0]}
    assert "NOT_FINITE" in ejections[0]["problem"]


@pytest.mark.parametrize("count", [2, 3])
def test_rows_that_differ_between_replicas_are_reported_and_a_third_replica_decides(
    count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    responders = [returning(FLIPPED), *[returning(ROWS)] * (count - 1)]

    async def call_until_reported() -> tuple[list[str], list[str]]:
        shards = [FixedShard(responder, {}) for responder in responders]
        async with (
            listening(*shards) as addresses,
            routing(tmp_path, *addresses, shard_digest_share=1.0) as router,
        ):
            while not events_of(caplog, "shard_replicas_differ"):
                await router.call(KEY, READ_ROWS, 60.0)
            ejected = [
                address for address, replica in router.replicas.items() if replica.outliers.problem
            ]
            if ejected:
                for _ in range(20):
                    (vectors,) = await router.call(KEY, READ_ROWS, 60.0)
                    assert np.array_equal(vectors, ROWS)
            return addresses, ejected

    addresses, ejected = asyncio.run(call_until_reported())
    difference = events_of(caplog, "shard_replicas_differ")[0]
    assert addresses[0] in difference["addresses"]
    assert difference["rows"] == ["users[0]"]
    # With two replicas, nobody knows which of them is right.
    expected = addresses[: count - 2]
    assert ejected == expected
    assert difference["wrong"] == "".join(expected)

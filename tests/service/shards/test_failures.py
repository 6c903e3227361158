"""What a router makes of a shard that fails, or that returns what was not requested."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from bundle.format.manifest import Manifest
from bundle.storage.catalog import read_manifest
from bundle.tables.sharding import ShardNumber
from service.codec.failures import Failure
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.shard_service_pb2_grpc import (
    ShardServiceServicer,
    add_ShardServiceServicer_to_server,
)
from service.config import ServiceSettings
from service.engine.computation import completed
from service.engine.retrieval.sharded_search import IndexSearch
from service.errors import Code, Internal, NotReady, Overloaded, ServiceError
from service.grpc_api.status import abort
from service.observability.metrics import Metrics
from service.shards.remote_version import RemoteVersion
from service.shards.router import Shards

KEY = ("movies", 1, 7)
ONLY = ShardNumber(1, 1)


class FailingShard(ShardServiceServicer):
    """A shard that has the bundle, and fails every read in one way."""

    def __init__(
        self,
        fail: Callable[[grpc.aio.ServicerContext], Awaitable[Any]],
        shard: tuple[int, int] = (1, 1),
    ) -> None:
        self.fail = fail
        self.shard = shard
        self.calls = 0

    async def Describe(  # noqa: N802 - names of the contract
        self, request: Any, context: Any
    ) -> shard_pb.DescribeResponse:
        bundle = shard_pb.Bundle(model=KEY[0], version=KEY[1], fingerprint=KEY[2])
        number, total = self.shard
        return shard_pb.DescribeResponse(number=number, total=total, min_bytes=1, bundles=[bundle])

    async def Rows(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        self.calls += 1
        return await self.fail(context)


def failure_of_call(
    root: Path, fail: Callable[[grpc.aio.ServicerContext], Awaitable[Any]], replicas: int
) -> tuple[ServiceError, int]:
    """Calls a shard whose replicas all fail; returns the router's error and the number of calls."""

    async def call() -> tuple[ServiceError, int]:
        shards = [FailingShard(fail) for _ in range(replicas)]
        servers = []
        addresses = []
        for shard in shards:
            server = grpc.aio.server()
            add_ShardServiceServicer_to_server(shard, server)
            addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            await server.start()
            servers.append(server)

        router = Shards(
            ServiceSettings(root=root, shard_addresses=tuple(addresses), shard_min_bytes=1),
            Metrics(),
        )
        await router.start()
        try:
            with pytest.raises(ServiceError) as failed:
                await router.call(KEY, ONLY, "Rows", shard_pb.RowsRequest(), 5)
        finally:
            await router.stop()
            for server in servers:
                await server.stop(None)
        return failed.value, sum(shard.calls for shard in shards)

    return asyncio.run(call())


@pytest.mark.parametrize(
    "code",
    [Code.INVALID_ARGUMENT, Code.TOO_LARGE, Code.DATA_LOSS, Code.OVERLOADED, Code.INTERNAL],
)
def test_router_call_that_a_shard_fails_has_its_code_after_one_call(
    code: Code, tmp_path: Path
) -> None:
    async def fail(context: grpc.aio.ServicerContext) -> None:
        await abort(context, Failure(code, "why", "r-1", 3 if code is Code.OVERLOADED else None))

    error, calls = failure_of_call(tmp_path, fail, replicas=2)
    assert error.code is code
    assert calls == 1
    if code in (Code.INVALID_ARGUMENT, Code.TOO_LARGE):
        assert str(error) == "why"
    else:
        assert "shard 1/1 at 127.0.0.1:" in str(error)
    if isinstance(error, Overloaded):
        assert error.retry_after_s == 3


@pytest.mark.parametrize("code", [Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.UNIMPLEMENTED])
def test_router_call_that_only_the_operator_can_repair_is_internal(
    code: Code, tmp_path: Path
) -> None:
    async def fail(context: grpc.aio.ServicerContext) -> None:
        await abort(context, Failure(code, "why", "r-1"))

    error, calls = failure_of_call(tmp_path, fail, replicas=2)
    assert isinstance(error, Internal)
    assert code.value in str(error)
    assert calls == 1


@pytest.mark.parametrize("code", [Code.NOT_READY, Code.NOT_FOUND])
def test_router_call_of_a_shard_without_the_bundle_tries_another_replica(
    code: Code, tmp_path: Path
) -> None:
    async def fail(context: grpc.aio.ServicerContext) -> None:
        await abort(context, Failure(code, "not here", "r-1"))

    error, calls = failure_of_call(tmp_path, fail, replicas=3)
    assert isinstance(error, NotReady)
    assert "shard 1/1" in str(error)
    assert calls == 2


@pytest.mark.parametrize("shard", [(0, 0), (2, 1), (1, (1 << 31) - 1)])
def test_shard_with_an_impossible_number_is_not_called(
    shard: tuple[int, int], tmp_path: Path
) -> None:
    async def fail(context: grpc.aio.ServicerContext) -> None:
        raise AssertionError("no row is read")

    async def problem() -> str:
        server = grpc.aio.server()
        add_ShardServiceServicer_to_server(FailingShard(fail, shard), server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        router = Shards(ServiceSettings(root=tmp_path, shard_addresses=(address,)), Metrics())
        await router.start()
        await router.stop()
        await server.stop(None)
        return router.replicas[address].problem

    number, total = shard
    assert asyncio.run(problem()) == f"it describes itself as shard {number}/{total}"


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(Path(__file__).parents[2] / "golden/bundle/root/movies/1")


def remote_that_returns(manifest: Manifest, response: Any) -> RemoteVersion:
    async def call_all(key: Any, method: str, requests: Any, left_s: float) -> Any:
        return dict.fromkeys(requests, response)

    return RemoteVersion(call_all, manifest, KEY, 1, 1)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [shard_pb.StoredRows()],
        [shard_pb.StoredRows(values=b"\0" * 31)],
        [shard_pb.StoredRows(values=b"\0" * 64)],
        [shard_pb.StoredRows(values=b"\0" * 32, scales=b"\0" * 4)],
        [shard_pb.StoredRows(values=b"\0" * 32)] * 2,
    ],
)
def test_rows_of_another_size_than_requested_are_an_internal_error(
    rows: list[shard_pb.StoredRows], manifest: Manifest
) -> None:
    remote = remote_that_returns(manifest, shard_pb.RowsResponse(rows=rows))
    table = remote.tables["users"]
    wanted = {table.among.name: np.array([table.first + 3])}
    with pytest.raises(Internal, match="shard 1/1 returned"):
        completed(remote.rows(wanted, 1.0))


def integers(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


@pytest.mark.parametrize(
    ("counts", "positions", "scores"),
    [
        (integers(), b"", b""),
        (integers(1), integers(3), b""),
        (integers(2), integers(3), integers(0)),
        (integers(3), integers(1, 2, 3), integers(0, 0, 0)),
        (integers(1), integers(1_000_000), integers(0)),
        (b"\1", integers(3), integers(0)),
    ],
    ids=["no counts", "no scores", "wrong count", "more than k", "not held", "cut short"],
)
def test_candidates_that_do_not_fit_the_search_are_an_internal_error(
    counts: bytes, positions: bytes, scores: bytes, manifest: Manifest
) -> None:
    index = manifest.indexes["movies"].model_copy(update={"partitions": 2})
    sharded = manifest.model_copy(update={"indexes": {"movies": index}})
    response = shard_pb.SearchResponse(counts=counts, positions=positions, scores=scores)
    search = IndexSearch(index="movies", vectors=np.zeros((1, index.dim), np.float32), k=2)
    with pytest.raises(Internal, match="shard 1/1 returned"):
        completed(remote_that_returns(sharded, response).search(search, 1.0))

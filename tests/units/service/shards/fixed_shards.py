"""Shards that respond in one way to all reads, and a router, in the process of the tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from bundle.tables.shard_number import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.shard_service_pb2_grpc import (
    ShardServiceServicer,
    add_ShardServiceServicer_to_server,
)
from service.config import ServiceSettings
from service.observability.metrics import Metrics
from service.shards.messages import MESSAGE_LIMITS
from service.shards.remote_version import ShardCall
from service.shards.router import Shards
from tests.e2e.process import WAIT_S

KEY = ("movies", 1, 7)
ONLY = ShardNumber(1, 1)
CALL = ShardCall(ONLY, "Rows", shard_pb.RowsRequest(), lambda response: response)

Responder = Callable[[grpc.aio.ServicerContext], Awaitable[Any]]


class FixedShard(ShardServiceServicer):
    """A shard that has a bundle, and responds to every read in one way.

    Attributes:
      key: The bundle.
      may_describe: Cleared: calls of Describe wait.
      polls: The number of calls of Describe.
      calls: The number of reads.
    """

    def __init__(
        self, respond: Responder, description: Mapping[str, Any], key: tuple[str, int, int] = KEY
    ) -> None:
        self.respond = respond
        self.description = description
        self.key = key
        self.may_describe = asyncio.Event()
        self.may_describe.set()
        self.polls = 0
        self.calls = 0

    async def Describe(  # noqa: N802 - names of the contract
        self, request: Any, context: Any
    ) -> shard_pb.DescribeResponse:
        self.polls += 1
        await self.may_describe.wait()
        model, version, fingerprint = self.key
        bundle = shard_pb.Bundle(model=model, version=version, fingerprint=fingerprint)
        limits = {name: ServiceSettings.model_fields[name].default for name in MESSAGE_LIMITS}
        fields = {"number": 1, "total": 1, "min_bytes": 1, **limits, **self.description}
        return shard_pb.DescribeResponse(bundles=[bundle], **fields)

    async def Rows(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        self.calls += 1
        return await self.respond(context)


async def well(context: grpc.aio.ServicerContext) -> shard_pb.RowsResponse:
    return shard_pb.RowsResponse()


@contextlib.asynccontextmanager
async def listening(*shards: FixedShard) -> AsyncIterator[list[str]]:
    """Has shards listen on loopback; yields their addresses."""
    servers = []
    addresses = []
    for shard in shards:
        server = grpc.aio.server()
        add_ShardServiceServicer_to_server(shard, server)
        addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    try:
        yield addresses
    finally:
        for server in servers:
            await server.stop(None)


@contextlib.asynccontextmanager
async def routing(root: Path, *sources: str, **settings: Any) -> AsyncIterator[Shards]:
    """Starts a router of shards at some addresses."""
    options = {"shard_min_bytes": 1, "request_timeout_s": WAIT_S} | settings
    router = Shards(ServiceSettings(root=root, shard_addresses=sources, **options), Metrics())
    await router.start()
    try:
        yield router
    finally:
        await router.stop()

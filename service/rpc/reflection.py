"""gRPC's server reflection: what is called here, told to tools that have no proto file. Loaded when first asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache
from typing import Any

from google.protobuf.message import DecodeError

from service.errors import InvalidArgument, ServiceError
from service.rpc import convert
from service.rpc.transport.streams import Method, Reply, Stream
from service.security.callers import Caller
from service.wire.calls import request_id_of
from service.wire.failures import failure_of

SERVICE = "grpc.reflection.v1alpha.ServerReflection"


def methods(services: tuple[str, ...], check: Callable[[Mapping[bytes, bytes]], Caller] | None) -> dict[bytes, Method]:
    """Returns the methods by path, which tell of `services` to whom `check` lets in."""

    async def answer(stream: Stream) -> Reply:
        servicer, read = await asyncio.to_thread(_loaded, services)

        async def asked() -> AsyncIterator[Any]:
            async for message in stream.messages():
                try:
                    yield read(message)
                except DecodeError:
                    raise InvalidArgument("the body is no ServerReflectionRequest") from None

        try:
            async for told in servicer.ServerReflectionInfo(asked(), None):
                await stream.send(told.SerializeToString())
        except ServiceError as problem:
            return convert.refusal(failure_of(problem, request_id_of(None, None)))
        return Reply(None)

    return {f"/{SERVICE}/ServerReflectionInfo".encode(): Method(answer, at_once=True, check=check)}


@cache
def _loaded(services: tuple[str, ...]) -> tuple[Any, Any]:
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    return reflection.aio.ReflectionServicer(services), reflection_pb2.ServerReflectionRequest.FromString

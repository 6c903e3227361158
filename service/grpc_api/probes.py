"""What surrounds health checks, which need no token, and reflection, which does: bounds on what
clients hold open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import HandlerCallDetails, RpcMethodHandler
from grpc.aio import ServerInterceptor, ServicerContext
from grpc_health.v1.health_pb2 import HealthCheckRequest

from service.codec import protobuf
from service.codec.failures import failure_of
from service.codec.metadata import REQUEST_ID, request_id_of
from service.errors import Overloaded, ServiceError, TooLarge
from service.grpc_api.interceptors import (
    CallInterceptor,
    Continuation,
    check_metadata,
    read_metadata,
)
from service.grpc_api.reading import Reading
from service.grpc_api.status import abort

MAX_STREAMS = 1_000
"""Maximum number of open streams of health watches and reflection."""
MAX_READING = 16
"""Maximum number of health checks whose messages are being read."""
MAX_UNREAD = 512
"""Number of health checks whose messages have not arrived. Beyond it, a connection with more than
its share of them may not begin others.
"""
MAX_MESSAGE_BYTES = 1_024
"""Maximum size of a health check's message."""
MESSAGE_TIMEOUT_S = 5.0
"""Time within which a client must send the message of a health check."""


class ProbeInterceptor(ServerInterceptor):  # type: ignore[misc] # grpc is untyped
    """Surrounds the methods of health and reflection."""

    def __init__(self, calls: CallInterceptor) -> None:
        """Creates the interceptor; `calls` authenticates clients."""
        self._authenticate = calls.authenticate
        self._services = calls.services
        self._reading = Reading(MAX_READING, MAX_UNREAD)
        self._streams: set[asyncio.Task[Any] | None] = set()

    def end_streams(self) -> None:
        """Ends every watch: a shutdown would wait for them."""
        for stream in self._streams:
            if stream is not None:
                stream.cancel()

    async def intercept_service(
        self, continuation: Continuation, details: HandlerCallDetails
    ) -> RpcMethodHandler | None:
        """Returns the handler of a method."""
        handler = await continuation(details)
        if handler is None or details.method.split("/")[1] in self._services:
            return handler

        async def respond(requests: AsyncIterator[Any], context: ServicerContext) -> None:
            metadata = read_metadata(context.invocation_metadata())
            stream = asyncio.current_task()
            try:
                check_metadata(context.invocation_metadata())
                # Reflection alone receives a stream. Health checks need no token: probes have none.
                if handler.request_streaming:
                    self._authenticate(context, metadata)
                if handler.response_streaming:
                    if len(self._streams) >= MAX_STREAMS:
                        raise Overloaded(f"{MAX_STREAMS} streams are open", 1.0)
                    self._streams.add(stream)
                await self._respond(handler, requests, context)
            except ServiceError as problem:
                request_id = request_id_of(metadata.get(REQUEST_ID), None)
                await abort(context, failure_of(problem, request_id))
            except asyncio.CancelledError:
                # The client has disconnected, or the service is shutting down.
                return
            finally:
                self._streams.discard(stream)

        # The one message of a health check is parsed by `_respond`, once its size was checked.
        deserializer = None
        if handler.request_streaming:
            deserializer = handler.request_deserializer
        return grpc.stream_stream_rpc_method_handler(
            respond, deserializer, handler.response_serializer
        )

    async def _respond(
        self, handler: RpcMethodHandler, requests: AsyncIterator[Any], context: ServicerContext
    ) -> None:
        if handler.stream_stream is not None:
            async for response in handler.stream_stream(requests, context):
                await context.write(response)
            return
        message = await self._reading.read(context, MESSAGE_TIMEOUT_S)
        if len(message) > MAX_MESSAGE_BYTES:
            raise TooLarge.of_limit("message", f"{len(message)} bytes", MAX_MESSAGE_BYTES)
        request = protobuf.parse(HealthCheckRequest, message)
        if handler.unary_unary is not None:
            await context.write(await handler.unary_unary(request, context))
        else:
            await handler.unary_stream(request, context)

"""What surrounds health checks, which need no token, and reflection, which does: bounds on what clients hold open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import HandlerCallDetails, RpcMethodHandler
from grpc.aio import ServerInterceptor, ServicerContext

from service.codec.failures import failure_of
from service.codec.metadata import REQUEST_ID, request_id_of
from service.errors import DeadlineExceeded, InvalidArgument, Overloaded, ServiceError, TooLarge
from service.grpc_api.interceptors import CallInterceptor, Continuation, joined, read
from service.grpc_api.servicer import SERVICE
from service.grpc_api.status import abort

MAX_WATCHES, MAX_REFLECTIONS, MAX_READING = 1_000, 8, 16
"""Health watches and reflection streams at once, and messages of health checks that are read at once."""
MAX_MESSAGE_BYTES, MESSAGE_TIMEOUT_S = 1_024, 5.0
"""Size of a health check's message, and the time to send it."""
REFLECTION_TIMEOUT_S = 10.0


class ProbeInterceptor(ServerInterceptor):  # type: ignore[misc] # grpc is untyped
    """Surrounds the methods of health and reflection."""

    def __init__(self, calls: CallInterceptor) -> None:
        """Takes what authenticates clients."""
        self._authenticate = calls.authenticate
        self._reading = asyncio.Semaphore(MAX_READING)
        self._watches: set[asyncio.Future[None]] = set()
        self._reflections = 0

    def end_watches(self) -> None:
        """Ends every watch: a shutdown would wait for them."""
        for watch in self._watches:
            watch.cancel()

    async def intercept_service(
        self, continuation: Continuation, details: HandlerCallDetails
    ) -> RpcMethodHandler | None:
        """Returns the handler of a method."""
        handler = await continuation(details)
        if handler is None or details.method.startswith(f"/{SERVICE}/"):
            return handler
        if handler.unary_unary is not None:
            return self._check(handler)
        return self._watch(handler) if handler.unary_stream is not None else self._reflect(handler)

    def _check(self, handler: RpcMethodHandler) -> RpcMethodHandler:
        async def respond(_: object, context: ServicerContext) -> Any:
            async with _failures_reported(context):
                return await handler.unary_unary(await self._read(handler, context), context)

        return grpc.stream_unary_rpc_method_handler(respond, None, handler.response_serializer)

    def _watch(self, handler: RpcMethodHandler) -> RpcMethodHandler:
        async def respond(_: object, context: ServicerContext) -> None:
            async with _failures_reported(context):
                request = await self._read(handler, context)
                if len(self._watches) >= MAX_WATCHES:
                    raise Overloaded(f"{MAX_WATCHES} watches are open", 1.0)
                watch = asyncio.ensure_future(handler.unary_stream(request, context))
                self._watches.add(watch)
                try:
                    await asyncio.gather(watch, return_exceptions=True)
                finally:
                    self._watches.discard(watch)

        return grpc.stream_stream_rpc_method_handler(respond, None, handler.response_serializer)

    def _reflect(self, handler: RpcMethodHandler) -> RpcMethodHandler:
        async def respond(requests: AsyncIterator[Any], context: ServicerContext) -> None:
            async with _failures_reported(context):
                self._authenticate(context, joined(context.invocation_metadata()))
                if self._reflections >= MAX_REFLECTIONS:
                    raise Overloaded(f"{MAX_REFLECTIONS} reflection streams are open", 1.0)
                self._reflections += 1
                try:
                    async with asyncio.timeout(REFLECTION_TIMEOUT_S):
                        async for response in handler.stream_stream(requests, context):
                            await context.write(response)
                except TimeoutError:
                    raise DeadlineExceeded("the stream was open for too long") from None
                finally:
                    self._reflections -= 1

        return grpc.stream_stream_rpc_method_handler(respond, handler.request_deserializer, handler.response_serializer)

    async def _read(self, handler: RpcMethodHandler, context: ServicerContext) -> Any:
        message = await read(context, MESSAGE_TIMEOUT_S, self._reading)
        if len(message) > MAX_MESSAGE_BYTES:
            raise TooLarge(f"the message has {len(message)} bytes; at most {MAX_MESSAGE_BYTES} are accepted")
        try:
            return handler.request_deserializer(message)
        except DecodeError:
            raise InvalidArgument("the message is not a HealthCheckRequest") from None


@contextlib.asynccontextmanager
async def _failures_reported(context: ServicerContext) -> AsyncIterator[None]:
    try:
        yield
    except ServiceError as problem:
        request_id = request_id_of(joined(context.invocation_metadata()).get(REQUEST_ID), None)
        await abort(context, failure_of(problem, request_id))

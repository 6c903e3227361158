"""What surrounds the service's methods: authentication, admission, reading within limits, deadline,
metrics, errors.

`grpc.aio` reads and parses a unary request before it calls the method. Here a handler takes a
stream, which is the same on the wire, and reads the one message itself, once the client is
authenticated and the request admitted.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
from grpc import HandlerCallDetails, RpcMethodHandler
from grpc.aio import ServerInterceptor, ServicerContext

from service.codec.failures import Failure, failure_of, log_failure
from service.codec.json import PIECE_BYTES
from service.codec.metadata import (
    REQUEST_ID,
    SERVER_TIMING,
    TIMEOUT_MS,
    TRACE_PARENT,
    check_request_id,
    request_id_of,
    server_timing,
    timeout_s_of,
)
from service.dataplane import GZIP_OR_ZLIB, Dataplane
from service.engine.context import RequestContext
from service.errors import NotReady, Overloaded, TooLarge, Unimplemented
from service.grpc_api.reading import Reading
from service.grpc_api.servicer import GrpcService
from service.grpc_api.status import abort
from service.observability import logging
from service.security.principal import NAME_CHARS_MAX, Principal

_log = logging.logger(__name__)

METADATA_BYTES = 16 << 10
"""Maximum size of a call's metadata: a token, ids and what proxies add are far below."""
_READ = frozenset({"authorization", REQUEST_ID, TIMEOUT_MS, TRACE_PARENT})
"""The metadata that the service reads."""
_NOT_COMPUTED = frozenset({"models", "model", "describe", "change", "changes", "other"})
"""Calls that are never rejected for an overload of the engine: they cost about as much as a
rejection, or wait for a disk in threads with a limit of their own.
"""

_GZIP = b"\x1f\x8b"
"""The first bytes of gzip, with which no message begins: they are no valid tag of a field."""
_ZLIB = b"\x78"
"""The first byte of the encoding that gRPC calls deflate. A message that begins with a number in
field 15 has it, too.
"""
_PROBED_BYTES = 1_024
"""Number of bytes that are decompressed to see whether they are compressed."""

Continuation = Callable[[HandlerCallDetails], Awaitable[RpcMethodHandler | None]]
Method = Callable[[bytes, RequestContext], Awaitable[bytes]]


class CallInterceptor(ServerInterceptor):  # type: ignore[misc] # grpc is untyped
    """Surrounds the methods of the services, and responds to calls of methods that do not exist."""

    def __init__(
        self,
        dataplane: Dataplane,
        services: Sequence[GrpcService],
        services_off: Mapping[str, str],
    ) -> None:
        """Creates the interceptor.

        Args:
          dataplane: Executes the calls.
          services: The services whose calls the interceptor surrounds.
          services_off: The protocols that the service could speak, by the names of their services.
        """
        self.services = {service.name: service for service in services}
        self._services_off = services_off
        self._dataplane = dataplane
        self._tokens = dataplane.tokens
        self._settings = dataplane.settings
        self._handlers = dict[str, RpcMethodHandler]()
        # The size of a message is known only when it has been read. Until then, each may be as
        # large as the limit.
        slots = self._settings.max_inflight_bytes // self._settings.max_request_bytes
        self._reading = Reading(slots, 2 * self._settings.max_concurrent_requests)

    async def intercept_service(
        self, continuation: Continuation, details: HandlerCallDetails
    ) -> RpcMethodHandler | None:
        """Returns the handler of a method."""
        # gRPC requests the handler for each call, so it is created once.
        handler = self._handlers.get(details.method)
        if handler is not None:
            return handler
        handler = await continuation(details)
        name, _, method = details.method.removeprefix("/").partition("/")
        service = self.services.get(name)
        # A handler of an unknown method is not stored, since clients choose the names.
        if handler is None:
            return self._handler("other", self._absence(name))
        # Health and reflection have an interceptor of their own.
        if service is None:
            return handler
        handler = self._handler(service.calls[method], handler.unary_unary)
        self._handlers[details.method] = handler
        return handler

    def authenticate(
        self, context: ServicerContext, metadata: Mapping[str, str]
    ) -> Principal | None:
        """Returns who sent a request, by its token or else by its certificate; None: the service
        requires neither.

        Raises:
          Unauthenticated: The token is missing or unknown.
        """
        if self._tokens is not None:
            principal = self._tokens.authenticate(metadata.get("authorization"))
        elif self._settings.tls_client_ca is not None:
            principal = Principal(_certificate_name(context.auth_context()))
        else:
            return None
        logging.PRINCIPAL.set(principal.name)
        return principal

    def _absence(self, service: str) -> Unimplemented:
        """Returns the error of a method that does not exist."""
        protocol = self._services_off.get(service)
        if protocol is not None:
            return Unimplemented(
                f"the method does not exist; a service that is started with --protocols {protocol} "
                "has it"
            )
        return Unimplemented(
            f"the method does not exist; the methods are those of {', '.join(self.services)}"
        )

    def _handler(self, call: str, method: Method | Unimplemented) -> RpcMethodHandler:
        async def respond(_: object, context: ServicerContext) -> bytes:
            began = time.perf_counter()
            metadata = read_metadata(context.invocation_metadata())
            request = self._request(call, metadata, context)
            failure: Failure | None = None
            try:
                check_metadata(context.invocation_metadata())
                request.principal = self.authenticate(context, metadata)
                check_request_id(metadata, request.request_id)
                if TIMEOUT_MS in metadata:
                    timeout_s = timeout_s_of(metadata[TIMEOUT_MS])
                    request.deadline = min(request.deadline, time.monotonic() + timeout_s)
                rejection = self._rejection(request)
                if rejection is None:
                    response = await self._execute(method, context, request)
            except (Exception, asyncio.CancelledError) as problem:
                failure = failure_of(problem, request.request_id)
                model = self._dataplane.metrics.known_model(request.model)
                log_failure(_log, call, failure, problem, model)
                seconds = time.perf_counter() - began
                self._dataplane.request_finished("grpc", request, failure.code.value, seconds)
                # The client has left, or the service stops: gRPC ends the call itself.
                if isinstance(problem, asyncio.CancelledError):
                    raise
            # Behind the block: gRPC keeps its own error, which would refer to this one, and with it
            # to the message, until the next garbage collection.
            if failure is not None:
                await abort(context, failure, _timing(request))
            # An overload rejects thousands of calls per second: they are counted, but neither timed
            # nor logged one by one.
            if rejection is not None:
                self._dataplane.request_rejected(
                    "grpc", call, "", rejection.code.value, request.request_id
                )
                await abort(context, failure_of(rejection, request.request_id))
            self._dataplane.request_finished("grpc", request, "OK", time.perf_counter() - began)
            context.set_trailing_metadata(((REQUEST_ID, request.request_id), *_timing(request)))
            return response

        # A stream is the same on the wire, and leaves it to `_execute` when the message is read.
        return grpc.stream_unary_rpc_method_handler(respond)

    def _request(
        self, call: str, metadata: Mapping[str, str], context: ServicerContext
    ) -> RequestContext:
        """Returns the context of a call, of which nothing but the metadata was read."""
        request_id = request_id_of(metadata.get(REQUEST_ID), metadata.get(TRACE_PARENT))
        timeout_s = self._settings.request_timeout_s
        remaining_s = context.time_remaining()
        if remaining_s is not None:
            timeout_s = min(remaining_s, timeout_s)
        request = RequestContext(call, request_id, time.monotonic() + timeout_s)
        request.trace_parent = metadata.get(TRACE_PARENT, "")
        return request

    def _rejection(self, request: RequestContext) -> Overloaded | None:
        """Returns why a call is rejected before its message is read; None: it is admitted.

        Raises:
          NotReady: The service is draining.
        """
        if request.call in _NOT_COMPUTED:
            return None
        self._dataplane.engine.call_accepted()
        problem = self._dataplane.engine.rejection(request.call, request.deadline)
        if isinstance(problem, NotReady):
            raise problem
        return problem

    async def _execute(
        self, method: Method | Unimplemented, context: ServicerContext, request: RequestContext
    ) -> bytes:
        if isinstance(method, Unimplemented):
            raise method

        timeout_s = min(self._settings.body_timeout_s, request.deadline - time.monotonic())
        message = await self._reading.read(context, timeout_s)
        budget = self._dataplane.budget
        budget.reserve(request, len(message))
        try:
            if _is_compressed(message):
                message = await self._dataplane.decompress(message, request, GZIP_OR_ZLIB)
            response = await method(message, request)
        except BaseException:
            # Also of a call that is cancelled, which is no Exception.
            budget.release(request)
            raise
        # A large response counts in the budget until the client has read it.
        if len(response) > PIECE_BYTES:
            context.add_done_callback(lambda _: budget.release(request))
        else:
            budget.release(request)
        return response


def _is_compressed(message: bytes) -> bool:
    """Returns whether a message is compressed, which gRPC shows to its core alone."""
    if message.startswith(_ZLIB):
        try:
            zlib.decompressobj().decompress(message[:_PROBED_BYTES], _PROBED_BYTES)
        except zlib.error:
            return False
        return True
    return message.startswith(_GZIP)


def read_metadata(metadata: Any) -> dict[str, str]:
    """Returns the metadata of a call that the service reads; a key that comes more than once has
    the list of its values.
    """
    values: dict[str, list[str]] = {}
    for key, value in metadata or ():
        if key in _READ:
            values.setdefault(key, []).append(value)
    return {key: ",".join(texts) for key, texts in values.items()}


def check_metadata(metadata: Any) -> None:
    """Rejects a call with too much metadata. gRPC limits its size as sent, in which references to a
    value of kilobytes take a byte each (RFC 7541, section 7.3).

    Raises:
      TooLarge: It has more than METADATA_BYTES.
    """
    size = sum([len(key) + len(value) for key, value in metadata or ()])
    if size > METADATA_BYTES:
        raise TooLarge.of_limit("metadata", f"{size} bytes", METADATA_BYTES)


def _timing(request: RequestContext) -> tuple[tuple[str, str], ...]:
    if not request.phases:
        return ()
    return ((SERVER_TIMING, server_timing(request.phases)),)


def _certificate_name(properties: Mapping[str, Any]) -> str:
    names = (
        *properties.get("x509_common_name", ()),
        *properties.get("x509_subject_alternative_name", ()),
        b"unnamed",
    )
    return str(names[0].decode(errors="replace"))[:NAME_CHARS_MAX]

"""What surrounds every request: its id, its metrics, its failure, and its client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message as ProtobufMessage
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.changes.copying import STATES
from service.codec import json
from service.codec.failures import (
    Failure,
    failure_of,
    log_failure,
)
from service.codec.metadata import (
    JSON,
    PROTOBUF,
    REQUEST_ID,
    SERVER_TIMING,
    TRACE_PARENT,
    Headers,
    accepts_protobuf,
    check_request_id,
    deadline_of,
    read_headers,
    request_id_of,
    server_timing,
)
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.errors import Cancelled, Unauthenticated
from service.http.calls import BodyTimeout, MethodNotAllowed
from service.http.other_protocols import OtherProtocol, error_response, protocol_of
from service.http.pages import DOCUMENTATION, PartwiseSending, Turns, is_of_start_page
from service.http_protocol import UnknownConnection
from service.observability import logging
from service.security.client_certificate import client_name
from service.security.hosts import AllowedHosts
from service.security.principal import NAME_CHARS_MAX, Principal

PROBES = frozenset({"/livez", "/readyz"})
"""The paths of health checks. They are open to everybody, since probes have no token. Their
failures are not logged, since they come every second.
"""

_SKIPPED_BYTES = 64 << 20
"""The unread body of a rejected request is skipped by the server up to this size, so that the
client reads why.
"""
_LOG = logging.logger(__name__)
_UNKNOWN_CONNECTION = UnknownConnection()
_REQUEST_ID = REQUEST_ID.encode()
_SERVER_TIMING = SERVER_TIMING.encode()


class RequestContextMiddleware:
    """Gives every request its context, authenticates its client, and responds to what is raised in
    the one form of errors.

    The state of the ASGI scope then holds `context`, the engine's RequestContext, and `headers`.
    """

    def __init__(
        self, app: ASGIApp, dataplane: Dataplane, protocols: Sequence[OtherProtocol] = ()
    ) -> None:
        """Creates the middleware.

        Args:
          app: Responds to the requests.
          dataplane: Counts the requests.
          protocols: The protocols that the service speaks beside its own.
        """
        self._app = app
        self._protocols = protocols
        self._probes = PROBES.union(*[protocol.probes for protocol in protocols])
        self._dataplane = dataplane
        self._engine = dataplane.engine
        self._tokens = dataplane.tokens
        settings = dataplane.settings
        self._timeout_s = settings.request_timeout_s
        self._authenticates = self._tokens is not None or settings.tls_client_ca is not None
        self._hosts = AllowedHosts(
            settings.host, settings.allowed_hosts, authenticates=self._authenticates
        )
        self._has_web_pages = settings.web_pages
        self._files = PartwiseSending(app, settings.body_timeout_s)
        self._pages = Turns(self._files)
        self._states = Turns(self._files)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        headers = read_headers(scope["headers"])
        is_probe = scope["path"] in self._probes
        trace_parent = headers.get(TRACE_PARENT, "")
        request_id = request_id_of(headers.get(REQUEST_ID), trace_parent)
        context = RequestContext("other", request_id, began + self._timeout_s)
        context.trace_parent = trace_parent
        # The endpoint replaces it once the body has arrived.
        context.received_at = began
        scope["state"]["context"] = context
        scope["state"]["headers"] = headers
        connection = scope["state"].get("connection", _UNKNOWN_CONNECTION)
        code = "OK"
        has_begun = False
        seconds = 0.0

        async def send_completed(message: Message) -> None:
            """Counts the request, and adds the headers that every response has."""
            nonlocal code, has_begun, seconds
            # A failure is reported as what it is, whoever is there to receive it.
            if code == "OK" and connection.is_left:
                raise Cancelled("the client disconnected before the response was sent")
            if message["type"] == "http.response.start":
                has_begun = True
                seconds = time.monotonic() - context.received_at
                further_headers = self._further_headers(scope["method"], headers, context)
                message["headers"] = [*message["headers"], *further_headers]
            elif not message.get("more_body", False):
                # Counted before it is sent, so that a client that reads the metrics next finds it.
                self._dataplane.request_finished("http", context, code, seconds)
                code = ""
            await send(message)

        try:
            app = self._app if is_probe else self._app_of(scope, headers, context)
            await app(scope, receive, send_completed)
        except Exception as problem:
            failure = failure_of(problem, request_id)
            if not is_probe:
                model = self._dataplane.metrics.known_model(context.model)
                log_failure(_LOG, context.call, failure, problem, model)
            # The whole response was counted and sent.
            if not code:
                raise
            code = failure.code.value
            # There is nobody to respond to, or no way to respond.
            if has_begun or connection.is_left:
                seconds = time.monotonic() - context.received_at
                self._dataplane.request_finished("http", context, code, seconds)
                connection.abandon()
                return
            protocol = protocol_of(self._protocols, scope["path"])
            response = _response(failure, problem, headers, protocol)
            await response(scope, receive, send_completed)

    def _further_headers(
        self, method: str, headers: Headers, context: RequestContext
    ) -> list[tuple[bytes, bytes]]:
        """Returns the headers that every response has."""
        further_headers = [(_REQUEST_ID, context.request_id.encode())]
        if context.phases:
            further_headers.append((_SERVER_TIMING, server_timing(context.phases).encode()))
        # Nobody reads the body of other methods, and nothing limits its trailers.
        has_unread_body = "transfer-encoding" in headers and method != "POST"
        if self._engine.shutting_down or has_unread_body:
            further_headers.append((b"connection", b"close"))
        return further_headers

    def _app_of(self, scope: Scope, headers: Headers, context: RequestContext) -> ASGIApp:
        """Returns what responds to a request, once it is known who sent it."""
        self._hosts.check(headers.get("host", ""))
        # A browser sends no token before a person has written it into the page.
        is_open = is_of_start_page(scope["method"], scope["path"], headers)
        if self._authenticates and not (is_open and self._has_web_pages):
            context.principal = self._authenticate(headers)
        check_request_id(headers, context.request_id)
        context.deadline = deadline_of(headers, self._timeout_s)
        # Changes are sent by POST, too, and wait for no page.
        if scope["method"] == "POST":
            return self._app
        # Files are the same for everyone: who reads one slowly holds none of this process's memory.
        if is_open or scope["path"].startswith(DOCUMENTATION):
            return self._files
        # Other services copy the states, whatever people look at meanwhile.
        if scope["path"].endswith(STATES):
            return self._states
        return self._pages

    def _authenticate(self, headers: Headers) -> Principal:
        """Returns who sent a request, by its token or else by its certificate.

        Raises:
          Unauthenticated: The token is missing or unknown.
        """
        # A pipelined request begins in the context of the one before it.
        logging.PRINCIPAL.set("")
        if self._tokens is not None:
            principal = self._tokens.authenticate(headers.get("authorization"))
        else:
            principal = Principal(client_name()[:NAME_CHARS_MAX])
        logging.PRINCIPAL.set(principal.name)
        return principal


def _response(
    failure: Failure, problem: Exception, headers: Headers, protocol: OtherProtocol | None
) -> Response:
    """Returns the response to a failed request, whose body may not have been read."""
    status, media_type, body = error_response(failure, headers, protocol)
    response = Response(body, status, media_type=media_type)
    # Headers of HTTP beside the form of the protocol.
    if failure.retry_after_s is not None:
        response.headers["retry-after"] = str(failure.retry_after_s)
    if isinstance(problem, Unauthenticated):
        response.headers["www-authenticate"] = "Bearer"
    elif isinstance(problem, MethodNotAllowed):
        response.status_code = 405
        response.headers["allow"] = problem.allowed
    # Otherwise the server would receive and skip any number of bytes before the next request.
    body_bytes = int(headers.get("content-length", "0"))
    unbounded = "transfer-encoding" in headers or body_bytes > _SKIPPED_BYTES
    if unbounded or isinstance(problem, BodyTimeout):
        response.headers["connection"] = "close"
    return response


def response_of(
    headers: Headers, message: Callable[[], ProtobufMessage], value: Callable[[], Any]
) -> Response:
    """Returns a response in the form that the headers of the request name."""
    if accepts_protobuf(headers):
        return Response(message().SerializeToString(), media_type=PROTOBUF)
    return Response(json.dump(value()), media_type=JSON)

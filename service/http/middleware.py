"""What surrounds every request: its id, its metrics, its failure, and who sent it."""

from __future__ import annotations

import math
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.codec import json
from service.codec.failures import Failure, failure_of, log_failure
from service.codec.metadata import REQUEST_ID, SERVER_TIMING, TRACE_PARENT, request_id_of, server_timing
from service.codec.stubs import embedding_service_pb2 as pb
from service.dataplane import Application
from service.engine.context import RequestContext
from service.errors import TRANSPORT_STATUS, InvalidArgument, Unauthenticated
from service.http.body import drain, is_left_unread
from service.http.headers import JSON, PROTOBUF, accepts_protobuf, joined, text_of
from service.observability import logging
from service.security.tokens import TokenStore

PROBES = frozenset({"/livez", "/readyz"})
"""Open to everybody: probes have no token. Their failures are not logged: they come every second."""

Header = tuple[bytes, bytes]

_LOG = logging.logger(__name__)
_REQUEST_ID, _SERVER_TIMING = REQUEST_ID.encode(), SERVER_TIMING.encode()
_CLOSE: Header = (b"connection", b"close")


class MethodNotAllowed(InvalidArgument):
    """The path does not have this method. HTTP has a status of its own for that."""

    def __init__(self, method: str, allowed: str) -> None:
        """Takes the method that was sent and those that the path has."""
        super().__init__(f"method {method[:20]} is not allowed for this path; {allowed} is")
        self.allowed = allowed


class RequestContextMiddleware:
    """Gives every request its context, and answers whatever is raised below in the one form of errors.

    The state of the ASGI scope then holds `context`, the engine's RequestContext, and `headers`.
    """

    def __init__(self, app: ASGIApp, application: Application) -> None:
        self._app, self._metrics, self._readiness = app, application.metrics, application.readiness
        self._timeout_s = application.settings.request_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        headers = joined(scope["headers"])
        request_id = request_id_of(text_of(headers, REQUEST_ID), text_of(headers, TRACE_PARENT))
        context = RequestContext("other", request_id, began + self._timeout_s)
        scope.setdefault("state", {}).update(context=context, headers=headers)
        code = "OK"

        async def send_completed(message: Message) -> None:
            """Adds the headers of every answer; counts it first, so that its client finds it counted."""
            nonlocal code
            if message["type"] == "http.response.start":
                self._metrics.request_finished("http", context.call, code, time.monotonic() - began)
                code = ""
                more: list[Header] = [(_REQUEST_ID, request_id.encode())]
                if context.phases:
                    more.append((_SERVER_TIMING, server_timing(context.phases).encode()))
                if self._readiness.draining:
                    more.append(_CLOSE)
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            await self._app(scope, receive, send_completed)
        except Exception as problem:
            failure = failure_of(problem, request_id)
            if scope["path"] not in PROBES:
                log_failure(_LOG, context.call, failure, problem)
            if not code:
                raise  # the answer has begun: the server closes the connection
            code = failure.code.value
            await _send_failure(failure, problem, scope, receive, send_completed)


class AuthenticationMiddleware:
    """Admits clients with a known token, before anything of a request is read or rejected for load."""

    def __init__(self, app: ASGIApp, tokens: TokenStore) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] == "http" and scope["path"] not in PROBES:
            state = scope["state"]
            logging.PRINCIPAL.set("")  # a pipelined request begins in the context of the one before it
            principal = self._tokens.authenticate(text_of(state["headers"], "authorization"))
            state["context"].principal = principal
            logging.PRINCIPAL.set(principal.name)
        await self._app(scope, receive, send)


async def _send_failure(failure: Failure, problem: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the answer of a failed request; behind an unread body the connection is closed."""
    status, content_type = TRANSPORT_STATUS[failure.code].http, JSON
    details = {"code": failure.code.value, "message": failure.message, "request_id": failure.request_id}
    if accepts_protobuf(scope["state"]["headers"]):
        content_type, body = PROTOBUF, pb.ErrorDetails(**details).SerializeToString()
    else:
        body = json.dump({"error": details})
    headers: list[Header] = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
    if failure.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(failure.retry_after_s))))
    if isinstance(problem, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    elif isinstance(problem, MethodNotAllowed):
        status = 405
        headers.append((b"allow", problem.allowed.encode()))
    if unread := is_left_unread(scope):
        headers.append(_CLOSE)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": unread})
    if unread:
        await drain(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

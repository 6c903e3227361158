"""The first stage of the HTTP server: it separates calls from pages by their paths, and rejects a
call that the service cannot compute in time before anything else is done for it.

A rejection costs little more than the smallest response that the server can send: until a request
leaves the engine, requests like one that was rejected get the same response, but for its id.
Whatever is unusual about a call (an unknown name, a malformed header, a body of unknown size) is
handed on to what handles calls, which checks everything again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from service.codec.failures import failure_of
from service.codec.metadata import (
    REQUEST_ID,
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
    TRACE_PARENT,
    Headers,
    read_headers,
    request_id_of,
)
from service.codec.operations import OPERATIONS
from service.dataplane import Dataplane
from service.errors import Overloaded, Unauthenticated
from service.http.other_protocols import OtherProtocol, error_response

_CALL = re.compile(
    r"/v1/models/(?P<model>[^/]+)"
    r"(?:/versions/(?P<version>[^/]+)|/labels/(?P<label>[^/]+))?:(?P<call>[^/]+)"
)
_DISTINGUISHING = frozenset({b"accept", b"authorization", b"content-type", TIMEOUT_MS.encode()})
"""Headers whose values decide whether and how a call is rejected."""
_TRANSFER_ENCODING = b"transfer-encoding"
_CONTENT_LENGTH = b"content-length"
_TRACE_PARENT = TRACE_PARENT.encode()
_LENGTH_DIGITS = 6
"""Maximum number of digits in the size of a body that is certainly not unusual."""
_LARGE_BYTES = 1 << 20
"""Admission leaves larger bodies to what handles calls, which closes the connection where that is
cheaper than to skip them.
"""
_REJECTIONS_MAX = 64
"""Number of different requests whose rejection is remembered."""
_KEY_BYTES_MAX = 4_096
"""Maximum size of what distinguishes such a request."""
_CODE = Overloaded.code.value
_REQUEST_ID = REQUEST_ID.encode()


_Response = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body."""


class _Rejection(NamedTuple):
    """The response to rejected requests that do not differ in what decides.

    Attributes:
      counters: The counters to which each such request adds 1.
      status: The HTTP status.
      headers: The headers without the id.
      around_id: The parts of the body around the id; the whole body of a form without the id.
      id_chars: The length of the id that the body was written for.
    """

    counters: Sequence[tuple[str, tuple[str, ...]]]
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    around_id: Sequence[bytes]
    id_chars: int


class Admission:
    """Admits calls, and rejects them while the service is overloaded."""

    def __init__(
        self,
        calls: ASGIApp,
        pages: ASGIApp,
        dataplane: Dataplane,
        protocols: Sequence[OtherProtocol] = (),
    ) -> None:
        """Creates the ASGI application.

        Args:
          calls: Handles calls that are admitted; `path_params` of its scopes has their names, and
            the `protocol` if it is another one.
          pages: Handles everything else.
          dataplane: Has the engine that computes calls.
          protocols: The protocols that the service speaks beside its own.
        """
        self._protocols = protocols
        self._calls = calls
        self._pages = pages
        self._engine = dataplane.engine
        self._dataplane = dataplane
        self._tokens = dataplane.tokens
        self._timeout_s = dataplane.settings.request_timeout_s
        self._metrics = dataplane.metrics
        self._logs_each = dataplane.settings.access_log
        self._rejections: dict[tuple[object, ...], _Rejection] = {}
        self._rejected_at = -1
        """The number of requests that had left the engine when the rejections were remembered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._pages(scope, receive, send)
            return
        # In an overload, most requests end here. Otherwise nothing is remembered, and nothing is
        # compared.
        response = self._repeat_rejection(scope) if self._rejections else None
        if response is None:
            match = _CALL.fullmatch(scope["path"])
            if match is not None:
                scope["path_params"] = match.groupdict()
            is_own = match is not None and match["call"] in OPERATIONS
            is_other = not is_own and self._matches_other_protocol(scope)
            if match is None and not is_other:
                await self._pages(scope, receive, send)
                return
            # An idle engine rejects nothing.
            if not self._engine.idle:
                response = self._reject_call(scope)
            if response is None:
                await self._calls(scope, receive, send)
                return
        status, headers, body = response
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _matches_other_protocol(self, scope: Scope) -> bool:
        """Returns whether a request is a call of another protocol, and notes what it names."""
        for protocol in self._protocols:
            names = protocol.match(scope["path"])
            if names is not None:
                scope["path_params"] = {**names, "protocol": protocol}
                return True
        return False

    def _repeat_rejection(self, scope: Scope) -> _Response | None:
        """Returns the response to a call like one that was rejected since the last request left the
        engine, and counts the call; None: there was none.
        """
        # A request that left the engine made room: the next one may be admitted.
        if self._rejected_at != self._engine.departures:
            self._rejections.clear()
            return None
        key, request_id = _rejection_key(scope)
        rejection = self._rejections.get(key)
        # The body, and so its content-length, was written for an id of this length.
        if rejection is None or len(request_id) != rejection.id_chars:
            return None
        self._metrics.count_each(rejection.counters)
        id_bytes = request_id.encode()
        headers = [*rejection.headers, (_REQUEST_ID, id_bytes)]
        return rejection.status, headers, id_bytes.join(rejection.around_id)

    def _reject_call(self, scope: Scope) -> _Response | None:
        """Returns the response to a call that the service rejects; None: it does not."""
        names = scope["path_params"]
        protocol = names.get("protocol")
        if scope["method"] != "POST" or (protocol is None and names["call"] not in OPERATIONS):
            return None
        headers = read_headers(scope["headers"])
        problem = self._problem(names["model"], names["call"], headers)
        if problem is None:
            return None
        request_id = request_id_of(headers.get(REQUEST_ID), headers.get(TRACE_PARENT))
        self._dataplane.request_rejected("http", names["call"], names["model"], _CODE, request_id)
        response = _response(headers, problem, request_id, protocol)
        # An access log has a line for each request, which the repeated response would skip.
        if not self._logs_each:
            self._remember(scope, problem, request_id, response)
        return response

    def _remember(
        self, scope: Scope, problem: Overloaded, request_id: str, response: _Response
    ) -> None:
        """Remembers a response for requests like the one that it is sent to."""
        if self._rejected_at != self._engine.departures or len(self._rejections) >= _REJECTIONS_MAX:
            self._rejections.clear()
            self._rejected_at = self._engine.departures
        key, _ = _rejection_key(scope)
        # Clients choose what distinguishes requests: memory for it is bounded.
        if not key or _size_of(key) > _KEY_BYTES_MAX:
            return
        names = scope["path_params"]
        counters = self._metrics.rejection_counters(
            "http", names["call"], names["model"], _CODE, problem.reason
        )
        status, headers, body = response
        # Where a form has the id, it is the last text of the body.
        around_id = body.rsplit(request_id.encode(), 1)
        common = [header for header in headers if header[0] != _REQUEST_ID]
        self._rejections[key] = _Rejection(counters, status, common, around_id, len(request_id))

    def _problem(self, model: str, call: str, headers: Headers) -> Overloaded | None:
        """Returns why the service rejects a call; None: the application handles it."""
        if is_unusual(headers):
            return None
        timeout_s = self._timeout_s
        timeout_ms = headers.get(TIMEOUT_MS)
        if timeout_ms is not None:
            # What handles calls reports the malformed header.
            if not timeout_ms.isdecimal() or len(timeout_ms) > len(str(TIMEOUT_MS_MAX)):
                return None
            timeout_s = min(timeout_s, int(timeout_ms) / 1000)
        # A client without a valid token must not observe the load: it gets its 401 as always.
        if self._tokens is not None:
            try:
                self._tokens.authenticate(headers.get("authorization"))
            except Unauthenticated:
                return None
        problem = self._engine.rejection(call, time.monotonic() + timeout_s, model)
        if isinstance(problem, Overloaded):
            return problem
        return None


def is_unusual(headers: Headers) -> bool:
    """Returns whether the body of a request is large, or may become so."""
    return "transfer-encoding" in headers or int(headers.get("content-length", 0)) > _LARGE_BYTES


def _rejection_key(scope: Scope) -> tuple[tuple[object, ...], str]:
    """Returns a key that is equal for requests that are rejected alike, and the request's id.

    The key of an unusual request is ().
    """
    key: list[object] = [scope["method"], scope["path"]]
    request_id = None
    trace_parent = None
    for header in scope["headers"]:
        name, value = header
        if name in _DISTINGUISHING:
            key.append(header)
        elif name == _REQUEST_ID:
            request_id = value.decode("latin-1")
        elif name == _TRACE_PARENT:
            trace_parent = value.decode("latin-1")
        elif name == _TRANSFER_ENCODING or (
            name == _CONTENT_LENGTH and len(value) > _LENGTH_DIGITS
        ):
            return (), ""
    return tuple(key), request_id_of(request_id, trace_parent)


def _size_of(key: tuple[Any, ...]) -> int:
    """Returns the size of the method, the path and the headers in a key."""
    method, path, *headers = key
    return len(method) + len(path) + sum([len(name) + len(value) for name, value in headers])


def _response(
    headers: Headers, problem: Overloaded, request_id: str, protocol: OtherProtocol | None
) -> _Response:
    """Returns the response to a rejected request."""
    failure = failure_of(problem, request_id)
    status, media_type, body = error_response(failure, headers, protocol)
    response_headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", str(failure.retry_after_s).encode()),
        (_REQUEST_ID, request_id.encode()),
    ]
    return status, response_headers, body

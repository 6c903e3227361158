"""The front of the HTTP server: it tells calls from pages by their paths, and rejects a call that
the service cannot compute in time before anything else is done for it.

A rejection costs little more than the smallest response that the server can send. Whatever is
unusual about a call (an unknown name, a malformed header, a body of unknown size) is handed on to
what handles calls, which checks everything again.
"""

from __future__ import annotations

import re
import time

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from service.codec.failures import details_message, details_value, failure_of
from service.codec.metadata import (
    REQUEST_ID,
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
    TRACE_PARENT,
    request_id_of,
)
from service.codec.operations import OPERATIONS
from service.dataplane import Dataplane
from service.errors import TRANSPORT_STATUS, Overloaded, Unauthenticated
from service.http.headers import JSON, PROTOBUF, accepts_protobuf, is_unusual

_CALL = re.compile(
    r"/v1/models/(?P<model>[^/]+)"
    r"(?:/versions/(?P<version>[^/]+)|/labels/(?P<label>[^/]+))?:(?P<call>[^/]+)"
)
_READ = (
    REQUEST_ID,
    TRACE_PARENT,
    TIMEOUT_MS,
    "accept",
    "authorization",
    "content-length",
    "content-type",
    "transfer-encoding",
)
_HEADERS = {name.encode(): name for name in _READ}
_CODE = Overloaded.code.value
_STATUS = TRANSPORT_STATUS[Overloaded.code].http
_REQUEST_ID = REQUEST_ID.encode()


class Admission:
    """Admits calls, and rejects them while the service is overloaded."""

    def __init__(self, calls: ASGIApp, pages: ASGIApp, dataplane: Dataplane) -> None:
        """Creates the ASGI application.

        Args:
          calls: handles calls that are admitted; `path_params` of its scopes has their names.
          pages: handles everything else.
          dataplane: has the engine that computes calls.
        """
        self._calls = calls
        self._pages = pages
        self._engine = dataplane.engine
        self._dataplane = dataplane
        self._tokens = dataplane.tokens
        self._timeout_s = dataplane.settings.request_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        named = _CALL.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if named is None:
            await self._pages(scope, receive, send)
            return
        scope["path_params"] = named.groupdict()
        if not self._engine.idle and await self._rejects(scope, send):
            return
        await self._calls(scope, receive, send)

    async def _rejects(self, scope: Scope, send: Send) -> bool:
        """Sends the response to a call that the service rejects; returns whether it does."""
        names = scope["path_params"]
        if scope["method"] != "POST" or names["call"] not in OPERATIONS:
            return False
        headers = _headers_of(scope)
        problem = self._problem(names["model"], names["call"], headers)
        if problem is None:
            return False
        request_id = request_id_of(headers.get(REQUEST_ID), headers.get(TRACE_PARENT))
        self._dataplane.request_rejected("http", names["call"], names["model"], _CODE, request_id)
        body, response_headers = _response(headers, problem, request_id)
        await send({"type": "http.response.start", "status": _STATUS, "headers": response_headers})
        await send({"type": "http.response.body", "body": body})
        return True

    def _problem(self, model: str, call: str, headers: dict[str, str]) -> Overloaded | None:
        """Returns why the service rejects a call; None: the application handles it."""
        if is_unusual(headers):
            return None
        timeout_s = self._timeout_s
        timeout_ms = headers.get(TIMEOUT_MS)
        if timeout_ms is not None:
            if not timeout_ms.isdecimal() or len(timeout_ms) > len(str(TIMEOUT_MS_MAX)):
                return None
            timeout_s = min(timeout_s, int(timeout_ms) / 1000)
        if self._tokens is not None:
            try:
                self._tokens.authenticate(headers.get("authorization"))
            except Unauthenticated:
                return None
        problem = self._engine.rejection(call, time.monotonic() + timeout_s, model)
        return problem if isinstance(problem, Overloaded) else None


def _headers_of(scope: Scope) -> dict[str, str]:
    """Returns the headers that admission reads; of one that was sent twice, the last."""
    headers = {}
    for name, value in scope["headers"]:
        if name in _HEADERS:
            headers[_HEADERS[name]] = value.decode("latin-1")
    return headers


def _response(
    headers: dict[str, str], problem: Overloaded, request_id: str
) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Returns body and headers of the response to a rejected request."""
    failure = failure_of(problem, request_id)
    if accepts_protobuf(headers):
        media_type = PROTOBUF
        body = details_message(failure).SerializeToString()
    else:
        media_type = JSON
        body = orjson.dumps(details_value(failure))
    return body, [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", str(failure.retry_after_s).encode()),
        (_REQUEST_ID, request_id.encode()),
    ]

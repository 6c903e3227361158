"""Admission in front of the HTTP application: a call that the service cannot compute in time is
rejected before anything else is done for it.

A rejection costs little more than the smallest response that the server can send. Whatever is
unusual about a request (an unknown call, a malformed header, a body of unknown size) is left to the
application, which checks everything again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

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
from service.http.headers import JSON, PROTOBUF, accepts_protobuf

_PATH = re.compile(rf"/v1/models/([^/:]+)(?:/(?:versions|labels)/[^/:]+)?:({'|'.join(OPERATIONS)})")
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
_SKIPPED_BYTES = 1 << 20
"""Larger bodies are left to the application, which closes the connection where that is cheaper than
to skip them.
"""
_CODE = Overloaded.code.value
_STATUS = TRANSPORT_STATUS[Overloaded.code].http
_REQUEST_ID = REQUEST_ID.encode()


class Admission:
    """Surrounds the application; rejects calls while the service is overloaded."""

    def __init__(self, app: ASGIApp, dataplane: Dataplane) -> None:
        """Creates the ASGI application; `app` handles what is admitted."""
        self._app = app
        self._engine = dataplane.engine
        self._dataplane = dataplane
        self._tokens = dataplane.tokens
        self._timeout_s = dataplane.settings.request_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] == "http" and scope["method"] == "POST" and not self._engine.idle:
            call = _PATH.fullmatch(scope["path"])
            if call is not None:
                headers = _headers_of(scope)
                problem = self._problem(call[1], call[2], headers)
                if problem is not None:
                    request_id = request_id_of(headers.get(REQUEST_ID), headers.get(TRACE_PARENT))
                    self._dataplane.request_rejected("http", call[2], call[1], _CODE, request_id)
                    body, response_headers = _response(headers, problem, request_id)
                    await send(
                        {
                            "type": "http.response.start",
                            "status": _STATUS,
                            "headers": response_headers,
                        }
                    )
                    await send({"type": "http.response.body", "body": body})
                    return
        await self._app(scope, receive, send)

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


def is_unusual(headers: Mapping[str, str]) -> bool:
    """Returns whether the body of a request is large, or may become so."""
    return "transfer-encoding" in headers or int(headers.get("content-length", 0)) > _SKIPPED_BYTES


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

"""Calls over HTTP/1.1, on connections that stay open; the bodies are messages of the contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import httpcore
from google.protobuf.message import DecodeError

from rowcast_client.addresses import Address
from rowcast_client.calls import Call
from rowcast_client.connections import AsyncBackend, DeadlineBackend
from rowcast_client.errors import (
    InvalidArgument,
    NotFound,
    RowcastError,
    error_of,
    parse_retry_after,
    service_error,
)
from rowcast_client.retries import Deadline
from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.transport import CONNECT_TIMEOUT_S, RESPONSE_BYTES_MAX, Tls, Transport

PROTOBUF = "application/x-protobuf"
KEEP_ALIVE_S = 30.0
"""Time for which an idle connection is open: well below the time after which services and proxies
close it.
"""
GET_METHODS = {"ListModels", "GetModel", "GetChanges"}
"""Methods of the contract that are a GET without a body."""
CONNECTIONS: dict[str, Any] = {
    # Unlimited: a limit would make threads of a caller wait for each other without a deadline.
    "max_connections": None,
    "max_keepalive_connections": 100,
    "keepalive_expiry": KEEP_ALIVE_S,
}
PROXY_CODES = {
    413: "TOO_LARGE",
    429: "OVERLOADED",
    502: "NOT_READY",
    503: "NOT_READY",
    504: "DEADLINE",
}
"""The code of a rejection without an error of rowcast, which comes from a proxy, by its status."""


class HttpTransport(Transport):
    """Sends calls over a pool of connections of httpcore, which ignores `HTTP_PROXY`.

    The deadline bounds the whole exchange: the synchronous pool takes it instead of seconds, and
    `AsyncClient` ends the exchange itself.
    """

    errors = (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
    )
    names_model = True

    def __init__(
        self, address: Address, tls: Tls | None, headers: Mapping[str, str], asynchronous: bool
    ) -> None:
        super().__init__(address)
        self._url = address.target
        self._headers = {"host": urlsplit(self._url).netloc, "accept": PROTOBUF, **headers}
        context = None
        if tls is not None:
            context = tls.context
        self._asynchronous = asynchronous
        if asynchronous:
            self._pool: Any = httpcore.AsyncConnectionPool(
                context, network_backend=AsyncBackend(), **CONNECTIONS
            )
            self.close = self._pool.aclose
        else:
            backend = DeadlineBackend()
            self._pool = httpcore.ConnectionPool(context, network_backend=backend, **CONNECTIONS)
            self.close = self._pool.close

    def send(self, call: Call[Any], deadline: Deadline, request_id: str) -> Any:
        """Sends a call once."""
        content = None
        if call.method not in GET_METHODS:
            content = call.request.SerializeToString()
        return self._send(self._path(call), content, deadline, request_id)

    def send_probe(self, deadline: Deadline, request_id: str) -> Any:
        """Sends the request of a readiness probe."""
        return self._send("/readyz", None, deadline, request_id)

    def _send(self, path: str, content: bytes | None, deadline: Deadline, request_id: str) -> Any:
        """Sends a POST with a message, or a GET without one."""
        remaining_s = deadline.remaining_s()
        remaining_ms = max(int(remaining_s * 1000), 1)
        headers = {
            **self._headers,
            "x-request-id": request_id,
            "x-request-timeout-ms": str(remaining_ms),
        }
        # The synchronous backend reads the Deadline itself; see connections.py.
        step_timeout: Any = remaining_s if self._asynchronous else deadline
        extensions = {"timeout": dict.fromkeys(("connect", "read", "write"), step_timeout)}
        method = "GET"
        if content is not None:
            method = "POST"
            headers["content-type"] = PROTOBUF
        exchange = self._pool.stream(
            method, self._url + path, headers=headers, content=content, extensions=extensions
        )
        # The seconds of each step do not bound the exchange, which has many.
        if self._asynchronous:
            return _within(remaining_s, exchange)
        with exchange as response:
            body = bytearray()
            for piece in response.iter_stream():
                body += piece
                if len(body) > RESPONSE_BYTES_MAX:
                    break
        return _whole(response, body)

    def read(self, call: Call[Any], response: httpcore.Response) -> Any:
        """Reads the result of a call."""
        if len(response.content) > RESPONSE_BYTES_MAX:
            raise self.invalid_response(f"its response has more than {RESPONSE_BYTES_MAX} bytes")
        if response.status != HTTPStatus.OK:
            rejection = self._rejection(response)
            if isinstance(rejection, NotFound):
                self.only_model = ""  # another model may be the only one by now
            raise rejection
        content_type = _content_type(response)
        if content_type != PROTOBUF:
            raise self.invalid_response(f"content-type {content_type!r} instead of {PROTOBUF}")
        return self.unpack(call, response.content)

    def check_probe(self, response: httpcore.Response) -> None:
        """Checks that the service is ready."""
        if response.status != HTTPStatus.OK:
            raise self._rejection(response)
        # Any server may return 200 to any path; this body is the service's.
        try:
            reports_ready = json.loads(response.content) == {"ready": True}
        except ValueError:
            reports_ready = False
        if not reports_ready:
            raise self.invalid_response("its response to /readyz is that of another server")

    def failure(self, error: Exception, deadline: Deadline) -> RowcastError:
        """Returns the error for a failed exchange."""
        reason = str(error) or type(error).__name__
        # The connection has its own, shorter time: the call may try the next address.
        if isinstance(error, httpcore.ConnectTimeout) and not deadline.is_over():
            reason = f"no connection within {CONNECT_TIMEOUT_S:g} s"
            return self.unreachable("cannot be reached", reason)
        if isinstance(error, httpcore.TimeoutException):
            return self.out_of_time(deadline)
        if isinstance(error, httpcore.ConnectError):
            return self.unreachable("cannot be reached", reason)
        if isinstance(error, httpcore.LocalProtocolError):
            return InvalidArgument(f"the request to {self.address.url} cannot be sent: {reason}")
        # What h11 reports of bytes that do not begin like HTTP, such as those of TLS or HTTP/2.
        if isinstance(error, httpcore.RemoteProtocolError) and "illegal" in reason:
            return self.invalid_response(f"its response is not HTTP/1.1; {self.other_schemes()}")
        return self.unreachable("broke the connection", reason)

    def _path(self, call: Call[Any]) -> str:
        if call.method == "ListModels":
            return "/v1/models"
        spec = call.request.model
        model = quote(spec.name or self.only_model, safe="")
        if call.method == "GetChanges":
            return f"/v1/models/{model}/changes"
        if call.method == "Change":  # the body alone names a version
            return f"/v1/models/{model}/{_change_path(call.request)}"
        path = f"/v1/models/{model}"
        if spec.label:
            path += f"/labels/{quote(spec.label, safe='')}"
        elif spec.version:
            path += f"/versions/{spec.version}"
        if call.method != "GetModel":
            path += f":{call.method.lower()}"
        return path

    def _rejection(self, response: httpcore.Response) -> RowcastError:
        details = _error_details(response)
        retry_after_s = parse_retry_after(_header(response, b"retry-after"))
        if details is not None:
            return error_of(details, retry_after_s)
        status = response.status
        if status not in PROXY_CODES:
            return self.invalid_response(
                f"status {status} without an error of rowcast; is the port that of its endpoint, "
                "not of its admin API or health checks?"
            )
        message = f"{self.address.url} returned status {status}"
        return service_error(PROXY_CODES[status], message, retry_after_s)


async def _within(
    seconds: float, exchange: AbstractAsyncContextManager[httpcore.Response]
) -> httpcore.Response:
    """Returns a response, unless it takes longer as a whole."""
    body = bytearray()
    async with asyncio.timeout(seconds), exchange as response:
        async for piece in response.aiter_stream():
            body += piece
            if len(body) > RESPONSE_BYTES_MAX:
                break
    return _whole(response, body)


def _whole(response: httpcore.Response, body: bytearray) -> httpcore.Response:
    """Returns a response with the body that was read of it."""
    whole = httpcore.Response(response.status, headers=response.headers, content=bytes(body))
    whole.read()
    return whole


def _change_path(request: pb.ChangeRequest) -> str:
    kind = pb.ChangeKind.Name(request.kind).removeprefix("CHANGE_KIND_").lower()
    action = pb.ChangeAction.Name(request.action).removeprefix("CHANGE_ACTION_").lower()
    return f"{kind}/{action}"


def _header(response: httpcore.Response, name: bytes) -> str:
    """Returns the first value of a header; empty if there is none."""
    values = (value for key, value in response.headers if key.lower() == name)
    return next(values, b"").decode("latin-1")


def _content_type(response: httpcore.Response) -> str:
    """Returns the content type without its parameters, such as a charset."""
    return _header(response, b"content-type").partition(";")[0].strip()


def _error_details(response: httpcore.Response) -> pb.ErrorDetails | None:
    """Returns the error that the service reported; None if the server is not a rowcast service."""
    if _content_type(response) != PROTOBUF:
        return None
    try:
        details: pb.ErrorDetails = pb.ErrorDetails.FromString(response.content)
    except DecodeError:
        return None
    # Bytes of another message may be read without an error, but set no code.
    if not details.code:
        return None
    return details

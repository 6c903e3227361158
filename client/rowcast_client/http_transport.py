"""Calls over HTTP/1.1: kept connections, the messages of the contract as bodies."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx
from google.protobuf.message import DecodeError

from rowcast_client.calls import Call
from rowcast_client.errors import (
    InvalidArgument,
    NotFound,
    RowcastError,
    parse_retry_after,
    service_error,
)
from rowcast_client.retries import Deadline
from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.transport import Address, Tls, Transport

PROTOBUF = "application/x-protobuf"
KEPT_S = 30.0
"""How long an idle connection is kept: well below the time after which services and proxies close
it.
"""
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEPT_S)
PROXIES = {413: "TOO_LARGE", 429: "OVERLOADED", 502: "NOT_READY", 503: "NOT_READY", 504: "DEADLINE"}
"""Status -> code, for rejections without an error of rowcast: those of a proxy on the way."""


class HttpTransport(Transport):
    """Sends calls over the connections of an `httpx.Client`, or of an `httpx.AsyncClient`."""

    errors = httpx.HTTPError
    names_model = True

    def __init__(
        self, address: Address, tls: Tls | None, headers: Mapping[str, str], asynchronous: bool
    ) -> None:
        super().__init__(address)
        # Without TLS nobody is trusted: reading the system's authorities is slow.
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls is None else tls.context
        options: dict[str, Any] = {
            "base_url": address.target,
            "headers": headers,
            "verify": verify,
            "limits": LIMITS,
        }
        if asynchronous:
            self._client: Any = httpx.AsyncClient(**options)
            self.close = self._client.aclose
        else:
            self._client = httpx.Client(**options)
            self.close = self._client.close

    def send(self, call: Call[Any], deadline: Deadline, request_id: str) -> Any:
        """Sends a call once. The timeout bounds each step of it: connecting, sending, and waiting
        for bytes.
        """
        left_s = deadline.remaining_s()
        headers = {
            "x-request-id": request_id,
            "x-request-timeout-ms": str(max(int(left_s * 1000), 1)),
        }
        headers["accept"] = PROTOBUF
        if call.method in {"ListModels", "GetModel"}:
            return self._client.get(self._path(call), headers=headers, timeout=left_s)
        content = call.request.SerializeToString()
        headers["content-type"] = PROTOBUF
        return self._client.post(self._path(call), content=content, headers=headers, timeout=left_s)

    def read(self, call: Call[Any], response: httpx.Response) -> Any:
        """Reads the result of a call."""
        if response.status_code != HTTPStatus.OK:
            rejection = self._rejection(response)
            if isinstance(rejection, NotFound):
                self.only_model = ""  # another model may be the only one by now
            raise rejection
        kind = _kind(response)
        if kind != PROTOBUF:
            raise self.invalid_response(f"content-type {kind!r} instead of {PROTOBUF}")
        return self.unpack(call, response.content)

    def failure(self, error: Exception, deadline: Deadline) -> RowcastError:
        """Returns the error for a failed exchange."""
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.TimeoutException):
            return self.out_of_time(deadline)
        if isinstance(error, httpx.ConnectError):
            return self.unreachable("cannot be reached", reason)
        if isinstance(error, httpx.LocalProtocolError):
            return InvalidArgument(f"the request to {self.address.url} cannot be sent: {reason}")
        if isinstance(error, httpx.TransportError):
            return self.unreachable("broke the connection", reason)
        return self.invalid_response(reason)

    def _path(self, call: Call[Any]) -> str:
        if call.method == "ListModels":
            return "/v1/models"
        spec = call.request.model
        version = f"/versions/{spec.version}" if spec.version else ""
        version = f"/labels/{quote(spec.label, safe='')}" if spec.label else version
        verb = "" if call.method == "GetModel" else f":{call.method.lower()}"
        return f"/v1/models/{quote(spec.name or self.only_model, safe='')}{version}{verb}"

    def _rejection(self, response: httpx.Response) -> RowcastError:
        details = _error_details(response)
        if details is None:
            status = response.status_code
            if status not in PROXIES:
                return self.invalid_response(f"status {status} without an error of rowcast")
            message = f"{self.address.url} returned status {status}"
            details = pb.ErrorDetails(code=PROXIES[status], message=message)
        return service_error(details, parse_retry_after(response.headers.get("retry-after")))


def _kind(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip()


def _error_details(response: httpx.Response) -> pb.ErrorDetails | None:
    """Returns the error that the service reported; None if the server is not a rowcast service."""
    try:
        details = pb.ErrorDetails.FromString(
            response.content if _kind(response) == PROTOBUF else b""
        )
    except DecodeError:
        return None
    return details if details.code else None

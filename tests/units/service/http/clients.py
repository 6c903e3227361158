"""What the tests send, and connections without an HTTP client."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from tests.e2e.process import WAIT_S
from tests.units.service.running import RunningService

RETRIEVE = "/v1/models/movies:retrieve"
PROTOBUF = {"content-type": "application/x-protobuf"}
BODY: dict[str, Any] = {"k": 2, "context": {"user": 7}}


def error_of(response: httpx.Response) -> dict[str, Any]:
    return checked_error(response.json()["error"], response.headers)


def checked_error(error: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """Returns an error as JSON has it, once it is known to agree with the headers."""
    assert set(error) - {"violations", "retry_after_s"} == {"code", "message", "request_id"}
    assert error.get("violations") != []
    assert str(error.get("retry_after_s", "")) == headers.get("retry-after", "")
    assert error["request_id"] == headers["x-request-id"]
    return error


@contextmanager
def connected(service: RunningService) -> Iterator[socket.socket]:
    host, _, port = service.http.rpartition("://")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        yield connection


def received(connection: socket.socket) -> bytes:
    """All that comes until the service closes the connection."""
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def head(length: int | None = None, *headers: str) -> bytes:
    body = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return "\r\n".join(
        [f"POST {RETRIEVE} HTTP/1.1", "host: localhost", body, *headers, "", ""]
    ).encode()

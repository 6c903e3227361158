"""Bodies and responses that are large, slow, compressed or many: what a process holds of them is
bounded, and senders learn why.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.e2e.process import until
from tests.units.service.http.clients import BODY, RETRIEVE, connected, error_of, head, received
from tests.units.service.running import RunningService, log_lines

MIB = 1 << 20
GZIP = {"content-encoding": "gzip"}
TEXT = json.dumps(BODY).encode()
LOOKUP = RETRIEVE.replace("retrieve", "lookup")
LARGE = {"feature": "user", "ids": [7] * 100_000}
"""A request whose response of 9 MB is more than sockets hold."""


def test_chunks_of_any_size_are_read_with_their_trailers(service: RunningService) -> None:
    with connected(service) as connection:
        connection.sendall(head(None, "connection: close"))
        for byte in TEXT:
            connection.sendall(b"1\r\n%c\r\n" % byte)
        connection.sendall(b"0\r\nx-checksum: 7\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 200 ")
    trailers = b"a: b\r\n" * 100_000
    with connected(service) as connection:
        connection.sendall(head(None) + b"%x\r\n%b\r\n0\r\n" % (len(TEXT), TEXT) + trailers)
        assert received(connection).startswith(b"HTTP/1.1 431 ")


def test_time_of_a_request_begins_when_its_body_has_arrived(
    serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    service = serve(body_timeout_s=60)
    labels = {"transport": "http", "call": "retrieve"}
    with connected(service) as connection:
        connection.sendall(head(len(TEXT)) + TEXT[:5])
        threading.Event().wait(1)  # a client that sends slowly
        arriving_s = time.monotonic()
        connection.sendall(TEXT[5:])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    until(lambda: service.value("rowcast_request_seconds_count", **labels) == 1)
    measured_s = service.value("rowcast_request_seconds_sum", **labels)
    assert measured_s <= time.monotonic() - arriving_s


def test_rejected_request_with_a_small_body_keeps_its_connection(service: RunningService) -> None:
    with connected(service) as connection:
        for _ in range(3):
            connection.sendall(head(len(TEXT), "content-type: text/plain") + TEXT)
            response = b""
            while not response.endswith(b"}}"):  # the body may arrive after the headers
                part = connection.recv(1 << 16)
                assert part, response
                response += part
            assert response.startswith(b"HTTP/1.1 400 ")
            assert b"connection: close" not in response


def begin_large_lookup(connection: socket.socket) -> bytes:
    """Sends the large request; returns how the response begins once it is encoded."""
    body = json.dumps(LARGE).encode()
    lines = (f"POST {LOOKUP} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", "", "")
    connection.sendall("\r\n".join(lines).encode() + body)
    beginning = connection.recv(1024)
    assert beginning.startswith(b"HTTP/1.1 200 ")
    return beginning


def test_response_counts_as_bytes_in_flight_until_it_is_read_or_dropped(
    serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    names = ("max_request_bytes", "max_response_bytes", "max_inflight_bytes")
    service = serve(**dict.fromkeys(names, 16 * MIB), body_timeout_s=3)
    with connected(service) as connection:
        begin_large_lookup(connection)
        held = service.dataplane.budget.held
        assert held > 4 * MIB
        # Another one finds no room.
        response = httpx.post(service.http + LOOKUP, json=LARGE, verify=False)
        assert (response.status_code, error_of(response)["code"]) == (429, "OVERLOADED")
        assert "max_inflight_bytes" in error_of(response)["message"]
        while service.dataplane.budget.held:
            connection.recv(1 << 16)
    assert httpx.post(service.http + LOOKUP, json=LARGE, verify=False).status_code == 200
    with connected(service) as connection, log_lines() as lines:
        begun = begin_large_lookup(connection)  # and is never read on
        until(lambda: service.dataplane.budget.held == 0)
        until(lambda: "CANCELLED" in lines.getvalue())
        length = int(begun.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert len(begun + received(connection)) < length

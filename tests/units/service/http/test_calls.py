"""Bodies that are large, slow, compressed or many: what a process holds of them is bounded, and
senders learn why.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from service.dataplane import DECODERS
from tests.e2e.process import until
from tests.units.service.http.clients import BODY, RETRIEVE, connected, error_of, head, received
from tests.units.service.running import RunningService, log_lines

MIB = 1 << 20
GZIP = {"content-encoding": "gzip"}
TEXT = json.dumps(BODY).encode()


@pytest.mark.parametrize("length", [999_999_999_999, None])
def test_body_over_the_limit_is_rejected_before_its_end(
    length: int | None, service: RunningService
) -> None:
    with connected(service) as connection:
        connection.sendall(head(length))
        for _ in range(3 if length is None else 0):
            connection.sendall(b"800\r\n" + b"x" * 0x800 + b"\r\n")
        response = connection.recv(1 << 16)
    assert response.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in response


def test_body_over_the_limit_returns_the_reason_to_a_client_that_still_sends(
    http: httpx.Client,
) -> None:
    response = http.post(RETRIEVE, content=bytes(20 * MIB))  # still sending when it is rejected
    assert (response.status_code, error_of(response)["code"]) == (413, "TOO_LARGE")


def test_body_in_pieces_is_read_whole(service: RunningService) -> None:
    with connected(service) as connection:
        connection.sendall(head(None, "connection: close"))
        for byte in TEXT:
            connection.sendall(b"1\r\n%c\r\n" % byte)
        connection.sendall(b"0\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("headers", [[], ["x-request-timeout-ms: 100"], ["expect: 100-continue"]])
def test_body_that_does_not_arrive_in_time_is_rejected(
    headers: list[str], service: RunningService
) -> None:
    with connected(service) as connection:
        connection.sendall(head(100, *headers))
        connection.sendall(b"x" * 50)
        until(lambda: service.dataplane.budget.held == 50)
        response = received(connection)
    assert response.startswith(b"HTTP/1.1 100 " if "expect" in str(headers) else b"HTTP/1.1 504 ")
    assert b"HTTP/1.1 504 " in response
    assert b'"code":"DEADLINE"' in response
    assert service.dataplane.budget.held == 0


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


@pytest.mark.parametrize("size", [100, 60_000, 70_000, 3 * MIB, 4 * MIB - 2000])
def test_gzip_body_of_any_size_is_accepted(
    size: int, serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    service = serve(max_request_bytes=4 * MIB)
    for level in (0, 9):  # larger than it becomes, and a thousandth of it
        body = gzip.compress(TEXT + b" " * size, level)
        assert httpx.post(service.http + RETRIEVE, content=body, headers=GZIP).status_code == 200
    body = gzip.compress(TEXT + b" " * 4 * MIB)
    assert httpx.post(service.http + RETRIEVE, content=body, headers=GZIP).status_code == 413
    assert service.dataplane.budget.held == 0


def test_many_gzip_bodies_at_once_stay_within_the_bytes_in_flight(
    serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    """60 bodies of 15 KiB that become 15 MiB each: 900 MiB, of which 64 MiB may be held."""
    write()
    limit = 64 * MIB
    service = serve(max_inflight_bytes=limit, request_timeout_s=60)
    body = gzip.compress(TEXT + b" " * 15 * MIB)
    budget = service.dataplane.budget
    memory = psutil.Process()
    peaks = [0, 0]
    done = threading.Event()
    before = memory.memory_info().rss

    def watch() -> None:
        while not done.wait(0.001):
            peaks[:] = max(peaks[0], budget.held), max(peaks[1], memory.memory_info().rss - before)

    def send(_: int) -> int:
        return client.post(service.http + RETRIEVE, content=body, headers=GZIP).status_code

    watcher = threading.Thread(target=watch)
    watcher.start()
    with httpx.Client(timeout=60) as client, ThreadPoolExecutor(60) as senders:
        statuses = list(senders.map(send, range(60)))
        assert client.get(service.http + "/livez").status_code == 200
    done.set()
    watcher.join()
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= 1
    assert 15 * MIB < peaks[0] <= limit
    # Two that are joined or decoded; this test's own clients.
    assert peaks[1] < limit + 2 * 16 * MIB + 160 * MIB
    until(lambda: budget.held == 0)
    rejected = service.value("rowcast_rejected_requests_total", call="retrieve", reason="bytes")
    assert rejected == statuses.count(429)


def large_lookup(service: RunningService, connection: socket.socket) -> bytes:
    """Requests 9 MB, more than sockets hold; returns how the response begins once it is encoded."""
    body = json.dumps({"feature": "user", "ids": [7] * 100_000}).encode()
    path = RETRIEVE.replace("retrieve", "lookup")
    lines = (f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", "", "")
    connection.sendall("\r\n".join(lines).encode() + body)
    beginning = connection.recv(1024)
    assert beginning.startswith(b"HTTP/1.1 200 ")
    return beginning


def test_response_counts_as_bytes_in_flight_until_it_is_read(
    serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    service = serve()
    with connected(service) as connection:
        received_bytes = len(large_lookup(service, connection))
        assert service.dataplane.budget.held > 4 * MIB
        while service.dataplane.budget.held:
            received_bytes += len(connection.recv(1 << 16))
        assert received_bytes > 2 * MIB  # the sockets hold the rest


@pytest.mark.parametrize("accept", ["application/json", "application/x-protobuf"])
def test_large_response_is_encoded_beside_the_event_loop(
    accept: str, serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    service = serve(request_timeout_s=60)
    count = 10_000  # a small body, and 80,000 numbers
    body = {"feature": "user", "ids": [7] * count}
    path = service.http + RETRIEVE.replace("retrieve", "lookup")
    release = threading.Event()
    for _ in range(DECODERS):
        waiting = service.dataplane.offload(release.wait, 20)
        asyncio.run_coroutine_threadsafe(waiting, service.loop)
    try:
        with ThreadPoolExecutor(1) as sender:
            large = sender.submit(
                httpx.post, path, json=body, headers={"accept": accept}, timeout=30
            )
            until(lambda: service.value("rowcast_examples_total", call="lookup") == count)
            assert httpx.post(service.http + RETRIEVE, json=BODY).status_code == 200
            assert not large.done()
            release.set()
            assert large.result().status_code == 200
    finally:
        release.set()


def test_response_that_finds_no_room_in_the_budget_is_overloaded(
    serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    limits = dict.fromkeys(
        ("max_request_bytes", "max_response_bytes", "max_inflight_bytes"), 16 * MIB
    )
    service = serve(**limits)
    body = {"feature": "user", "ids": [7] * 100_000}
    path = service.http + RETRIEVE.replace("retrieve", "lookup")
    with connected(service) as connection:
        large_lookup(service, connection)
        response = httpx.post(path, json=body)
        assert (response.status_code, error_of(response)["code"]) == (429, "OVERLOADED")
        assert "max_inflight_bytes" in error_of(response)["message"]
    until(lambda: service.dataplane.budget.held == 0)
    assert httpx.post(path, json=body).status_code == 200


def test_response_that_is_not_read_in_time_is_dropped(
    serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    service = serve(body_timeout_s=0.5)
    with connected(service) as connection, log_lines() as lines:
        begun = large_lookup(service, connection)
        until(lambda: service.dataplane.budget.held == 0)
        until(lambda: "CANCELLED" in lines.getvalue())
        length = int(begun.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert len(begun + received(connection)) < length


def test_endless_trailers_are_too_large(service: RunningService) -> None:
    trailers = b"a: b\r\n" * 100_000
    with connected(service) as connection:
        connection.sendall(head(None) + b"%x\r\n%b\r\n0\r\n" % (len(TEXT), TEXT) + trailers)
        assert received(connection).startswith(b"HTTP/1.1 431 ")


def test_a_few_trailers_are_ignored(service: RunningService) -> None:
    with connected(service) as connection:
        body = b"%x\r\n%b\r\n0\r\nx-checksum: 7\r\n\r\n" % (len(TEXT), TEXT)
        connection.sendall(head(None, "connection: close") + body)
        assert received(connection).startswith(b"HTTP/1.1 200 ")

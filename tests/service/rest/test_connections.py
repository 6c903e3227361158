"""Heads and bodies that are broken, endless or slow, on a real socket: each is refused, and its connection closed."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from service.errors import Overloaded
from service.rest.bodies import Arrival, Intake, read_body
from service.rest.connections import Connection
from tests.service.doors import HEAD_S_MAX, RunningDoors, codes_of
from tests.service.process import until

POST = b"POST /v1/models/m:retrieve HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture
def line(doors: RunningDoors) -> Iterator[socket.socket]:
    host, port = doors.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        yield connection


def answered(line: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and error of an answer after which the connection is closed."""
    received = b""
    while part := line.recv(65536):
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    error: dict[str, Any] = orjson.loads(body)["error"]
    assert f"x-request-id: {error['request_id']}".encode() in head
    return int(head.split()[1]), error


@pytest.mark.parametrize(
    "sent",
    [b"\0\1\2\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", POST + b"transfer-encoding: chunked\r\n\r\nZZZ\r\n"],
)
def test_what_is_no_http_is_refused_in_the_shape_of_every_error(
    sent: bytes, line: socket.socket, doors: RunningDoors
) -> None:
    before = codes_of(doors.desk.metrics, "http").get(("other", "INVALID_ARGUMENT"), 0)
    line.sendall(sent)
    status, error = answered(line)
    assert (status, error["code"]) == (400, "INVALID_ARGUMENT")
    assert codes_of(doors.desk.metrics, "http")["other", "INVALID_ARGUMENT"] == before + 1


def test_head_without_an_end_is_refused_at_its_limit(line: socket.socket, doors: RunningDoors) -> None:
    before = codes_of(doors.desk.metrics, "http").get(("other", "TOO_LARGE"), 0)
    line.sendall(POST)
    with pytest.raises(OSError, match=r"reset|Broken pipe"):  # noqa: PT012
        for _ in range(1000):
            line.sendall(b"x-more: " + b"x" * 10_000 + b"\r\n")
    assert codes_of(doors.desk.metrics, "http")["other", "TOO_LARGE"] == before + 1


def test_head_that_never_ends_is_refused_after_its_time(line: socket.socket) -> None:
    line.sendall(POST)
    status, error = answered(line)
    assert (status, error["code"]) == (408, "DEADLINE")
    assert f"{HEAD_S_MAX:g} s" in error["message"]


def test_head_in_two_parts_with_a_body_behind_is_taken(line: socket.socket) -> None:
    line.sendall(POST)
    line.sendall(b"connection: close\r\ncontent-length: 3000\r\n\r\n{}" + b" " * 2998)
    assert line.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_headers_behind_the_body_are_dropped(line: socket.socket) -> None:
    line.sendall(
        POST + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\n{}\r\n0\r\nx-request-id: late\r\n\r\n"
    )
    answer = line.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"late" not in answer


def test_body_that_never_ends_is_refused_after_the_callers_time(line: socket.socket) -> None:
    line.sendall(POST + b"x-request-timeout-ms: 50\r\ncontent-length: 99\r\n\r\n{")
    received = line.recv(65536)
    line.sendall(b" ")
    assert received.startswith(b"HTTP/1.1 504 ")
    assert b"connection: close" in received


def test_upgrade_that_is_not_offered_is_answered_as_it_is(http: httpx.Client) -> None:
    answer = http.get("/livez", headers={"connection": "upgrade", "upgrade": "websocket"})
    assert answer.status_code == 200


@pytest.mark.parametrize("cut", [0, 70, 150, -1])
@pytest.mark.parametrize(
    "framed", [b"content-length: 2\r\n\r\n{}", b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"]
)
def test_body_behind_an_upgrade_that_is_not_offered_is_read(framed: bytes, cut: int, line: socket.socket) -> None:
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"  # as Java's client
    sent = POST + offer + framed
    line.sendall(sent[:cut])
    line.sendall(sent[cut:] + POST + b"connection: close\r\n" + framed)
    received = b""
    while part := line.recv(65536):
        received += part
    assert received.count(b"HTTP/1.1 200 ") == 2


def test_tunnel_is_refused_once(line: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    line.sendall(b"CONNECT /livez HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: x\r\n\r\n")
    received = b""
    while part := line.recv(65536):
        received += part
    assert (received.count(b"HTTP/1.1 4"), "Fatal error" in caplog.text) == (1, False)


def test_bodies_on_their_way_are_bounded_together() -> None:
    intake = Intake(bytes_max=10, retry_after_s=2)
    more = asyncio.Event()

    async def slow(parts: list[bytes]) -> bytes:
        async def receive() -> dict[str, Any]:
            if len(parts) == 1:
                await more.wait()
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        return await read_body(receive, Arrival({}, 100, intake), 10)

    async def run() -> None:
        first = asyncio.create_task(slow([b"12345678", b"9"]))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await slow([b"123", b"4"])
        assert refused.value.retry_after_s == 2
        assert intake.held_bytes == 8
        more.set()
        assert await first == b"123456789"
        assert intake.held_bytes == 0
        assert await slow([gzip.compress(b"")[:8], b"9"])

    asyncio.run(run())


def test_closed_connections_leave_nothing_to_the_garbage_collector(doors: RunningDoors) -> None:
    host, port = doors.http.removeprefix("http://").split(":")
    gc.collect()
    gc.disable()  # a collection of thousands of them would stop every call
    try:
        for sent in (POST + b"content-length: 2\r\n\r\n{}", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"GET"):
            with socket.create_connection((host, int(port)), timeout=10) as line:
                line.sendall(sent)
                if len(sent) > 3:
                    assert line.recv(65536).startswith(b"HTTP/1.1 200 ")
        until(lambda: not [each for each in gc.get_objects() if isinstance(each, Connection)])
    finally:
        gc.enable()

"""Requests that offer an upgrade, as Java's HttpClient sends them: their bodies arrive, and nothing
is hidden in them. What a connection may send and how long it may be silent, and how it ends.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from service.http_protocol import HEADERS_MAX
from tests.e2e.process import WAIT_S, until
from tests.units.service.conftest import COPIES_TOKEN
from tests.units.service.http.clients import BODY, RETRIEVE, connected, received
from tests.units.service.running import RunningService

OFFERS = {
    "h2c": "connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAEAAEAA\r\nupgrade: h2c",
    "websocket": "Connection: keep-alive, Upgrade\r\nUpgrade: websocket",
    "closing": "Upgrade: h2c\r\nConnection: upgrade, close",
}
HIDDEN = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
CUTS = list(itertools.product(OFFERS, ["length", "chunked"], [None, 400, 1]))
"""Offer, framing, and the size of the pieces that are sent."""


def request_of(body: bytes, framing: str, *headers: str) -> tuple[bytes, bytes]:
    """The headers of a call, and its body."""
    length = f"content-length: {len(body)}"
    if framing == "chunked":
        length = "transfer-encoding: chunked"
        middle = len(body) // 2
        parts = [body[:middle], body[middle:], b""]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    lines = [f"POST {RETRIEVE} HTTP/1.1", "host: localhost", length, *headers]
    return "\r\n".join([*lines, "", ""]).encode(), body


def send(connection: socket.socket, data: bytes, size: int | None) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for first in range(0, len(data), size or len(data)):
        connection.sendall(data[first : first + (size or len(data))])


def statuses(responses: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", responses)]


@pytest.mark.parametrize(("offer", "framing", "size"), CUTS)
def test_request_with_an_offer_keeps_its_body_and_one_hidden_in_it_gets_no_response(
    offer: str, framing: str, size: int | None, service: RunningService, http: httpx.Client
) -> None:
    closes = offer == "closing"
    headers, body = request_of(json.dumps(BODY).encode(), framing, OFFERS[offer])
    with connected(service) as connection:
        send(connection, headers + (body if closes else body + LAST), size)
        responses = received(connection)
    assert statuses(responses) == ([200] if closes else [200, 200])
    response, _ = json.JSONDecoder().raw_decode(responses.partition(b"\r\n\r\n")[2].decode())
    assert response["ids"] == http.post(RETRIEVE, json=BODY).json()["ids"]

    # The connection of a rejected request with a chunked body is closed.
    closes |= framing == "chunked"
    headers, body = request_of(HIDDEN, framing, OFFERS[offer])
    with connected(service) as connection:
        send(connection, headers + (body if closes else body + LAST), size)
        responses = received(connection)
    # The first is for the body, which is not JSON.
    assert statuses(responses) == ([400] if closes else [400, 200])
    assert b'"live"' not in responses


def test_pipelined_requests_are_served_whatever_they_offer(service: RunningService) -> None:
    headers, body = request_of(json.dumps(BODY).encode(), "length", OFFERS["h2c"])
    probe = f"GET /livez HTTP/1.1\r\nhost: localhost\r\n{OFFERS['h2c']}\r\n\r\n".encode()
    for request, count in ((headers + body, 50), (HIDDEN, 100), (probe, 1)):
        with connected(service) as connection:
            connection.sendall(request * count + LAST)
            assert statuses(received(connection)) == [200] * (count + 1)


def test_thousands_of_pipelined_requests_close_their_connection(
    serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    service = serve(inline_max_us=0)
    tower = service.waiting()
    headers, body = request_of(json.dumps(BODY).encode(), "length")
    with connected(service) as connection:
        connection.sendall(headers + body)
        assert tower.entered.wait(WAIT_S)
        connection.sendall(HIDDEN * 2000)
        assert statuses(received(connection)) == [400]
        tower.release.set()
    assert httpx.get(service.http + "/livez", verify=False).status_code == 200


GET = b"GET /livez"
REJECTED = {
    "many headers": (GET + b" HTTP/1.1\r\n" + b"a:\r\n" * 2000, 431),
    "a long header": (GET + b" HTTP/1.1\r\na: " + bytes([120]) * (2 << 20), 431),
    "a long name": (GET + b" HTTP/1.1\r\n" + bytes([120]) * (2 << 20), 431),
    "a long URL": (GET + b"?" + bytes([120]) * (2 << 20), 431),
    "a long extension": (request_of(b"", "chunked")[0] + b"1;" + bytes([120]) * (2 << 20), 431),
    "nothing of HTTP": (b"nothing of HTTP\r\n" * 100_000, 400),
    "a tunnel": (b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\ncontent-length: 39\r\n\r\n" + HIDDEN, 400),
    "a large body": (b"".join(request_of(bytes(8 << 20), "length", "connection: close")), 413),
    "large chunks": (b"".join(request_of(bytes(8 << 20), "chunked", "connection: close")), 413),
}


@pytest.mark.parametrize(("sent", "status"), REJECTED.values(), ids=REJECTED)
def test_request_that_goes_on_gets_its_response_and_nothing_behind_it(
    sent: bytes, status: int, service: RunningService
) -> None:
    with connected(service) as connection:
        connection.sendall(sent)
        responses = received(connection)
    assert statuses(responses)[-1:] == [status]
    assert b'"live"' not in responses


def test_largest_head_is_accepted_and_white_space_is_no_part_of_a_header(
    service: RunningService,
) -> None:
    lines = [f"x-{number}: {'v' * 200}" for number in range(HEADERS_MAX - 4)]
    lines += ["x-request-id: order-17 ", "x-request-timeout-ms:20000\t ", "connection: close"]
    head = "\r\n".join(("GET /v1/models HTTP/1.1\r\nhost: localhost", *lines, "", ""))
    with connected(service) as connection:
        connection.sendall(head.encode())
        response = received(connection)
    assert statuses(response) == [200]
    assert b"x-request-id: order-17\r\n" in response


@pytest.mark.parametrize(
    "begin", [b"", b"GET /livez HTTP/1.1\r\nx-slow: ", HIDDEN, HIDDEN + b"GET /livez HTTP/1.1\r\n"]
)
def test_connection_without_a_request_is_closed_whatever_it_sends(
    begin: bytes, serve: Callable[..., RunningService]
) -> None:
    service = serve(keep_alive_s=1)
    with connected(service) as connection:
        connection.sendall(begin)
        connection.settimeout(0.2)
        while True:
            try:
                if not connection.recv(1 << 16):
                    break
            except TimeoutError:
                if begin:
                    connection.sendall(b"x" if begin != HIDDEN else b"\r\n")


STATES = "/v1/models/movies/changes/states?mark=&sequence=0"
UNREAD = {
    "/start_page.js": ["/v1/models", "/metrics", STATES],
    "/docs/assets/swagger-ui.css": ["/v1/models", "/metrics", STATES],
    "/openapi.json": [STATES],
}
"""What some clients request again and again and never read, and the pages that wait for none of
it.
"""
CLIENTS = 4


@pytest.mark.parametrize(("path", "pages"), UNREAD.items(), ids=[*UNREAD])
def test_pages_of_one_kind_do_not_wait_for_those_of_another_that_nobody_reads(
    path: str,
    pages: list[str],
    serve: Callable[..., RunningService],
    write: Callable[..., Any],
    hosted: Callable[..., dict[str, Any]],
) -> None:
    write()
    service = serve(**hosted("writer"))
    # So that a response of any size fills what the kernel holds.
    service.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    authorization = f"Bearer {COPIES_TOKEN}"
    if path.startswith("/start_page"):
        lines = "host: localhost"
    else:
        lines = f"host: localhost\r\nauthorization: {authorization}"
    request = f"GET {path} HTTP/1.1\r\n{lines}\r\n\r\n".encode()

    def count() -> float:
        return service.value("rowcast_requests_total", transport="http")

    with ExitStack() as opened:
        for _ in range(CLIENTS):
            connection = opened.enter_context(connected(service))
            connection.sendall(request * 100)
        until(lambda: count() >= CLIENTS)
        client = opened.enter_context(httpx.Client(base_url=service.http, timeout=WAIT_S))
        for page in pages:
            response = client.get(page, headers={"authorization": authorization})
            assert (page, response.status_code) == (page, 200)

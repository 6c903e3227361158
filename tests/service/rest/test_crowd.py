"""Connections that ask for too much, read too little or stay too long: each is held to its part, others go on."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.rest.crowd import Crowd
from service.rest.docs import ASSETS
from service.rest.heads import HEADERS_MAX
from service.sockets import connections_max_of
from tests.service.doors import RunningDoors, ScriptedEngine, codes_of, desk_of, settings_of
from tests.service.process import until

LIVE = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE = f"{ASSETS}/swagger-ui-bundle.js".encode()
ASK = b"POST /v1/models/m:retrieve HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


@contextmanager
def running(root: Path, engine: ScriptedEngine | None = None, **options: Any) -> Iterator[RunningDoors]:
    with RunningDoors(desk_of(engine or ScriptedEngine(), settings_of(root, **options))) as doors:
        yield doors


def line_to(doors: RunningDoors) -> socket.socket:
    host, port = doors.http.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def cuts(doors: RunningDoors, reason: str) -> float:
    return doors.desk.metrics.registry.get_sample_value("rowcast_cut_connections_total", {"reason": reason}) or 0


def received(line: socket.socket, count: int) -> bytes:
    """What comes until so many answers are here, or the connection ends."""
    got = b""
    while got.count(b"HTTP/1.1 ") < count or not got.endswith(b"}"):
        part = line.recv(1 << 20)
        if not part:
            break
        got += part
    return got


def ends(line: socket.socket) -> bool:
    """Whether the other side ends the connection; what it still says is read."""
    try:
        while line.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass
    return True


def test_connection_that_asks_ahead_is_answered_in_order(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    with running(tmp_path, engine) as doors, line_to(doors) as line:
        for number in range(2000):
            line.sendall(ASK.replace(b"host: x", b"x-request-id: r%d" % number))
        answers = received(line, 2000)
    assert answers.count(b"HTTP/1.1 200 ") == 2000
    assert [request.request_id for _, _, request in engine.asked] == [f"r{number}" for number in range(2000)]


def test_connection_that_asks_ahead_of_a_slow_answer_is_not_read_on(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    with running(tmp_path, engine) as doors, line_to(doors) as line:
        engine.held = asyncio.Event()
        line.sendall(ASK)
        assert engine.begun.wait(10)
        line.settimeout(1)
        sent = 0
        with pytest.raises(TimeoutError):  # noqa: PT012 - the kernel's buffers are full, since nobody reads
            while True:
                sent += line.send(ASK * 1000)
        assert len(engine.asked) == 1
        assert sent < 32 << 20
        doors.soon(engine.held.set)


def test_connection_that_never_reads_is_cut_and_its_answers_go(tmp_path: Path) -> None:
    with running(tmp_path) as doors, line_to(doors) as line:
        line.sendall(LIVE.replace(b"/livez", LARGE) * 20)
        until(lambda: cuts(doors, "unread") > 0)
        with line_to(doors) as other:
            other.sendall(LIVE)
            assert received(other, 1).startswith(b"HTTP/1.1 200 ")


def test_connection_without_a_call_makes_room_for_a_newer_one(tmp_path: Path) -> None:
    with running(tmp_path, connections_max=2) as doors, line_to(doors) as first, line_to(doors) as second:
        for line in (first, second, first):
            line.sendall(LIVE)
            received(line, 1)
        with line_to(doors) as third:
            third.sendall(LIVE)
            assert received(third, 1).startswith(b"HTTP/1.1 200 ")
            assert ends(second)
            first.sendall(LIVE)
            assert received(first, 1).startswith(b"HTTP/1.1 200 ")
        assert cuts(doors, "room") == 1


def test_connection_whose_large_answer_is_still_read_is_not_cut_for_a_newer_one(tmp_path: Path) -> None:
    with running(tmp_path, connections_max=1) as doors, line_to(doors) as reader:
        reader.sendall(LIVE.replace(b"/livez", LARGE) * 3)
        got = received_bytes(reader, 100_000)
        with line_to(doors) as more:
            assert received(more, 1).startswith(b"HTTP/1.1 429 ")
        got += received_bytes(reader, 4_000_000)
    assert got > 4_000_000
    assert not cuts(doors, "room")


def received_bytes(line: socket.socket, least: int) -> int:
    """Reads so many bytes, or what there is until the connection ends."""
    got = 0
    while got < least:
        part = line.recv(100_000)
        if not part:
            break
        got += len(part)
    return got


def test_connection_is_refused_where_all_others_have_calls(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    with running(tmp_path, engine, connections_max=1) as doors, line_to(doors) as line:
        engine.held = asyncio.Event()
        line.sendall(ASK)
        assert engine.begun.wait(10)
        with line_to(doors) as more:
            answer = received(more, 1)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1\r\n" in answer
        doors.soon(engine.held.set)
        assert received(line, 1).startswith(b"HTTP/1.1 200 ")


def test_connection_whose_body_nobody_asked_for_and_has_no_end_is_cut(tmp_path: Path) -> None:
    with running(tmp_path) as doors, line_to(doors) as line:
        line.sendall(LIVE.replace(b"host: x", b"content-length: 1000000"))
        assert b"200" in received(line, 1)
        line.sendall(b"x")
        assert ends(line)
        assert cuts(doors, "rest") == 1


def test_connection_whose_body_ends_after_its_answer_is_kept(tmp_path: Path) -> None:
    with running(tmp_path) as doors, line_to(doors) as line:
        line.sendall(LIVE.replace(b"host: x", b"content-length: 5000"))
        received(line, 1)
        line.sendall(b"x" * 5000 + LIVE)
        assert received(line, 1).startswith(b"HTTP/1.1 200 ")


def test_connection_that_is_old_is_closed_behind_its_answer(tmp_path: Path) -> None:
    with running(tmp_path, connection_age_s=0.000001) as doors, line_to(doors) as line:
        line.sendall(LIVE)
        assert b"connection: close" in received(line, 1)
        assert ends(line)


def test_connection_with_too_many_headers_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as doors, line_to(doors) as line:
        line.sendall(LIVE[:-2] + b"a: b\r\n" * HEADERS_MAX + b"\r\n")
        answer = received(line, 1)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b"TOO_LARGE" in answer
        assert ends(line)


def test_caller_that_closes_its_own_side_is_given_up_once_it_leaves(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    with running(tmp_path, engine) as doors:
        with line_to(doors) as line:
            engine.held = asyncio.Event()
            line.sendall(ASK)
            assert engine.begun.wait(10)
            line.shutdown(socket.SHUT_WR)
            assert line.recv(100) == b"H"  # what is sent ahead, to find out
            assert not engine.given_up.is_set()
        assert engine.given_up.wait(10)
    assert doors.desk.metrics.registry.get_sample_value("rowcast_connections", {"door": "http"}) == 0


class _Connection:
    def __init__(self) -> None:
        self.cuts: list[str] = []

    def cut(self, reason: str) -> None:
        self.cuts.append(reason)


def test_crowd_with_too_much_unread_cuts_the_longest_stalled_but_never_the_last() -> None:
    crowd = Crowd(10, 100)
    first, second, third = _Connection(), _Connection(), _Connection()
    for each in (first, second, third):
        assert crowd.join(each)
    crowd.stalls(first, 60)
    crowd.stalls(second, 40)
    assert first.cuts == []
    crowd.stalls(third, 500)
    assert (first.cuts, second.cuts, third.cuts) == (["unread"], ["unread"], [])
    crowd.reads(third)
    crowd.stalls(second, 100)
    assert second.cuts == ["unread"]
    for each in (first, second, third):
        crowd.leave(each)
    assert crowd.count == 0


def test_crowd_takes_as_many_as_files_may_be_open_unless_told(tmp_path: Path) -> None:
    assert connections_max_of(settings_of(tmp_path, connections_max=7)) == 7
    assert 0 < connections_max_of(settings_of(tmp_path)) <= 10_000


_REQUESTS = {
    b"HTTP/1.1 200 ": [
        LIVE,
        ASK,
        ASK.replace(b"content-length: 2\r\n\r\n{}", b"content-length: 3000\r\n\r\n{}" + b" " * 2998),
        ASK.replace(b"content-length: 2\r\n\r\n{}", b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"),
        LIVE.replace(b"host: x", b"content-length: 2000") + b"y" * 2000,
    ],
    b"HTTP/1.1 404 ": [LIVE.replace(b"livez", b"nowhere")],
    b"HTTP/1.1 400 ": [ASK.replace(b"{}", b"{{")],
}
_ALL = [(status, request) for status, requests in _REQUESTS.items() for request in requests]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(st.sampled_from(_ALL), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 6000), max_size=8),
    wait=st.booleans(),
)
def test_connection_answers_requests_alike_however_they_are_cut_and_run_together(
    asked: list[tuple[bytes, bytes]], cuts: list[int], wait: bool, doors: RunningDoors
) -> None:
    stream = b"".join(request for _, request in asked)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    with line_to(doors) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin, end in itertools.pairwise(places):
            line.sendall(stream[begin:end])
            if wait:
                time.sleep(0.0005)
        answers = received(line, len(asked))
    assert re.findall(rb"HTTP/1.1 \d+ ", answers) == [status for status, _ in asked]


_PIECES = [
    *(request for _, request in _ALL),
    *(
        b"POST ",
        b"GET ",
        b" HTTP/1.1",
        b" HTTP/9.9",
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b"\xff",
        b": ",
        b"PRI * HTTP/2.0\r\n",
    ),
    *(
        b"content-length: 5\r\n",
        b"content-length: 5, 5\r\n",
        b"content-length: -1\r\n",
        b"content-length: 99999999999\r\n",
    ),
    *(
        b"transfer-encoding: chunked\r\n",
        b"transfer-encoding: gzip\r\n",
        b"expect: 100-continue\r\n",
        b"upgrade: h2c\r\n",
    ),
    *(b"connection: close\r\n", b"connection: upgrade\r\n", b"5\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"0\r\n\r\n"),
    *(b"/v1/models/m:retrieve", b"/v1/models/%ff%00:rank", b"//", b"http://x/", b"*", b"?" * 50),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.sampled_from(_PIECES) | st.binary(max_size=20) | st.builds(bytes, st.just(70_000)), max_size=12)
)
def test_connection_that_says_anything_ends_without_a_bug(
    pieces: list[bytes], doors: RunningDoors, caplog: pytest.LogCaptureFixture
) -> None:
    bugs = internal(doors)  # other tests had theirs
    with line_to(doors) as line:
        try:
            line.sendall(b"".join(pieces))
            line.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was refused already
        assert ends(line)
    with line_to(doors) as other:
        other.sendall(LIVE)
        assert received(other, 1).startswith(b"HTTP/1.1 200 ")
    assert internal(doors) == bugs
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def internal(doors: RunningDoors) -> float:
    return sum(count for (_, code), count in codes_of(doors.desk.metrics, "http").items() if code == "INTERNAL")

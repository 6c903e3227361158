"""Hot calls as their connections see them, on a real socket: in pieces, asked ahead, left early, at the end."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.engine import requests
from tests.service.doors import RunningDoors, ScriptedEngine, codes_of, desk_of, settings_of
from tests.service.process import until

LINE = b"POST /v1/models/m:retrieve HTTP/1.1\r\nhost: x\r\n"
ASK = LINE + b"content-length: 2\r\n\r\n{}"


def line_to(doors: RunningDoors) -> socket.socket:
    host, port = doors.http.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)), timeout=20)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def rest(line: socket.socket) -> bytes:
    """All that comes until the connection ends."""
    got = b""
    while part := line.recv(1 << 20):
        got += part
    return got


def test_call_that_waits_to_be_asked_for_its_body_is_asked(doors: RunningDoors) -> None:
    with line_to(doors) as line:
        line.sendall(LINE + b"expect: 100-continue\r\nconnection: close\r\ncontent-length: 2\r\n\r\n")
        assert line.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(b"{}")
        assert rest(line).startswith(b"HTTP/1.1 200 OK\r\n")


def test_call_that_is_refused_at_its_head_is_not_asked_for_its_body(doors: RunningDoors) -> None:
    with line_to(doors) as line:
        line.sendall(LINE + b"expect: 100-continue\r\ncontent-length: 99999\r\n\r\n")
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("sent", "closed"),
    [
        (ASK.replace(b"HTTP/1.1", b"HTTP/1.0"), True),
        (ASK.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nconnection: keep-alive\r\n"), True),
        (ASK.replace(b"host: x", b"connection: close"), True),
        (ASK, False),
    ],
)
def test_connection_is_kept_behind_an_answer_as_its_request_says(
    sent: bytes, closed: bool, doors: RunningDoors
) -> None:
    with line_to(doors) as line:
        line.sendall(sent if closed else sent + ASK.replace(b"host: x", b"connection: close"))
        answers = rest(line)
    assert answers.count(b"HTTP/1.1 200 OK\r\ndate: ") == (1 if closed else 2)
    assert answers.count(b"connection: close\r\n") == 1


def test_head_of_a_call_is_answered_without_a_body(doors: RunningDoors) -> None:
    with line_to(doors) as line:
        line.sendall(ASK.replace(b"POST", b"HEAD").replace(b"host: x", b"connection: close"))
        head, _, body = rest(line).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert b"allow: POST" in head
    assert body == b""


@pytest.mark.parametrize("behind", [b"", b" " * 100_000])
def test_call_of_any_size_and_in_any_pieces_is_answered(behind: bytes, tmp_path: Path) -> None:
    engine = ScriptedEngine()
    body = b'{"k": 7}' + behind
    with RunningDoors(desk_of(engine, settings_of(tmp_path))) as doors, line_to(doors) as line:
        line.sendall(LINE + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 30_000):
            line.sendall(body[at : at + 30_000])
        assert rest(line).startswith(b"HTTP/1.1 200 OK\r\n")
    assert engine.asked[0][1].k == 7


def cancelled(doors: RunningDoors) -> float:
    return codes_of(doors.desk.metrics, "http").get(("retrieve", "CANCELLED"), 0)


def test_caller_that_leaves_within_its_body_is_counted_and_asks_nothing(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    desk = desk_of(engine, settings_of(tmp_path, body_bytes_max=1024, intake_bytes_max=1024))
    with RunningDoors(desk) as doors:
        for left in range(1, 4):  # what is left of their bodies would fill the intake
            with line_to(doors) as line:
                line.sendall(LINE + b"content-length: 1000\r\n\r\n" + b" " * 900)
            until(lambda left=left: cancelled(doors) == left)  # type: ignore[misc]
        with line_to(doors) as line:
            line.sendall(ASK.replace(b"host: x", b"connection: close"))
            assert rest(line).startswith(b"HTTP/1.1 200 OK\r\n")
    assert len(engine.asked) == 1


def test_caller_that_leaves_behind_calls_it_sent_ahead_has_none_of_them_answered(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    with RunningDoors(desk_of(engine, settings_of(tmp_path))) as doors:
        engine.held = asyncio.Event()
        with line_to(doors) as line:
            line.sendall(ASK * 3)
            assert engine.begun.wait(10)
        assert engine.given_up.wait(10)
        until(lambda: cancelled(doors) > 0)
        assert cancelled(doors) == len(engine.asked) == 1


GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("asked", [ASK * 3, GET, ASK + GET + ASK + LINE, ASK.replace(b"HTTP/1.1", b"HTTP/1.0")])
@pytest.mark.parametrize("held_s", [0.0, 0.1])
def test_caller_that_closes_its_own_side_behind_its_calls_is_answered_and_then_left(
    held_s: float, asked: bytes, tmp_path: Path
) -> None:
    engine = ScriptedEngine()
    with RunningDoors(desk_of(engine, settings_of(tmp_path))) as doors, line_to(doors) as line:
        held = engine.held = asyncio.Event()
        line.sendall(asked)
        line.shutdown(socket.SHUT_WR)
        doors.soon(doors.loop.call_later, held_s, held.set)
        answers = rest(line)
    assert answers.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 200 OK\r\n") == asked.count(b"\r\n\r\n")


def test_caller_that_closes_its_own_side_within_its_body_is_left(tmp_path: Path) -> None:
    with RunningDoors(desk_of(ScriptedEngine(), settings_of(tmp_path))) as doors, line_to(doors) as line:
        line.sendall(ASK[:-1])
        line.shutdown(socket.SHUT_WR)
        assert rest(line) == b""
        until(lambda: cancelled(doors) == 1)


def refused(doors: RunningDoors) -> bool:
    try:
        line_to(doors).close()
    except ConnectionRefusedError:
        return True
    return False


def test_call_under_way_when_the_service_ends_is_answered_and_its_connection_closed(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    with RunningDoors(desk_of(engine, settings_of(tmp_path))) as doors, line_to(doors) as line:
        engine.held = asyncio.Event()
        line.sendall(ASK)
        assert engine.begun.wait(10)
        ending = threading.Thread(target=doors.__exit__, args=(None, None, None))
        ending.start()
        until(lambda: refused(doors))
        doors.soon(engine.held.set)
        answer = rest(line)
        ending.join()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer


def test_call_that_comes_while_the_service_takes_its_leave_is_the_last_of_its_connection(tmp_path: Path) -> None:
    with RunningDoors(desk_of(ScriptedEngine(), settings_of(tmp_path))) as doors, line_to(doors) as kept:
        kept.sendall(ASK)
        kept.recv(1 << 16)
        doors.soon(doors.leave)
        for line in (kept, line_to(doors)):
            line.sendall(ASK + ASK)
            answers = rest(line)
            assert answers.startswith(b"HTTP/1.1 200 OK\r\n")
            assert (answers.count(b"HTTP/1.1 "), answers.count(b"connection: close")) == (1, 1)
            line.close()


def test_connection_that_asks_nothing_for_long_is_closed_whatever_it_asked_before(tmp_path: Path) -> None:
    with RunningDoors(desk_of(ScriptedEngine(), settings_of(tmp_path, idle_s=1))) as doors, line_to(doors) as line:
        for _ in range(5):
            line.sendall(ASK)
            assert line.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")
        assert rest(line) == b""


class Large(ScriptedEngine):
    """Answers with millions of bytes."""

    async def retrieve(self, request: requests.Retrieval, call: requests.Call) -> requests.Retrieved:
        n = 200_000
        found = requests.Neighbors(np.arange(n), np.zeros(n, np.float32), np.array([0, n]))
        answer: Any = await self._answer("retrieve", request, call, requests.Retrieved("m", 3, found, n))
        return answer  # type: ignore[no-any-return]


def test_answers_to_calls_sent_ahead_wait_for_a_caller_who_does_not_read(tmp_path: Path) -> None:
    engine = Large()
    with RunningDoors(desk_of(engine, settings_of(tmp_path))) as doors, line_to(doors) as line:
        asked = ASK.replace(b"host: x", b"accept: application/x-protobuf")
        line.sendall(asked * 19 + asked.replace(b"content-", b"connection: close\r\ncontent-"))
        assert engine.begun.wait(10)
        before = -1
        while len(engine.asked) != before:
            before = len(engine.asked)
            time.sleep(0.1)
        assert before < 10
        answers = rest(line)
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == len(engine.asked) == 20

"""Calls that are refused at their headers: as any other refusal, on a real socket, and the connection goes on."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.engine.engine import Engine
from service.errors import Overloaded
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.doors import RunningDoors, ScriptedEngine, codes_of, desk_of, settings_of

RETRIEVE = "/v1/models/m:retrieve"
BODY = {"k": 2, "features": {"user": 7}}
PROTOBUF = {"content-type": "application/x-protobuf"}


class Crowd:
    """Makes the doors' engine refuse; remembers what it was asked."""

    def __init__(self, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, float | None]] = []
        """Names and times of calls, seconds."""
        monkeypatch.setattr(engine, "refusal", self.refusal)

    def refusal(self, name: str, timeout_s: float | None) -> Overloaded | None:
        self.asked.append((name, timeout_s))
        return Overloaded("64 calls are in flight", 1.5, "calls")


@pytest.fixture
def crowd(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> Crowd:
    return Crowd(engine, monkeypatch)


def test_scripted_engine_is_asked_as_the_real_one_is() -> None:
    for name in ("refusal", "enter"):
        assert hasattr(Engine, name), name


@pytest.mark.parametrize("path", [RETRIEVE, "/v1/models/m/versions/3:rank"])
def test_call_without_room_is_refused_and_never_decoded(
    path: str, crowd: Crowd, http: httpx.Client, engine: ScriptedEngine, doors: RunningDoors
) -> None:
    call = path.rpartition(":")[2]
    before = codes_of(doors.desk.metrics, "http").get((call, "OVERLOADED"), 0)
    answer = http.post(path, content=b"{", headers={"x-request-id": "r-1"})
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["x-request-id"]) == (429, "2", "r-1")
    assert answer.headers["content-type"] == "application/json"
    told = {"code": "OVERLOADED", "message": "64 calls are in flight", "request_id": "r-1"}
    assert answer.json() == {"error": told}
    assert engine.asked == []
    assert crowd.asked == [(call, None)]
    assert codes_of(doors.desk.metrics, "http")[call, "OVERLOADED"] == before + 1


def test_protobuf_call_without_room_gets_a_message(crowd: Crowd, http: httpx.Client) -> None:
    answer = http.post(RETRIEVE, content=b"", headers=PROTOBUF)
    details = pb.ErrorDetails.FromString(answer.content)
    assert (answer.status_code, details.code) == (429, "OVERLOADED")
    assert details.request_id == answer.headers["x-request-id"]


@pytest.mark.parametrize("form", [{}, PROTOBUF])
def test_refusals_of_one_connection_tell_each_call_its_own_id(
    form: dict[str, str], crowd: Crowd, http: httpx.Client
) -> None:
    given = ["r-1", "r-22", "a" * 32, "b" * 32, "c" * 128, "r-1"]
    told = [http.post(RETRIEVE, content=b"", headers=form | {"x-request-id": name}) for name in given]
    told += [http.post(RETRIEVE, content=b"", headers=form) for _ in range(3)]
    ids = [answer.headers["x-request-id"] for answer in told]
    assert ids[: len(given)] == given
    assert len(set(ids[len(given) :])) == 3
    for name, answer in zip(ids, told, strict=True):
        if form:
            details = pb.ErrorDetails.FromString(answer.content)
            assert (details.message, details.request_id) == ("64 calls are in flight", name)
        else:
            error = {"code": "OVERLOADED", "message": "64 calls are in flight", "request_id": name}
            assert answer.json() == {"error": error}
        assert answer.headers["retry-after"] == "2"


def test_time_of_a_call_is_told_to_the_engine(crowd: Crowd, http: httpx.Client) -> None:
    for told in ("60000", "250", "250", "1000"):  # parsed, and known from before
        http.post(RETRIEVE, json=BODY, headers={"x-request-timeout-ms": told})
    assert crowd.asked == [("retrieve", timeout_s) for timeout_s in (60.0, 0.25, 0.25, 1.0)]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/livez", 200), ("GET", "/readyz", 200), ("GET", "/metrics", 200), ("GET", RETRIEVE, 405)],
)
def test_what_is_no_call_is_answered_while_calls_are_refused(
    method: str, path: str, status: int, crowd: Crowd, http: httpx.Client
) -> None:
    assert http.request(method, path).status_code == status
    assert crowd.asked == []


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/v1/models/m:zzz", {}, 404), (RETRIEVE, {"x-request-timeout-ms": "soon"}, 400)],
)
def test_call_that_could_never_be_answered_is_told_so_rather_than_to_come_again(
    path: str, headers: dict[str, str], status: int, crowd: Crowd, http: httpx.Client
) -> None:
    assert http.post(path, json=BODY, headers=headers).status_code == status
    assert crowd.asked == []


def request_of(path: str, body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST " + path.encode() + b" HTTP/1.1", b"host: x", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def answers_on(line: socket.socket, count: int) -> list[bytes]:
    """Status lines of the next answers."""
    file = line.makefile("rb")
    seen: list[bytes] = []
    while len(seen) < count:
        seen.append(file.readline().strip())
        length = 0
        while (header := file.readline().strip().lower()) != b"":
            if header.startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        file.read(length)
    return seen


def connect(doors: RunningDoors) -> socket.socket:
    host, port = doors.http.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_connection_goes_on_behind_refusals_whatever_the_size_of_their_bodies(
    crowd: Crowd, doors: RunningDoors
) -> None:
    with connect(doors) as line:
        for size in (0, 10, 1 << 20, 5):
            line.sendall(request_of(RETRIEVE, bytes(size)))
            assert answers_on(line, 1) == [b"HTTP/1.1 429 Too Many Requests"]
        line.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answers_on(line, 1) == [b"HTTP/1.1 200 OK"]


def test_requests_sent_ahead_are_refused_in_their_order(crowd: Crowd, doors: RunningDoors) -> None:
    with connect(doors) as line:
        probe = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
        line.sendall(request_of(RETRIEVE, b"{}") + probe + request_of(RETRIEVE, bytes(3000)) * 3 + probe)
        statuses = [status.split()[1] for status in answers_on(line, 6)]
    assert statuses == [b"429", b"200", b"429", b"429", b"429", b"200"]


LINE = b"POST /v1/models/m:retrieve HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("pieces", "statuses"),
    [
        ([LINE + b"host: x\r\ncontent-length: 2\r\n\r\n{}"], [b"429"]),
        ([LINE + b"host: x\r\ncontent-length: 2\r\n\r\n", b"{}"], [b"429"]),
        ([LINE + b"host: x\r\ncontent-le", b"ngth: 2\r\n\r\n{", b"}"], [b"429"]),
        ([LINE + b"content-length: 2\r\n\r\n{}" + LINE + b"content-len", b"gth: 0\r\n\r\n"], [b"429"] * 2),
        ([LINE + b"host: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"], [b"429"]),
        ([LINE + b"host: x\r\n\r\n"], [b"429"]),
        ([b"POST /v1/models/a%20b:retrieve HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"], [b"429"]),
        ([LINE + b"host: x\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n{}"], [b"400"]),
        ([LINE + b"host: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}"], [b"400"]),
        ([LINE + b"host: x\r\ncontent-length: +2\r\n\r\n{}"], [b"400"]),
        ([LINE.replace(b"1.1", b"1.0") + b"host: x\r\ncontent-length: 2\r\n\r\n{}"], [b"429"]),
    ],
)  # fmt: skip
def test_request_is_refused_once_in_however_many_pieces_it_comes(
    pieces: list[bytes], statuses: list[bytes], crowd: Crowd, doors: RunningDoors, http: httpx.Client
) -> None:
    with connect(doors) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            line.sendall(piece)
            http.get("/livez")  # what was sent is read by now
        line.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = b""
        while piece := _received(line):
            answer += piece
    seen = re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", answer)
    goes_on = statuses[-1] == b"429" and b"HTTP/1.0" not in pieces[0]
    assert seen == [*statuses, *([b"200"] if goes_on else [])]


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except ConnectionResetError:  # it closed before it read the last request
        return b""


def test_connection_that_is_not_to_be_kept_is_closed_behind_a_refusal(crowd: Crowd, doors: RunningDoors) -> None:
    with connect(doors) as line:
        line.sendall(request_of(RETRIEVE, b"{}", b"connection: close"))
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"connection: close" in answer.lower()


def test_bodies_that_are_too_much_together_are_counted(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, body_bytes_max=1024, intake_bytes_max=1024)
    desk = desk_of(ScriptedEngine(), settings)
    with RunningDoors(desk) as doors, connect(doors) as first, connect(doors) as second:
        begun = request_of(RETRIEVE, bytes(1000))[:-100]
        first.sendall(begun)
        httpx.get(f"{doors.http}/livez")  # what was sent is read by now
        second.sendall(begun)
        assert second.recv(65536).startswith(b"HTTP/1.1 429 ")
        shed = desk.metrics.registry.get_sample_value("rowcast_shed_total", {"call": "retrieve", "reason": "bodies"})
    assert shed == 1


def test_call_with_room_is_answered_after_all(
    http: httpx.Client, engine: ScriptedEngine, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(engine, "refusal", lambda *told: asked.append(told))
    assert http.post(RETRIEVE, json=BODY).status_code == 200
    assert [name for name, _ in asked] == ["retrieve"]

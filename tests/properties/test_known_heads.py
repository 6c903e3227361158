"""A connection answers the same, whether it knows heads from before or parses each of them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.server import ServerState

from service.engine.desk import Desk
from service.errors import Overloaded
from service.rest.app import create_app
from service.rest.connections import Connection
from service.rest.crowd import Crowd, Patience
from service.rest.heads import Heads
from service.rest.hot_calls import HotCalls
from tests.service.doors import ScriptedEngine, codes_of, desk_of, settings_of

BODIES = [b"", b"{}", b'{"k": 2, "features": {"user": 7}}', b"\r\n\r\n", b"[" * 90, b" " * 2000]
CALLS = [b"POST /v1/models/m:%b HTTP/1.1" % name for name in (b"retrieve", b"rank")]
LINES = [
    *(b"POST /v1/models/m:zzz HTTP/1.1", b"POST /v1/models/m:rank?a=b HTTP/1.1", b"GET /livez HTTP/1.1"),
    *(b"POST /v1/models/m:retrieve HTTP/1.0", b"GET /v1/models/m:retrieve HTTP/1.1"),
]
HEADERS = [
    *(b"host: x", b"Host:x", b"accept: application/json", b"content-type: application/json", b"x-more: \t a b \t "),
    *(b"x-request-id: a", b"X-Request-Id: b-2", b"x-request-id: b c", b"x-request-timeout-ms: 60000"),
    *(b"x-request-timeout-ms: 5000", b"x-request-timeout-ms: soon", b"x-request-timeout-ms:", b"x-empty:"),
    *(b"connection: keep-alive", b"connection: close", b"connection: upgrade", b"upgrade: h2c"),
    *(b"expect: 100-continue", b"transfer-encoding: chunked", b"content-length: 2", b"x-bad\x00: 1", b"no colon"),
    b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
]


class Refusing(ScriptedEngine):
    """Has room for all calls but rankings."""

    def refusal(self, name: str, timeout_s: float | None) -> Overloaded | None:
        return Overloaded("no room", 1.5, "line") if name == "rank" else None


class Recorder(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed, self.reads = b"", False, True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


async def quiet() -> None:
    """Has the loop go on until what was begun is answered."""
    for _ in range(30):
        await asyncio.sleep(0)


async def answered(pieces: list[bytes], heads: Heads, desk: Desk) -> tuple[bytes, bool]:
    """Has a connection answer what comes; returns what it wrote, and whether it closed."""
    state = ServerState()
    config = Config(create_app(desk), log_config=None, access_log=False, lifespan="off", ws="none")
    calls = HotCalls(desk)
    calls.heads = heads
    shared = Crowd(10, 1 << 20), Patience(), desk.metrics, calls
    connection, line = Connection(*shared, config=config, server_state=state, app_state={}), Recorder()
    connection.connection_made(line)
    for piece in pieces:
        if not line.closed:
            connection.data_received(piece)
        await quiet()
        assert line.reads or line.closed
    closed = line.closed
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks, return_exceptions=True)
    told = re.sub(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])", b"ID", line.written)
    return re.sub(rb"server-timing: [^\r]*", b"server-timing:", told), closed


def seen(pieces: list[bytes], heads: Heads) -> dict[str, Any]:
    """All that a service shows of a connection on which these pieces come."""
    engine = Refusing()
    desk = desk_of(engine, settings_of(Path(__file__).parent, body_bytes_max=1024))
    written, closed = asyncio.run(answered(pieces, heads, desk))
    asked = [(name, request.target, call.deadline is None) for name, request, call in engine.asked]
    return {"written": written, "closed": closed, "asked": asked, "codes": codes_of(desk.metrics, "http")}


@st.composite
def requests(draw: st.DrawFn) -> list[bytes]:
    """Some requests, of which most have the same head."""
    headers = draw(st.lists(st.sampled_from(HEADERS), max_size=3, unique=True))
    lines = draw(st.lists(st.sampled_from([*CALLS, *LINES]), min_size=1, max_size=2))
    length = draw(st.sampled_from([b"content-length: %d", b"Content-Length:%d", b"content-length: 0%d "]))
    more, at = draw(st.sampled_from(HEADERS)), draw(st.integers(0, len(headers)))
    found = []
    for _ in range(draw(st.integers(2, 6))):
        body, line = draw(st.sampled_from(BODIES)), draw(st.sampled_from([lines[0], *lines]))
        head = [line, *headers[:at], length % len(body), *headers[at:], *[more] * (draw(st.integers(0, 5)) == 5)]
        found.append(b"\r\n".join(head) + b"\r\n\r\n" + body)
    return found


@st.composite
def pieces(draw: st.DrawFn) -> list[bytes]:
    """Requests as they come: mostly whole, one at a time."""
    found = []
    for request in draw(requests()):
        how, at = draw(st.integers(0, 9)), draw(st.integers(0, len(request)))
        if how == 9:
            found += [request[:at], request[at:]]
        elif how == 8:  # the rest never comes
            found.append(request[:at])
        elif how == 7 and found:
            found[-1] += request
        else:
            found.append(request + b"\r\n" * (how == 6))
    return [piece for piece in found if piece]


@settings(max_examples=400)
@given(pieces())
def test_answers_do_not_depend_on_what_was_parsed_before(sent: list[bytes]) -> None:
    assert seen(sent, Heads()) == seen(sent, Heads(0))


def test_known_head_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[bytes] = []

    class Parser(httptools.HttpRequestParser):
        def feed_data(self, data: Any) -> None:
            fed.append(data)
            super().feed_data(data)

    monkeypatch.setattr(httptools, "HttpRequestParser", Parser)
    call = b"POST /v1/models/m:retrieve HTTP/1.1\r\nx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b"
    whole = [call % (name, len(body), body) for name, body in ((b"a", b"{}"), (b"bb", b" {}"), (b"c", b" " * 20))]
    told = seen(whole, Heads())
    assert fed == whole[:1]
    assert told["written"].count(b"HTTP/1.1 200 OK") == 2
    assert told["written"].count(b"HTTP/1.1 400 ") == 1
    assert told == seen(whole, Heads(0))
    assert fed == whole[:1] + whole

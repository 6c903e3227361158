"""Programs that the service sends requests to over HTTP, and that do not respond as they should."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from service.changes import copying
from service.cli import admin_client
from service.cli.admin_client import Admin, CtlError
from service.config import ServiceSettings
from service.shards import addresses

pytestmark = pytest.mark.slow

TOKEN = "t" * 40
DEADLINE_S = 1.0
"""Of responses that drip; the others have as long as they need."""
LIMIT = 1 << 20


class Program(ThreadingHTTPServer):
    """A program, and the tokens that it was sent."""

    daemon_threads = True

    def __init__(self, respond: Callable[[BaseHTTPRequestHandler], None]) -> None:
        tokens: list[str | None] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                tokens.append(self.headers["authorization"])
                self.close_connection = True
                respond(self)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.tokens = tokens
        self.address = f"127.0.0.1:{self.server_port}"


@contextmanager
def running(respond: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[Program]:
    with Program(respond) as program:
        threading.Thread(target=program.serve_forever, daemon=True).start()
        yield program
        program.shutdown()


def send(handler: BaseHTTPRequestHandler, status: int, *pieces: bytes, pause_s: float = 0) -> None:
    """Sends a status, then pieces of whatever follows, until the client is gone."""
    handler.send_response(status)
    handler.flush_headers()
    try:
        for piece in pieces:
            handler.wfile.write(piece)
            time.sleep(pause_s)
    except OSError:
        pass


CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (1 << 16, bytes(1 << 16))
TOO_LARGE = f"the response has more than {LIMIT} bytes, the limit"
TOO_LATE = f"no complete response within {DEADLINE_S:g} s"
HOSTILE: dict[str, tuple[int, list[bytes], str]] = {
    "states a size": (200, [b"content-length: 999999999999\r\n\r\n", *[CHUNK] * 99], TOO_LARGE),
    "states no size": (200, [b"\r\n", *[CHUNK] * 99], TOO_LARGE),
    "sends chunks": (200, [CHUNKED, *[CHUNK] * 99], TOO_LARGE),
    "drips headers": (200, [b"a: b\r\n"] * 99, TOO_LATE),
    "drips a header": (200, [b"a: ", *[b"b"] * 99], TOO_LATE),
    "drips a body": (200, [b"content-length: 99\r\n\r\n", *[b"b"] * 99], TOO_LATE),
    "drips a body without a size": (200, [b"\r\n", *[b"b"] * 99], TOO_LATE),
    "drips chunks": (200, [CHUNKED, *[b"1\r\nb\r\n"] * 99], TOO_LATE),
    "drips an error": (500, [b"content-length: 99\r\n\r\n", *[b"b"] * 99], TOO_LATE),
    "sends an endless error": (500, [b"\r\n", *[CHUNK] * 99], "500"),
}


def follow(address: str, token: Path, root: Path) -> None:
    settings = ServiceSettings(
        root=root, follow_changes=f"http://{address}", follow_changes_token=token
    )
    copying.Leader(settings).fetch("movies", None)


def list_replicas(address: str, token: Path, _: Path) -> None:
    asyncio.run(addresses.resolve(f"ray:{address}"))


def administer(address: str, token: Path, _: Path) -> None:
    Admin(f"http://{address}", None, None, token, None, None, 1.0, False).request("/v1/status")


def is_dripping(request: pytest.FixtureRequest) -> bool:
    return "drips" in request.node.callspec.params.get("kind", "")


@pytest.fixture(params=[follow, list_replicas, administer])
def request_of(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Sends a request to an address as a client of the service does; returns how it fails."""
    for module, limit, deadline in (
        (copying, "_RESPONSE_BYTES_MAX", "_DEADLINE_S"),
        (addresses, "_DASHBOARD_BYTES_MAX", "_DASHBOARD_S"),
        (admin_client, "_RESPONSE_BYTES_MAX", "_DEADLINE_S"),
    ):
        monkeypatch.setattr(module, limit, LIMIT)
        monkeypatch.setattr(module, deadline, DEADLINE_S if is_dripping(request) else 600.0)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)

    def send_request(address: str) -> str:
        with pytest.raises((copying.CopyFailed, OSError, CtlError)) as failed:
            request.param(address, token, tmp_path)
        return str(failed.value)

    return send_request


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_token_is_sent_where_another_program_points(
    status: int, request_of: Callable[[str], str]
) -> None:
    with running(lambda handler: send(handler, 200, b"\r\n")) as elsewhere:
        target = f"http://localhost:{elsewhere.server_port}/"
        location = f"location: {target}\r\ncontent-length: 0\r\n\r\n".encode()
        with running(lambda handler: send(handler, status, location)) as program:
            problem = request_of(program.address)
    assert f"a redirect (status {status}) to '{target}', which is not followed" in problem
    assert program.tokens == [f"Bearer {TOKEN}"]
    assert elsewhere.tokens == []


@pytest.mark.parametrize("kind", HOSTILE)
def test_response_that_does_not_end_is_given_up(
    kind: str, request_of: Callable[[str], str]
) -> None:
    status, pieces, expected = HOSTILE[kind]
    pause_s = 0.3 * ("drips" in kind)
    with running(lambda handler: send(handler, status, *pieces, pause_s=pause_s)) as program:
        problem = request_of(program.address)
    assert expected in problem


def test_token_that_cannot_be_sent_is_in_no_message(
    tmp_path: Path, request_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for_ray = f"{TOKEN}\n{TOKEN}"
    (tmp_path / "token").write_text(for_ray)
    monkeypatch.setenv("RAY_AUTH_TOKEN", for_ray)
    with running(lambda handler: send(handler, 200, b"\r\n")) as program:
        problem = request_of(program.address)
    assert "has a character that HTTP forbids" in problem
    assert TOKEN not in problem

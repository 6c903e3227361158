"""The timeout of a call bounds all of it, however slowly the server sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from rowcast_client import DeadlineExceeded

from tests.e2e.process import WAIT_S
from tests.units.client.servers import EMBED, EMBEDDED, WAYS, Way, http_page

HTTP_WAYS = [way for way in WAYS if way.transport == "http"]
PAUSE_S = 0.05
"""Far below any timeout of a single step."""


def serve_slowly(listener: socket.socket, quick: bytes, slow: bytes, stop: threading.Event) -> None:
    """Responds to one request: some bytes at once, the others one at a time."""
    connection, _ = listener.accept()
    with closing(connection):
        connection.recv(1 << 16)
        connection.sendall(quick)
        for byte in slow:
            if stop.wait(PAUSE_S):
                return
            try:
                connection.sendall(bytes([byte]))
            except OSError:  # the client has given up
                return


@pytest.fixture(params=["headers", "body"])
def slow_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server whose complete and valid response takes about four seconds."""
    response = http_page(EMBEDDED.SerializeToString() + bytes(80))
    headers_end = response.index(b"\r\n\r\n") + 4
    quick_bytes = {"headers": 0, "body": headers_end}[request.param]
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        arguments = (listener, response[:quick_bytes], response[quick_bytes:], stop)
        thread = threading.Thread(target=serve_slowly, args=arguments)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        stop.set()
        thread.join()


@pytest.mark.parametrize("way", HTTP_WAYS, ids=str)
def test_timeout_bounds_a_response_that_comes_byte_by_byte(way: Way, slow_url: str) -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        way.send(slow_url, EMBED, timeout_s=0.5)
    assert caught.value.message == f"{slow_url} did not respond within 0.5 s"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("way", HTTP_WAYS, ids=str)
def test_timeout_bounds_a_request_or_a_handshake_that_nobody_reads(way: Way, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(DeadlineExceeded):
            way.send(url, EMBED, timeout_s=0.5)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(WAIT_S)
            while connection.recv(1 << 16):  # until the client has closed it
                pass

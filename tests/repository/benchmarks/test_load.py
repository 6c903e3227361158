from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import grpc
import numpy as np
import pytest

from benchmarks.load import Endpoint, Load, ServiceLost
from benchmarks.peers.contenders import free_ports

BODY = bytes(3000)
SLOW_S = 0.02
LARGE = bytes(200_000)
"""More than HTTP/2's first window, and more than one frame."""


class Echo(BaseHTTPRequestHandler):
    """Responds to every POST to / with the same bytes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def http_endpoint() -> Iterator[Endpoint]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Endpoint(server.server_address[1], "/", "text/plain")
        server.shutdown()


@pytest.fixture
def grpc_endpoint() -> Iterator[Endpoint]:
    def echo(_request: object, _context: object) -> bytes:
        return BODY

    def echo_slowly(_request: object, _context: object) -> bytes:
        time.sleep(SLOW_S)
        return BODY

    handlers = {
        "Call": grpc.unary_unary_rpc_method_handler(echo),
        "Slow": grpc.unary_unary_rpc_method_handler(echo_slowly),
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Endpoint(port, "/Echo/Call")
    server.stop(None).wait()


@pytest.fixture(params=["http", "grpc"])
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    actual: Endpoint = request.getfixturevalue(f"{request.param}_endpoint")
    return actual


@pytest.mark.parametrize("bodies", [[b"", b"small"], [LARGE]], ids=["small", "large"])
def test_load_closed_gets_a_response_to_every_request(
    endpoint: Endpoint, bodies: list[bytes]
) -> None:
    load = Load(endpoint, bodies)
    responses = load.closed(3, 0.1)
    assert responses.failed == 0
    assert responses.succeeded == len(responses.latency_s) >= 3
    assert responses.elapsed_s >= 0.1
    load.close()


def test_load_open_sends_nothing_late_when_a_connection_is_free_again(
    grpc_endpoint: Endpoint,
) -> None:
    """In the fifth of a second in which 400 requests are due, one connection takes ten of them."""
    load = Load(Endpoint(grpc_endpoint.port, "/Echo/Slow"), [b"x"])
    responses = load.open(2_000, 0.2, seed=1, connections=1, patience_s=SLOW_S / 10)
    load.close()
    assert 1 <= responses.succeeded <= 0.2 / SLOW_S + 2
    assert set(responses.status) == {200, -2}


def test_load_counts_failed_calls(http_endpoint: Endpoint, grpc_endpoint: Endpoint) -> None:
    for port, path, media, status in (
        (http_endpoint.port, "/nothing", "text/plain", 404),
        (grpc_endpoint.port, "/Echo/Nothing", "", grpc.StatusCode.UNIMPLEMENTED.value[0]),
    ):
        load = Load(Endpoint(port, path, media), [b"x"])
        responses = load.closed(2, 0.05)
        assert responses.succeeded == 0
        assert responses.failed == len(responses.status) > 0
        assert set(responses.status) == {status}
        assert np.isnan(responses.percentile_ms(50))
        load.close()


def test_load_on_a_port_without_service_names_the_port() -> None:
    (port,) = free_ports(1)
    load = Load(Endpoint(port, "/", "text/plain"), [b"x"])
    with pytest.raises(ServiceLost, match=f"port {port}: connect: Connection refused"):
        load.closed(1, 0.05)
    load.close()

"""Clients that a proxy must keep from the service: slow headers, floods of connections,
responses that nobody reads.

They come from an address of their own, as limits are per client; another client calls the service
meanwhile.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import psutil

ADDRESS = "127.0.0.2"
CONNECTIONS = 200
FLOOD = 3000
CLOSED_WITHIN_S = 40.0
"""The configurations time clients out after 10 to 15 s, once the kernel buffers are full."""
RESPONSE_MAX_S = 2.0
GROWTH_MAX_BYTES = 64 << 20
SERVICE_CONNECTIONS_MAX = 600
BYTE_INTERVAL_S = 0.5
READERS = 20
"""Number of connections that never read a response."""
PIPELINED = 250
"""Requests on each of them: the responses exceed what the kernel buffers, 4 MiB."""


@dataclass
class Caller:
    """What another client saw."""

    succeeded: int = 0
    failed: int = 0
    longest_s: float = 0.0


@dataclass
class Report:
    """What hostile clients achieved.

    Attributes:
      closed: The connections that the proxy closed or rejected, after at most `seconds`.
      service_connections: The maximum number of connections of the services at once.
    """

    opened: int = 0
    closed: int = 0
    seconds: float = 0.0
    service_connections: int = 0
    growth_bytes: int = 0
    caller: Caller = field(default_factory=Caller)

    def problems(self) -> list[str]:
        """Returns which bounds were exceeded."""
        checks = {
            f"{self.opened - self.closed} connections stay open": self.closed < self.opened,
            f"the services have {self.service_connections} connections": (
                self.service_connections > SERVICE_CONNECTIONS_MAX
            ),
            f"the services grow by {self.growth_bytes >> 20} MiB": self.growth_bytes
            > GROWTH_MAX_BYTES,
            f"{self.caller.failed} requests of another client fail": self.caller.failed > 0,
            f"another client waits {self.caller.longest_s:.1f} s": self.caller.longest_s
            > RESPONSE_MAX_S,
        }
        return [problem for problem, is_present in checks.items() if is_present]


def slow_headers(port: int, service: list[psutil.Process], call_port: int) -> Report:
    """Sends the headers of requests a byte at a time."""
    start = b"POST /v1/models/movies:retrieve HTTP/1.1\r\nhost: localhost\r\nx-slow: "
    return _attack(port, service, call_port, CONNECTIONS, start, repeated=b"x")


def connection_flood(port: int, service: list[psutil.Process], call_port: int) -> Report:
    """Opens connections and sends nothing."""
    return _attack(port, service, call_port, FLOOD, b"")


def no_reading(port: int, service: list[psutil.Process], call_port: int) -> Report:
    """Sends requests with large responses and reads nothing."""
    return _attack(
        port,
        service,
        call_port,
        READERS,
        b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * PIPELINED,
    )


ATTACKS: tuple[Callable[[int, list[psutil.Process], int], Report], ...] = (
    slow_headers,
    connection_flood,
    no_reading,
)


def _attack(
    port: int,
    service: list[psutil.Process],
    call_port: int,
    count: int,
    start: bytes,
    repeated: bytes = b"",
) -> Report:
    """Opens connections, sends `start` and then `repeated` every half second, until the proxy has
    closed them all.
    """
    report = Report()
    began = time.monotonic()
    memory = _memory_bytes(service)
    ours: set[socket.socket] = set()
    with _calling(call_port, report.caller):
        for _ in range(count):
            if (opened := _open(port)) is None:
                report.closed += 1
            else:
                ours.add(opened)
                _send(opened, start)
            report.opened += 1
        while ours and time.monotonic() - began < CLOSED_WITHIN_S:
            time.sleep(BYTE_INTERVAL_S)
            server_side = _client_ports(port)
            gone = {
                connection
                for connection in ours
                if connection.getsockname()[1] not in server_side
                or (repeated and _send(connection, repeated))
            }
            report.closed += len(gone)
            for each in gone:
                each.close()
            ours -= gone
            report.service_connections = max(report.service_connections, _connections(service))
            report.growth_bytes = max(report.growth_bytes, _memory_bytes(service) - memory)
        report.seconds = time.monotonic() - began
        for each in ours:
            each.close()
    return report


def _open(port: int) -> socket.socket | None:
    opened = socket.socket()
    try:
        # With a small buffer, what is not read stays with the sender.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.settimeout(1.0)
        opened.bind((ADDRESS, 0))
        opened.connect(("127.0.0.1", port))
    except OSError:
        opened.close()
        return None
    opened.setblocking(False)
    return opened


def _send(connection: socket.socket, data: bytes) -> bool:
    """Sends what fits; returns whether the connection is closed."""
    try:
        connection.send(data)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def _client_ports(port: int) -> set[int]:
    """Returns the client ports of the connections that the proxy holds."""
    return {
        connection.raddr.port
        for connection in psutil.net_connections("tcp")
        if connection.status == "ESTABLISHED"
        and connection.laddr.port == port
        and connection.raddr.ip == ADDRESS
    }


@contextmanager
def _calling(port: int, seen: Caller) -> Iterator[None]:
    """Has another client call the service meanwhile."""
    done = threading.Event()

    def call() -> None:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=RESPONSE_MAX_S * 5
        ) as client:
            while not done.wait(0.05):
                began = time.monotonic()
                try:
                    client.get("/readyz").raise_for_status()
                    seen.succeeded += 1
                except httpx.HTTPError:
                    seen.failed += 1
                seen.longest_s = max(seen.longest_s, time.monotonic() - began)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _connections(service: list[psutil.Process]) -> int:
    return sum(
        len(
            [
                connection
                for connection in process.net_connections("tcp")
                if connection.status == "ESTABLISHED"
            ]
        )
        for process in service
    )


def _memory_bytes(service: list[psutil.Process]) -> int:
    return sum(process.memory_info().rss for process in service)

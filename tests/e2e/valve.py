"""A TCP relay on loopback that counts bytes, and disturbs what it relays: it stops passing bytes at
a mark until it is opened again, cuts connections, or responds as a store does that throttles.
"""

from __future__ import annotations

import math
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

THROTTLED = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"""


class Valve:
    """Relays connections to a port of this machine.

    Attributes:
      connections: The number of connections that were opened.
      sent, returned: The bytes that passed to the port, and back.
      reached: Set when the mark is reached.
    """

    def __init__(self, port: int) -> None:
        self.connections = 0
        self.sent = self.returned = 0
        self.reached = threading.Event()
        self._open = threading.Event()
        self._marks = math.inf, math.inf
        self._cuts: list[int] = []
        self._rejections = 0
        self._lock = threading.Lock()
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop_at(self, *, sent: float = math.inf, returned: float = math.inf) -> None:
        """Counts anew, and stops once `sent` bytes have passed to the port, or `returned` back."""
        self._open.clear()
        self.reached.clear()
        self.sent = self.returned = 0
        self._marks = sent, returned

    def cut_at(self, *sent: int) -> None:
        """Counts anew, and cuts the connection that has sent the byte at each mark."""
        self.open()
        self._cuts = sorted(sent)

    def throttle(self, connections: int) -> None:
        """Responds to the next connections itself, with 503."""
        self._rejections = connections

    @property
    def undone(self) -> int:
        """How many cuts and responses of its own are still to come."""
        return len(self._cuts) + self._rejections

    def open(self) -> None:
        """Counts anew, and lets everything pass."""
        self._marks = math.inf, math.inf
        self.sent = self.returned = 0
        self._open.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.open()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self._rejections:
                self._rejections -= 1
                threading.Thread(target=_reject, args=(client,), daemon=True).start()
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            for source, target, back in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._relay, args=(source, target, back), daemon=True
                ).start()

    def _relay(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    self.returned += len(data) if back else 0
                    self.sent += 0 if back else len(data)
                    full = self.sent >= self._marks[0] or self.returned >= self._marks[1]
                    cut = bool(self._cuts) and self.sent >= self._cuts[0]
                    if cut:
                        del self._cuts[0]
                if cut:
                    return
                if full:
                    self.reached.set()
                    self._open.wait()
                target.sendall(data)
        except OSError:
            pass  # one end is gone, so is the other
        finally:
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


def _reject(client: socket.socket) -> None:
    """Reads a whole request, and responds that there were too many."""
    with client, suppress(OSError, ValueError):
        head, _, body = _read_head(client)
        length = next(
            int(line.partition(b":")[2])
            for line in [*head.split(b"\r\n"), b"content-length: 0"]
            if line.lower().startswith(b"content-length:")
        )
        if b"100-continue" not in head.lower():
            while len(body) < length and (data := client.recv(1 << 16)):
                body += data
        client.sendall(
            b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(THROTTLED), THROTTLED)
        )


def _read_head(client: socket.socket) -> tuple[bytes, bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        data = client.recv(1 << 16)
        if not data:
            raise ValueError("the request ended in its head")
        received += data
    return received.partition(b"\r\n\r\n")

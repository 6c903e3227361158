"""A TCP relay on loopback that counts bytes and stops passing them at a mark, until it is opened again."""

from __future__ import annotations

import math
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Valve:
    """Relays connections to a port of this machine.

    Attributes:
      sent, returned: bytes that passed to the port, and back.
      reached: set when the mark is reached.
    """

    def __init__(self, port: int) -> None:
        self.sent = self.returned = 0
        self.reached, self._open = threading.Event(), threading.Event()
        self._marks = math.inf, math.inf
        self._lock, self._to = threading.Lock(), port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop_at(self, *, sent: float = math.inf, returned: float = math.inf) -> None:
        """Counts anew, and stops once so many bytes have passed to the port, or back."""
        self._open.clear()
        self.reached.clear()
        self.sent = self.returned = 0
        self._marks = sent, returned

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

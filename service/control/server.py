"""The admin listener as a server, on a socket that listens already."""

from __future__ import annotations

import asyncio
import socket
import ssl

from starlette.types import ASGIApp

from service.metrics import Metrics
from service.rest.crowd import Crowd, Patience
from service.rest.server import BoundedServer

CONNECTIONS_MAX = 32
_PATIENCE = Patience(head_s=5.0, idle_s=5.0)
_UNREAD_BYTES_MAX = 16 << 20


class AdminServer(BoundedServer):
    """Serves operators."""

    def __init__(self, app: ASGIApp, metrics: Metrics, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Prepares the server.

        Args:
          app: what answers.
          metrics: where refusals of connections are counted.
          listener: that listens already; closed at the end.
          tls: of the connections; None: plain text.
        """
        super().__init__(app, metrics, _PATIENCE, Crowd(CONNECTIONS_MAX, _UNREAD_BYTES_MAX), tls=tls)
        self._listener = listener
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to serve; returns once it does."""
        self._running = asyncio.create_task(self.serve([self._listener]))
        while not self.started and not self._running.done():
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Answers nobody any more."""
        self.should_exit = True
        if self._running is not None:
            await asyncio.wait([self._running], timeout=2)

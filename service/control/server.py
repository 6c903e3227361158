"""The admin listener as a server: uvicorn on a socket that listens already."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

CONNECTIONS_MAX = 32
_TLS_S = 5.0


class AdminServer(uvicorn.Server):
    """Serves operators. Takes no signals: the process has its own."""

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Prepares the server.

        Args:
          listener: that listens already; closed at the end.
          tls: of the connections; None: plain text.
        """
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=1,
            )
        )
        self._listener, self._tls = listener, tls
        self._running: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to take connections. Source: uvicorn 0.54, `server.py`, whose own reads certificates from files."""
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl": self._tls, "ssl_handshake_timeout": _TLS_S, "ssl_shutdown_timeout": _TLS_S}
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        self.servers = [await loop.create_server(self._connection, sock=each, **options) for each in sockets or ()]
        self.started = True

    def _connection(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

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

"""The HTTP door as a server: uvicorn with connections, certificates and limits of this service."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from service.engine.desk import Desk
from service.rest.app import create_app
from service.rest.connections import Connection
from service.rest.crowd import Crowd, Patience, patience_of
from service.rest.refusals import Refusals
from service.security.certificates import HTTP
from service.sockets import connections_max_of

_GOODBYE_S = 5.0
"""For the end of a TLS connection, which takes an answer of the caller."""


class HttpServer(uvicorn.Server):
    """Serves a desk on given sockets. Takes no signals: the process has its own."""

    def __init__(self, desk: Desk, patience: Patience | None = None) -> None:
        """Prepares the door.

        Args:
          desk: what is served, and the settings and guards of the door.
          patience: of connections; None: as the settings say.
        """
        super().__init__(
            uvicorn.Config(
                create_app(desk),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=math.ceil(max(desk.settings.drain_s, 1.0)),
            )
        )
        self._desk, self._refusals = desk, Refusals(desk)
        self._patience = patience or patience_of(desk.settings)
        crowd = self._crowd = Crowd(connections_max_of(desk.settings), desk.settings.unread_bytes_max)
        desk.metrics.connections.labels("http").set_function(lambda: crowd.count)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to take connections from the sockets, which listen already.

        Source: uvicorn 0.54, `server.py`, whose own knows no bound on the time of TLS' handshake.
        """
        await self.lifespan.startup()
        options: dict[str, Any] = {}
        if self._desk.guards.certificates is not None:
            options["ssl"] = self._desk.guards.certificates.context(HTTP)
            options["ssl_handshake_timeout"] = self._patience.head_s
            options["ssl_shutdown_timeout"] = _GOODBYE_S
        take = self._desk.take_http
        self.servers = [
            await take(each, self._connection, lambda: self._crowd.count, **options)  # type: ignore[misc]
            for each in sockets or ()
        ]
        self.started = True

    def _connection(self) -> Connection:
        return Connection(
            self._crowd,
            self._patience,
            self._desk.metrics,
            self._refusals,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

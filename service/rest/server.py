"""HTTP servers: uvicorn with connections, certificates and limits of this service."""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from service.engine.desk import Desk
from service.metrics import Metrics
from service.rest.app import create_app
from service.rest.connections import Connection
from service.rest.crowd import Crowd, Patience, patience_of
from service.rest.hot_calls import HotCalls
from service.security.certificates import HTTP
from service.sockets import Take, connections_max_of, take_all

_GOODBYE_S = 5.0
"""For the end of a TLS connection, which takes an answer of the caller."""


class BoundedServer(uvicorn.Server):
    """Serves an application on given sockets, over connections that are bounded. Takes no signals: the process has its
    own."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        patience: Patience,
        crowd: Crowd,
        *,
        tls: ssl.SSLContext | None = None,
        calls: HotCalls | None = None,
        take: Take = take_all,
        closing_s: float = 1.0,
    ) -> None:
        """Prepares the server.

        Args:
          app: what answers.
          metrics: where refusals of connections are counted.
          patience: with each connection.
          crowd: all connections.
          tls: of the connections; None: plain text.
          calls: what answers the five calls in place of the application; None: nothing does.
          take: how connections are taken from the sockets.
          closing_s: for answers that are on their way when the server is to end, seconds.
        """
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                reset_contextvars=True,  # a call may be read while another's caller is known
                proxy_headers=False,  # nothing here asks who a proxy speaks for
                timeout_graceful_shutdown=math.ceil(closing_s),
            )
        )
        self._shared = (crowd, patience, metrics, calls)
        self._crowd, self._take = crowd, take
        self._options: dict[str, Any] = {}
        if tls is not None:
            times = {"ssl_handshake_timeout": patience.head_s, "ssl_shutdown_timeout": _GOODBYE_S}
            self._options = {"ssl": tls, **times}

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to take connections from the sockets, which listen already.

        Source: uvicorn 0.54, `server.py`, whose own knows no bound on the time of TLS' handshake.
        """
        await self.lifespan.startup()
        self.servers = [
            await self._take(each, self._connection, lambda: self._crowd.count, **self._options)  # type: ignore[misc]
            for each in sockets or ()
        ]
        self.started = True

    def leave(self) -> None:
        """Has every connection closed behind its next answer."""
        self._crowd.leaving = True
        for connection in list(self.server_state.connections):
            cast(Connection, connection).leave()

    def _connection(self) -> Connection:
        return Connection(
            *self._shared, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class HttpServer(BoundedServer):
    """The HTTP door of a desk."""

    def __init__(self, desk: Desk, patience: Patience | None = None) -> None:
        """Prepares the door.

        Args:
          desk: what is served, and the settings and guards of the door.
          patience: of connections; None: as the settings say.
        """
        settings, certificates = desk.settings, desk.guards.certificates
        crowd = Crowd(connections_max_of(settings), settings.unread_bytes_max)
        desk.metrics.connections.labels("http").set_function(lambda: crowd.count)
        super().__init__(
            create_app(desk),
            desk.metrics,
            patience or patience_of(settings),
            crowd,
            tls=None if certificates is None else certificates.context(HTTP),
            calls=HotCalls(desk),
            take=desk.take_http,
            closing_s=max(settings.drain_s, 1.0),
        )

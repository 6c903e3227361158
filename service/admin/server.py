"""The admin API's server: a thread of each worker. Those that serve accept from one socket, so that
a command reaches a worker that runs, whichever hangs.
"""

from __future__ import annotations

import functools
import socket
import threading

import uvicorn

from service.admin.api import create_admin_app
from service.change_plane import ChangePlane
from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.http_protocol import HttpProtocol
from service.loopback import on_loopback
from service.security.tokens import TokenStore
from service.versions.lifecycle import VersionManager
from service.workers.sockets import UVICORN, ssl_context


class AdminServer:
    """The admin API of a worker."""

    def __init__(
        self,
        settings: ServiceSettings,
        coordinator: Coordinator,
        listener: socket.socket,
        versions: VersionManager,
        changes: ChangePlane,
    ) -> None:
        """Prepares; `accept` begins.

        Args:
          settings: The settings of the service.
          coordinator: Knows the workers' statuses.
          listener: Accepts the connections of all workers.
          versions: The loaded versions of the worker.
          changes: Makes the changes that operators send.
        """
        self._listener = listener
        self._server: uvicorn.Server | None = None
        tokens = TokenStore.of(settings.admin_tokens, "admin_tokens", settings.root)
        # On the loopback address no other machine can read along, and `ctl` needs no certificate.
        create_ssl_context = None
        if settings.tls_cert is not None and not on_loopback(settings.admin_host):
            create_ssl_context = functools.partial(ssl_context, settings)
        self._config = uvicorn.Config(
            create_admin_app(settings, coordinator, tokens, versions, changes),
            http=HttpProtocol,
            loop="asyncio",  # uvloop crashes when a process ends beside its thread
            lifespan="off",
            ssl_context_factory=create_ssl_context,
            **UVICORN,
        )

    def accept(self, accepts: bool) -> None:
        """Accepts connections from now on, or leaves them to the other workers; commands that it
        has received are finished.
        """
        if accepts and self._server is None:
            self._server = uvicorn.Server(self._config)
            # A copy, since the server closes its socket when it stops.
            sockets = [self._listener.dup()]
            threading.Thread(target=self._server.run, args=(sockets,), daemon=True).start()
        elif not accepts and self._server is not None:
            self._server.should_exit = True
            self._server = None

"""The admin API's server: a thread of each worker, on the port that all of them share."""

from __future__ import annotations

import threading
from pathlib import Path

import uvicorn

from service.admin.api import create_admin_app
from service.config import ServiceSettings
from service.security.exposure import on_loopback
from service.security.tokens import TokenStore
from service.workers.sockets import UVICORN, listen, ssl_context


def serve_admin(settings: ServiceSettings, directory: Path, port: int) -> None:
    """Serves the admin API in a thread, for as long as the process lives.

    Args:
      settings: The settings of the service.
      directory: The run directory, to which the workers write their statuses.
      port: The port, which every worker listens on.

    Raises:
      OSError: The address cannot be bound.
    """
    tokens = TokenStore.of(settings.admin_tokens, "admin_tokens")
    plain = settings.tls_cert is None or on_loopback(settings.admin_host)
    config = uvicorn.Config(
        create_admin_app(settings, directory, tokens),
        http="service.http.protocol:HttpProtocol",
        loop="asyncio",  # uvloop crashes when a process ends beside its thread
        lifespan="off",
        ssl_context_factory=None if plain else ssl_context,
        **UVICORN,
    )
    listener = listen("admin", settings.admin_host, port, shared=True)
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()

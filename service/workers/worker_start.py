"""What the supervisor passes to a worker process, in its arguments: nothing that a replacement
needs lies in a file or in the environment.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

import pkgutil
import signal
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from typing import Any

from service import coordinator
from service.exit_codes import EXIT_OK


@dataclass(frozen=True)
class WorkerStart:
    """The start of any worker of a service; uvicorn's factory of applications, which it calls in
    the worker.

    Attributes:
      settings: The settings by name, as JSON values.
      coordinator: The address of the coordinator.
      grpc_port: The port that all workers share.
      admin: The socket from which all workers accept connections of operators; None: there is no
        admin API.
    """

    settings: dict[str, Any]
    coordinator: str
    grpc_port: int
    admin: socket.socket | None

    def __call__(self) -> Any:
        """Returns the ASGI application of this process."""
        service = coordinator.connect(self.coordinator)
        start = service.begin_start()
        # Before the libraries are loaded: it may have been one of them that ended the others.
        _pause(start.pause_s)
        create_app = pkgutil.resolve_name("service.app:create_app")
        return create_app(self, service, is_replacement=start.is_replacement)

    def ssl_context(self, *_: object) -> ssl.SSLContext:
        """Returns the TLS context of the HTTP server; uvicorn's factory."""
        from service.config import ServiceSettings
        from service.workers import sockets

        return sockets.ssl_context(ServiceSettings(**self.settings))


def _pause(seconds: float) -> None:
    """Waits; a signal to stop ends this process at once."""
    if not seconds:
        return
    handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_OK))
    time.sleep(seconds)
    signal.signal(signal.SIGTERM, handler)

"""What the supervisor passes to a worker process, as arguments: nothing that a replacement needs
lies in a file or in the environment.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from service import coordinator
from service.coordinator import Coordinator
from service.exit_codes import EXIT_BUG, EXIT_OK
from service.observability import logging

log = logging.logger(__name__)


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
      create_app: Creates the ASGI application of a worker; takes this value, the coordinator, and
        whether the worker is a replacement.
    """

    settings: dict[str, Any]
    coordinator: str
    grpc_port: int
    admin: socket.socket | None
    create_app: Callable[[WorkerStart, Coordinator, bool], Any]

    def __call__(self) -> Any:
        """Returns the ASGI application of this process."""
        return self.create_app(self, *_begin(self.coordinator))

    def ssl_context(self, *_: object) -> ssl.SSLContext:
        """Returns the TLS context of the HTTP server; uvicorn's factory, which it calls first.

        A certificate may not match its key yet, or be away for a moment: then this process ends,
        and another replacement comes. At the start, `rowcast-serve` has checked them.
        """
        _begin(self.coordinator)
        from service.config import ServiceSettings, SettingsError
        from service.workers import sockets

        logging.configure(self.settings["log_level"], pid=os.getpid())
        try:
            return sockets.ssl_context(ServiceSettings(**self.settings))
        except SettingsError as problem:
            log.error("cannot_start", extra=logging.fields(problem=str(problem)))
            logging.finish()
            sys.exit(EXIT_BUG)


@cache
def _begin(address: str) -> tuple[Coordinator, bool]:
    """Connects this process to the coordinator, and waits if other workers ended while they
    started: before the libraries are loaded, since one of the libraries may have been the cause.

    Returns:
      The coordinator, and whether this worker is a replacement.
    """
    service_coordinator = coordinator.connect(address)
    start = service_coordinator.begin_start()
    _pause(start.pause_s)
    return service_coordinator, start.is_replacement


def _pause(seconds: float) -> None:
    """Waits; a signal to stop ends this process at once."""
    if not seconds:
        return
    # uvicorn's handler would only note the signal until the pause ends.
    handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_OK))
    time.sleep(seconds)
    signal.signal(signal.SIGTERM, handler)

"""Connections of other processes of the machine, which a thread accepts.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from threading import current_thread

from service.observability.logging import fields, logger

log = logger(__name__)

_PAUSE_MIN_S = 0.01
_PAUSE_MAX_S = 1.0
"""Time until connections are accepted again that could not be, doubled by each further attempt."""


def connections(listener: socket.socket) -> Iterator[socket.socket]:
    """Yields the connections that a socket accepts, until it is closed. Those that cannot be
    accepted now, such as with too many open files, wait until they can be.
    """
    pause_s = 0.0
    while True:
        try:
            connection, _ = listener.accept()
        except OSError as problem:
            # EINVAL: it is shut down, and about to be closed.
            if listener.fileno() < 0 or problem.errno == errno.EINVAL:
                return
            # Logged once, not at every attempt while it lasts.
            if not pause_s:
                about = fields(thread=current_thread().name, problem=str(problem))
                log.warning("connections_wait", extra=about)
            pause_s = min(max(2 * pause_s, _PAUSE_MIN_S), _PAUSE_MAX_S)
            time.sleep(pause_s)
            continue
        pause_s = 0.0
        yield connection

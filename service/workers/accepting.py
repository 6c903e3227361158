"""Taking connections from a listener that several workers share, so that each holds about as many.

Left to the kernel, whoever is awake first takes all that wait, and SO_REUSEPORT deals them by a hash: of eight callers
that keep their connections, one worker of two then has six or more in every third case. Callers keep connections for
hours, so who has fewest takes the next.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any

from service import logs
from service.sockets import Take, Taking
from service.workers.board import Door, State
from service.workers.place import Place

_log = logs.logger(__name__)

_LEAVE_S = 0.02
"""How long a connection is left to a worker that holds fewer, before whoever saw it takes it after all."""
_LEAD = 16
"""A worker that has so many may have one more than another."""
_TELL_S = 0.1
"""How often the others learn of connections that were closed."""
_PAUSE_S = 1.0
"""After the process or the machine has run out of files."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Accepting:
    """Takes connections one at a time, and leaves them to workers that hold fewer. In place of an `asyncio.Server`."""

    def __init__(
        self,
        place: Place,
        door: Door,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        held: Callable[[], int],
        options: dict[str, Any],
    ) -> None:
        """Begins to take connections; see `service.sockets.Take` for what it is given."""
        self._place, self._door, self._listener = place, door, listener
        self._protocol, self._count, self._options = protocol, held, options
        self._listener.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self._telling = self._loop.call_soon(self._tell)
        self._listen()

    def close(self) -> None:
        """Takes no more; what is taken stays."""
        self._loop.remove_reader(self._listener.fileno())
        self._telling.cancel()
        if self._resuming is not None:
            self._resuming.cancel()

    async def wait_closed(self) -> None:
        """Waits for nothing: connections are waited for by whoever made them."""

    def _listen(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._look)

    def _look(self) -> None:
        board, own = self._place.board, self._place.index
        others = (each for each in range(board.workers) if each != own and board.state(each) is State.READY)
        elsewhere = [board.connections(each, self._door) for each in others]
        held = self._held()
        lead = held // _LEAD
        if elsewhere and (board.state(own) is not State.READY or held > min(elsewhere) + lead):
            self._resume_in(_LEAVE_S, self._take)
            return
        for _ in range(1 + lead):  # where many come at once, one a turn would keep them waiting for seconds
            if not self._take():
                return

    def _held(self) -> int:
        """Counts the connections of this worker, and lets the others know."""
        held = self._count() + len(self._opening)
        self._place.board.hold(self._place.index, self._door, held)
        return held

    def _tell(self) -> None:
        self._held()
        self._telling = self._loop.call_later(_TELL_S, self._tell)

    def _take(self) -> bool:
        """Takes a connection, if there is one; tells whether it did."""
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another worker was faster, or it is gone
            return False
        except OSError as problem:
            if problem.errno not in _EXHAUSTED:
                raise
            _log.error("connections_exhausted", extra=logs.fields(problem=problem.strerror))
            self._resume_in(_PAUSE_S, self._take)
            return False
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opening = self._loop.create_task(self._open(accepted))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        self._held()
        return True

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted, **self._options)
        except (OSError, ssl.SSLError):  # gone meanwhile, or no TLS: the caller's trouble
            accepted.close()

    def _resume_in(self, seconds: float, then: Callable[[], object]) -> None:
        self._loop.remove_reader(self._listener.fileno())

        def resume() -> None:
            self._resuming = None
            self._listen()
            then()

        self._resuming = self._loop.call_later(seconds, resume)


def sharing(place: Place, door: Door) -> Take:
    """Returns how a worker takes connections of a door."""

    async def take(
        listener: socket.socket, protocol: Callable[[], asyncio.Protocol], held: Callable[[], int], **options: Any
    ) -> Taking:
        return Accepting(place, door, listener, protocol, held, options)

    return take

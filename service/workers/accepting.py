"""Taking connections from a listener that several workers share, so that each holds about as many.

Left to the kernel, whoever is awake first takes all that wait, and SO_REUSEPORT deals them by a hash: of eight callers
that keep their connections, one worker of two then has six or more in every third case. Callers keep connections for
hours, so who has fewest takes the next.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
import ssl
from collections.abc import Callable
from typing import Any

from service import logs
from service.sockets import Take, Taking
from service.workers.board import Door, State
from service.workers.place import Place

_log = logs.logger(__name__)

_LEAVE_S, _LOOKS = 0.001, 20
"""How long, and how often, a connection is left to workers that hold fewer, before whoever saw it takes it."""
_SLACK = 16
"""Where others hold so many, one more than they hold is no matter, nor are two more than twice as many."""
_BATCH_MAX, _SHARE = 16, 4
"""Taken at once by a worker that is the only one to take them. Beside others it is one between two looks at the board,
since what that says of them may be of before a caller closed all of its connections to come again; a worker that holds
many takes a share of so much more, or those that come in a crowd would wait for a round of a busy loop each."""
_TELL_S = 0.1
"""How often the others learn of connections that were closed."""
_PAUSE_S = 1.0
"""After the process or the machine has run out of files."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Accepting:
    """Takes connections while no other worker holds fewer, and leaves them to those that do, in place of asyncio's
    `Server`."""

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
        self._uncounted = 0
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
        if room := self._room():
            self._take(room)
        else:
            self._pause(_LEAVE_S, functools.partial(self._look_again, _LOOKS))

    def _look_again(self, looks: int) -> None:
        """Takes what others have still not taken: as much as there is room for now, or after the last look what is no
        matter."""
        room = self._room()
        if looks and not room:
            self._pause(_LEAVE_S, functools.partial(self._look_again, looks - 1))
            return
        self._listen()
        self._take(room or max(1, self._held() // _SLACK))

    def _room(self) -> int:
        """Tells how many connections this worker may take now: none while another holds fewer that is ready."""
        board, own = self._place.board, self._place.index
        held = self._held()
        others = (each for each in range(board.workers) if each != own and board.state(each) is State.READY)
        least = min((board.connections(each, self._door) for each in others), default=None)
        if least is None:
            return _BATCH_MAX
        if board.state(own) is not State.READY:
            return 0
        return 0 if held > least + least // _SLACK else min(_BATCH_MAX, max(1, held // _SHARE))

    def _held(self) -> int:
        """Counts the connections of this worker, and lets the others know."""
        held = self._count() + self._uncounted
        self._place.board.hold(self._place.index, self._door, held)
        return held

    def _tell(self) -> None:
        self._held()
        self._telling = self._loop.call_later(_TELL_S, self._tell)

    def _take(self, count: int) -> None:
        for _ in range(count):
            if not self._take_one():
                break
        self._held()

    def _take_one(self) -> bool:
        """Takes a connection, if there is one; tells whether it did."""
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another worker was faster, or it is gone
            return False
        except OSError as problem:
            if problem.errno not in _EXHAUSTED:
                raise
            _log.error("connections_exhausted", extra=logs.fields(problem=problem.strerror))
            self._pause(_PAUSE_S, self._listen)
            return False
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._uncounted += 1
        opening = self._loop.create_task(self._open(accepted))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        return True

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._made, accepted, **self._options)
        except (OSError, ssl.SSLError):  # gone meanwhile, or no TLS: the caller's trouble
            accepted.close()

    def _made(self) -> asyncio.Protocol:
        """Makes a protocol, which counts its connection once it is told of it: right after what is called here."""
        self._loop.call_soon(self._counted)
        return self._protocol()

    def _counted(self) -> None:
        self._uncounted -= 1

    def _pause(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._resuming = self._loop.call_later(seconds, then)


def sharing(place: Place, door: Door) -> Take:
    """Returns how a worker takes connections of a door."""

    async def take(
        listener: socket.socket, protocol: Callable[[], asyncio.Protocol], held: Callable[[], int], **options: Any
    ) -> Taking:
        return Accepting(place, door, listener, protocol, held, options)

    return take

"""Hands what is to be written over to the process of the host that writes a log.

Every worker listens on a Unix socket of Linux's abstract namespace, for which there is no file.
Both sides check that the other one is of the same user: what they exchange are pickles.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from bundle.changes.log_lock import Writer
from service.errors import Cancelled, DeadlineExceeded, Internal, NotReady, ServiceError
from service.observability.logging import logger

log = logger(__name__)

_CREDENTIALS = struct.Struct("3i")
"""A process id, a user id and a group id, as `SO_PEERCRED` returns them."""
_LATE_S = 1.0
"""Time behind a deadline until which a response is waited for: the writer ends the call itself."""
_PAUSE_S = 0.1
"""Time until a process that had too many open files accepts connections again."""


class WriterGone(Exception):
    """No process listens at the address of a writer; nothing was sent."""


class Server:
    """Calls functions for other processes of the host, each in a thread of its connection.

    Attributes:
      writer: How other processes reach this one.
    """

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        """Listens from now on.

        Args:
          functions: What others may call, by name. Behind its arguments, each takes a future that
            is set when the other process waits no more.
        """
        self.writer = Writer(os.getpid(), f"\0rowcast-changes-{secrets.token_hex(8)}")
        self._functions = functions
        self._closing = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.writer.address)
        self._socket.listen(socket.SOMAXCONN)
        threading.Thread(target=self._accept, name="rowcast-hand-over", daemon=True).start()

    def close(self) -> None:
        """Takes no further connections."""
        self._closing.set()
        # A thread that waits in `accept` goes on only if the socket is shut down.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                # It is closed, or this process has too many open files now.
                if self._closing.wait(_PAUSE_S):
                    return
                continue
            if not _is_of_this_user(accepted):
                accepted.close()
                continue
            connection = Connection(accepted.detach())
            threading.Thread(
                target=self._respond, args=(connection,), name="rowcast-handed-over", daemon=True
            ).start()

    def _respond(self, connection: Connection) -> None:
        """Responds to the calls of a connection, one after the other."""
        withdrawal: Future[None] = Future()
        with connection:
            while True:
                try:
                    name, arguments = connection.recv()
                except (EOFError, OSError):
                    # The other process waits no more for the call in progress.
                    withdrawal.set_result(None)
                    return
                # Before it has a response, the other process sends nothing: it waits no more.
                if connection.poll():
                    continue
                withdrawal = Future()
                call = (connection, name, arguments, withdrawal)
                threading.Thread(
                    target=self._call, args=call, name="rowcast-handed-over", daemon=True
                ).start()

    def _call(
        self, connection: Connection, name: str, arguments: Any, withdrawal: Future[None]
    ) -> None:
        """Calls a function, and sends what it returns or raises."""
        result: Any
        try:
            result = self._functions[name](*arguments, withdrawal)
        except ServiceError as problem:
            result = problem
        except Exception:
            log.exception("changes_failed")
            result = Internal("a change that was handed over failed")
        with suppress(OSError):  # the other process waits no more
            connection.send(result)


class Client:
    """Calls functions of other processes of the host. Safe for any number of threads."""

    def __init__(self) -> None:
        """Connects at the first call."""
        self._idle: dict[str, list[Connection]] = {}
        self._lock = threading.Lock()

    def call(
        self,
        address: str,
        name: str,
        *arguments: Any,
        deadline: float,
        withdrawal: Future[None] | None = None,
    ) -> Any:
        """Returns the result of a function of another process.

        Args:
          address: The address of the other process.
          name: The name of the function.
          arguments: Its arguments.
          deadline: The monotonic time until which it is to respond.
          withdrawal: Ends the wait when it is set; None: nothing does.

        Raises:
          WriterGone: No process listens at the address; nothing was sent.
          DeadlineExceeded: It has not responded in time.
          Cancelled: The call was withdrawn.
          NotReady: It has ended before it responded.
          ServiceError: Whatever the function raises.
        """
        connection = self._connection(address)
        woken, waking = Pipe(duplex=False)
        if withdrawal is not None:
            withdrawal.add_done_callback(lambda _: _wake(waking))
        with woken, waking:
            try:
                connection.send((name, arguments))
                left_s = max(0.0, deadline - time.monotonic())
                ready = wait([connection, woken], left_s + _LATE_S)
                if connection not in ready:
                    # So the other process ends the call, too.
                    connection.close()
                    if woken in ready:
                        raise Cancelled("the client has disconnected; the change was withdrawn")
                    raise DeadlineExceeded(
                        "the deadline of the request has passed while the process that writes the "
                        "log was busy; it may have been made, and it is safe to send it again"
                    )
                result = connection.recv()
            except (EOFError, OSError) as problem:
                connection.close()
                raise NotReady(
                    "the process that writes the log has ended; the change may have been made, and "
                    "it is safe to send it again"
                ) from problem
        with self._lock:
            self._idle.setdefault(address, []).append(connection)
        if isinstance(result, ServiceError):
            raise result
        return result

    def close(self) -> None:
        """Closes the connections that no call uses."""
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def _connection(self, address: str) -> Connection:
        """Returns a connection to an address."""
        with self._lock:
            idle = self._idle.pop(address, [])
            # Those to writers that have ended.
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()
            while idle:
                connection = idle.pop()
                if not connection.poll():  # else it has ended, which is all that it can say
                    self._idle[address] = idle
                    return connection
                connection.close()
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.connect(address)
            if not _is_of_this_user(connecting):
                raise ConnectionRefusedError("another user listens at the address")
        except OSError as problem:
            connecting.close()
            raise WriterGone(str(problem)) from problem
        return Connection(connecting.detach())


def _wake(waking: Connection) -> None:
    with suppress(OSError):  # the call has ended
        waking.send_bytes(b"\n")


def _is_of_this_user(connected: socket.socket) -> bool:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return bool(user == os.getuid())

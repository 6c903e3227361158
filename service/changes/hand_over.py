"""Hands what is to be written over to the process of the host that writes a log.

Every worker listens on a Unix socket of Linux's abstract namespace, for which there is no file.
Both sides check that the other one is of the same user: what they exchange are pickles.
"""

from __future__ import annotations

import math
import os
import pickle
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
from service.connections import connections
from service.errors import Cancelled, DeadlineExceeded, Internal, NotReady, ServiceError
from service.observability.logging import logger

log = logger(__name__)

_CREDENTIALS = struct.Struct("3i")
"""A process id, a user id and a group id, as `SO_PEERCRED` returns them."""
_LATE_S = 1.0
"""Time behind a deadline until which a response is waited for: the writer ends the call itself."""
_CONNECT_S = 1.0
"""Time in which a process that listens takes a connection, which it does in its kernel."""
_SIZE = struct.Struct("!I")
"""The size of a message in bytes, before it."""


class WriterGone(Exception):
    """The process that writes cannot be connected to now; nothing was sent. It has ended, or this
    process has too many open files.
    """


class _Channel:
    """Messages over a connected socket: pickles, each behind its size. One thread at a time sends,
    and one receives.

    Attributes:
      socket: The socket.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Takes a socket, which `close` closes."""
        self.socket = connected

    @property
    def has_input(self) -> bool:
        """Whether there is something to receive, or the other end is closed."""
        return bool(wait([self.socket], 0))

    def send(self, message: Any, deadline: float = math.inf) -> None:
        """Sends a message.

        Args:
          message: The message.
          deadline: The monotonic time until which the other process is to take it.

        Raises:
          TimeoutError: It has not, perhaps but for a part.
          OSError: It has closed the connection.
        """
        content = pickle.dumps(message)
        for part in (_SIZE.pack(len(content)), content):
            self._limit(deadline)
            self.socket.sendall(part)

    def receive(self, deadline: float = math.inf) -> Any:
        """Returns the next message.

        Args:
          deadline: The monotonic time until which the other process is to have sent it.

        Raises:
          EOFError: It has closed the connection.
          TimeoutError: It has not sent all of it.
          OSError: The connection is broken.
        """
        (size,) = _SIZE.unpack(self._read(_SIZE.size, deadline))
        return pickle.loads(self._read(size, deadline))  # noqa: S301 - both are of one user

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()

    def _read(self, size: int, deadline: float) -> bytearray:
        content = bytearray(size)
        unread = memoryview(content)
        while unread:
            self._limit(deadline)
            count = self.socket.recv_into(unread)
            if not count:
                raise EOFError
            unread = unread[count:]
        return content

    def _limit(self, deadline: float) -> None:
        """Bounds the next use of the socket by a deadline."""
        if deadline < math.inf:
            # A timeout of 0 would stand for a socket that never waits.
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))


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
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.writer.address)
        self._socket.listen(socket.SOMAXCONN)
        threading.Thread(target=self._accept, name="rowcast-hand-over", daemon=True).start()

    def close(self) -> None:
        """Takes no further connections."""
        # A thread that waits in `accept` goes on only if the socket is shut down.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        for accepted in connections(self._socket):
            if not _is_of_this_user(accepted):
                accepted.close()
                continue
            thread = threading.Thread(
                target=self._respond, args=(accepted,), name="rowcast-handed-over", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # too many threads: the other process gets an error
                accepted.close()

    def _respond(self, accepted: socket.socket) -> None:
        """Responds to the calls of a connection, one after the other. Waits for as long as the
        other process keeps the connection, which may be idle.
        """
        withdrawal: Future[None] = Future()
        with accepted:
            channel = _Channel(accepted)
            while True:
                try:
                    name, arguments = channel.receive()
                except (EOFError, OSError):
                    # The other process waits no more for the call in progress.
                    withdrawal.set_result(None)
                    return
                # Before it has a response, the other process sends nothing: it waits no more.
                if channel.has_input:
                    continue
                withdrawal = Future()
                call = (channel, name, arguments, withdrawal)
                threading.Thread(
                    target=self._call, args=call, name="rowcast-handed-over", daemon=True
                ).start()

    def _call(self, channel: _Channel, name: str, arguments: Any, withdrawal: Future[None]) -> None:
        """Calls a function, and sends what it returns or raises. A process that hangs holds up the
        thread of its own call alone.
        """
        result: Any
        try:
            result = self._functions[name](*arguments, withdrawal)
        except ServiceError as problem:
            result = problem
        except Exception:
            log.exception("changes_failed")
            result = Internal("a change that was handed over failed")
        with suppress(OSError):  # the other process waits no more
            channel.send(result)


class Client:
    """Calls functions of other processes of the host. Safe for any number of threads."""

    def __init__(self) -> None:
        """Connects at the first call."""
        self._idle: dict[str, list[_Channel]] = {}
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
          WriterGone: The process cannot be connected to now; nothing was sent.
          DeadlineExceeded: It has not responded in time.
          Cancelled: The call was withdrawn.
          NotReady: It has ended before it responded.
          ServiceError: Whatever the function raises.
        """
        try:
            woken, waking = Pipe(duplex=False)
        except OSError as problem:
            raise WriterGone(str(problem)) from problem
        with woken, waking:
            channel = self._channel(address)
            if withdrawal is not None:
                withdrawal.add_done_callback(lambda _: _wake(waking))
            end = deadline + _LATE_S
            try:
                channel.send((name, arguments), end)
                ready = wait([channel.socket, woken], max(0.0, end - time.monotonic()))
                if channel.socket not in ready:
                    # So the other process ends the call, too.
                    channel.close()
                    if woken in ready:
                        raise Cancelled("the client has disconnected; the change was withdrawn")
                    raise _late()
                result = channel.receive(end)
            except TimeoutError as problem:
                channel.close()
                raise _late() from problem
            except (EOFError, OSError) as problem:
                channel.close()
                raise NotReady(
                    "the process that writes the log has ended; the change may have been made, and "
                    "it is safe to send it again"
                ) from problem
        with self._lock:
            self._idle.setdefault(address, []).append(channel)
        if isinstance(result, ServiceError):
            raise result
        return result

    def close(self) -> None:
        """Closes the connections that no call uses."""
        with self._lock:
            for channels in self._idle.values():
                for channel in channels:
                    channel.close()
            self._idle.clear()

    def _channel(self, address: str) -> _Channel:
        """Returns a connection to an address."""
        with self._lock:
            idle = self._idle.pop(address, [])
            # Those to writers that have ended.
            for channels in self._idle.values():
                for channel in channels:
                    channel.close()
            self._idle.clear()
            while idle:
                channel = idle.pop()
                if not channel.has_input:  # else it has ended, which is all that it can say
                    self._idle[address] = idle
                    return channel
                channel.close()
        try:
            connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as problem:
            raise WriterGone(str(problem)) from problem
        try:
            connecting.settimeout(_CONNECT_S)
            connecting.connect(address)
            if not _is_of_this_user(connecting):
                raise ConnectionRefusedError("another user listens at the address")
        except OSError as problem:
            connecting.close()
            raise WriterGone(str(problem)) from problem
        return _Channel(connecting)


def _late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the deadline of the request has passed while the process that writes the log was busy; it "
        "may have been made, and it is safe to send it again"
    )


def _wake(waking: Connection) -> None:
    with suppress(OSError):  # the call has ended
        waking.send_bytes(b"\n")


def _is_of_this_user(connected: socket.socket) -> bool:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return bool(user == os.getuid())

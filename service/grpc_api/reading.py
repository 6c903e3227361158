"""Receives the messages of calls, within limits that no single connection can use up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import NoReturn

import grpc
from grpc.aio import ServicerContext

from service.errors import Cancelled, DeadlineExceeded, InvalidArgument, Overloaded

_BRIEF_S = 0.5
"""Time for a message to arrive while half of the slots are taken."""
_BRIEF_AFTER_TIMEOUT_S = 0.02
"""Time for a message to arrive while half of the slots are taken, on a connection with calls whose
messages did not arrive in time.
"""
_CANCELLED_S = 0.1
"""Time after which gRPC has cancelled a call that has ended without a message."""
_CONNECTION_DIVISOR = 8
"""One connection may take all slots divided by this number."""
_RETRY_AFTER_S = 1.0
"""Time after which a client whose connection has too many calls may try again."""


class Slots:
    """Limits the messages that are received at a time: half of them may take as long as their
    calls, half `_BRIEF_S`.
    """

    def __init__(self, count: int) -> None:
        """Creates `count` slots."""
        self.patient = asyncio.Semaphore(max(1, count // 2))
        self.brief = asyncio.Semaphore(max(1, count - count // 2))


class Connection:
    """A client's connection with calls whose messages have not arrived.

    Attributes:
      slots: The slots of the connection.
      unread: The number of calls whose messages have not arrived.
      brief_s: The time for a message to arrive while half of the slots are taken.
    """

    def __init__(self, slots: int) -> None:
        """Creates a connection without calls; it may take `slots` slots."""
        self.slots = Slots(slots)
        self.unread = 0
        self.brief_s = _BRIEF_S


class Reading:
    """Receives a bounded number of messages at a time. The others wait, those of each connection in
    a queue of its own.
    """

    def __init__(self, slots: int, unread_max: int) -> None:
        """Creates the limits of one server.

        Args:
          slots: The maximum number of messages that are received at a time.
          unread_max: The number of calls whose messages have not arrived. Beyond it, a connection
            with more than its share of them may not begin others.
        """
        self._slots = Slots(slots)
        self._slots_per_connection = max(1, slots // _CONNECTION_DIVISOR)
        self._unread_max = unread_max
        self._unread = 0
        self._connections: dict[str, Connection] = {}

    async def read(self, context: ServicerContext, timeout_s: float) -> bytes:
        """Reads the one message of a call.

        Raises:
          DeadlineExceeded: The message did not arrive in time.
          Overloaded: The connection has too many calls whose messages have not arrived.
          Cancelled: The client has left, or gRPC has rejected the message as too large.
          InvalidArgument: The client ended the call without a message.
        """
        with self._count(context.peer()) as connection:
            connection_slots = connection.slots
            try:
                # The slot of the connection comes first: calls that wait for it must not occupy
                # slots of the server.
                async with asyncio.timeout(timeout_s):
                    if connection_slots.patient.locked() or self._slots.patient.locked():
                        # Messages that never end must not keep others waiting for long.
                        async with connection_slots.brief, self._slots.brief:
                            async with asyncio.timeout(connection.brief_s):
                                message = await context.read()
                    else:
                        async with connection_slots.patient, self._slots.patient:
                            message = await context.read()
            except TimeoutError:
                connection.brief_s = _BRIEF_AFTER_TIMEOUT_S
                raise DeadlineExceeded("the message did not arrive in time") from None
        if message is grpc.aio.EOF:
            await self._reject_missing()
        return bytes(message)

    async def _reject_missing(self) -> NoReturn:
        """Rejects a call without a message.

        If its client has left, or if gRPC has rejected its message as too large, gRPC cancels it
        right after that, and does not report which of the two happened.
        """
        try:
            await asyncio.sleep(_CANCELLED_S)
        except asyncio.CancelledError:
            raise Cancelled(
                "the call ended before its message arrived: the client left, or gRPC rejected a "
                "message of more than max_request_bytes"
            ) from None
        raise InvalidArgument.of_field("call", "no message", "one", "has")

    @contextlib.contextmanager
    def _count(self, peer: str) -> Iterator[Connection]:
        """Counts a call whose message has not arrived, for its connection and for the server."""
        connection = self._connections.get(peer)
        if connection is None:
            connection = Connection(self._slots_per_connection)
            self._connections[peer] = connection
        # A burst of large requests is no abuse: a connection is limited only once the server has
        # many such calls, and only beyond its share.
        share = max(1, self._unread_max // len(self._connections))
        if self._unread >= self._unread_max and connection.unread >= share:
            raise Overloaded(
                f"the connection has {connection.unread} calls whose messages have not arrived",
                _RETRY_AFTER_S,
                "requests",
            )
        connection.unread += 1
        self._unread += 1
        try:
            yield connection
        finally:
            connection.unread -= 1
            self._unread -= 1
            # Clients open any number of connections. A connection is remembered while it is busy.
            if not connection.unread:
                del self._connections[peer]

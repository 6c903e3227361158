"""One call as its method sees it: metadata, deadline, messages in, messages out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple

from service.errors import InvalidArgument, ServiceError
from service.rpc.transport.messages import MessageReader, Metadata, inflated
from service.rpc.transport.sending import Outgoing, Outlet

_AT_ONCE_BYTES_MAX = 64 << 10
"""Less than that is decompressed on the event loop."""
STREAM_WINDOW_BYTES = 1 << 20
_QUEUED_MAX = 64


class Reply(NamedTuple):
    """How a call ends.

    Attributes:
      message: the last, or only, one; None: there is none.
      status: of gRPC; 0: it went well.
      sentence: told with another status.
      metadata: trailing.
    """

    message: bytes | None
    status: int = 0
    sentence: str = ""
    metadata: Metadata = ()


class Stream:
    """One call.

    Attributes:
      metadata: headers by name; of names that come twice the last.
      deadline: on the clock of `time.monotonic()`; None: the caller sets none.
      owed_bytes: that came and that the caller was not granted anew yet.
      ended: the caller has sent its last frame.
      whole: nothing more is read, since it ended or since it cannot be answered as asked.
    """

    __slots__ = (
        *("_arrived", "_bytes_max", "_messages", "_outlet", "_problem", "_reader", "deadline", "ended", "metadata"),
        *("method", "out", "since", "task", "whole", "owed_bytes"),
    )

    def __init__(
        self,
        method: Method,
        metadata: Mapping[bytes, bytes],
        outlet: Outlet,
        out: Outgoing,
        now: float,
        bytes_max: int,
    ) -> None:
        """Begins with its headers, at `now` of `time.monotonic()`."""
        self.method, self.metadata = method, metadata
        self.out, self._outlet = out, outlet
        self.since, self.owed_bytes, self._bytes_max = now, 0, bytes_max
        self.deadline: float | None = None
        self._reader = MessageReader(bytes_max)
        self._messages: deque[tuple[bool, bytes]] = deque()
        self._problem: ServiceError | None = None
        self.ended = self.whole = False
        self._arrived: asyncio.Event | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def held_bytes(self) -> int:
        """Of a message that is not whole yet."""
        return self._reader.held_bytes

    def let_go(self) -> None:
        """Forgets a message that is not whole."""
        self._reader.clear()

    def feed(self, data: bytes) -> None:
        """Takes bytes of the request.

        Raises:
          ServiceError: they are no messages, or too many.
        """
        for found in self._reader.feed(data):
            self._messages.append(found)
        if len(self._messages) > _QUEUED_MAX:
            raise InvalidArgument(f"more than {_QUEUED_MAX} messages came before the first was answered")
        if self._arrived is not None:
            self._arrived.set()

    def end(self, problem: ServiceError | None = None) -> None:
        """Tells that nothing more comes, or why nothing more is read."""
        self._problem, self.whole = problem, True
        if problem is None and self._reader.held_bytes:
            self._problem = InvalidArgument("the request ends within a message")
        if self._arrived is not None:
            self._arrived.set()

    async def message(self) -> bytes:
        """Returns the one message of a request that is whole.

        Raises:
          ServiceError: why there is none, or that it cannot be read.
        """
        if self._problem is not None:
            raise self._problem
        if len(self._messages) != 1:
            raise InvalidArgument(f"the request has {len(self._messages)} messages; one was expected")
        compressed, message = self._messages.pop()
        if not compressed:
            return message
        if len(message) <= _AT_ONCE_BYTES_MAX:
            return inflated(message, self.metadata.get(b"grpc-encoding"), self._bytes_max)
        return await asyncio.to_thread(inflated, message, self.metadata.get(b"grpc-encoding"), self._bytes_max)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yields messages as they come, until the caller has sent its last.

        Raises:
          ServiceError: a message cannot be read.
        """
        self._arrived = asyncio.Event()
        while True:
            self._arrived.clear()
            while self._messages:
                compressed, message = self._messages.popleft()
                yield inflated(message, self.metadata.get(b"grpc-encoding"), self._bytes_max) if compressed else message
            if self._problem is not None:
                raise self._problem
            if self.whole:
                return
            await self._arrived.wait()

    async def send(self, message: bytes) -> None:
        """Sends a message before the last one, and waits until the peer has room for the next."""
        self._outlet.push(self.out, message)
        if self.out.unsent:
            self.out.drained = asyncio.get_running_loop().create_future()
            await self.out.drained


class Method(NamedTuple):
    """What answers a call.

    Attributes:
      answer: returns how the call ends; raises nothing but CancelledError.
      at_once: begun with the headers; else once the request is whole.
      check: raises a ServiceError for headers that are not to be read on; `Stream.message` raises it then.
      refused: tells how a call ends for which there is no room, before anything is begun for it; None: there is.
    """

    answer: Callable[[Stream], Awaitable[Reply]]
    at_once: bool = False
    check: Callable[[Mapping[bytes, bytes]], object] | None = None
    refused: Callable[[Stream], Reply | None] | None = None


async def _unknown(_: Stream) -> Reply:
    return Reply(None, 12, "Method not found!")  # UNIMPLEMENTED, in gRPC's own words


UNKNOWN = Method(_unknown, at_once=True)
"""Answers what is no method."""

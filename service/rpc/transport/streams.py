"""One call as its method sees it: metadata, deadline, messages in, messages out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from service import logs
from service.errors import INTERNAL_SENTENCE, Code, InvalidArgument, ServiceError, TooLarge
from service.rpc.transport.messages import (
    PREFIX_BYTES,
    MessageReader,
    Metadata,
    inflated,
    status_block,
    timeout_s_of,
    whole_message,
)
from service.rpc.transport.sending import Outgoing, Outlet
from service.security.callers import Caller, enter

_AT_ONCE_BYTES_MAX = 64 << 10
"""Less than that is decompressed on the event loop."""
STREAM_WINDOW_BYTES = 1 << 20
_QUEUED_MAX = 64
_INTERNAL = 13
_LOG = logs.logger(__name__)


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

    @property
    def block(self) -> bytes:
        """Everything but the message as the headers that end the stream."""
        return status_block(self.status, self.sentence, self.metadata)


GOING_DOWN = Reply(None, 1, "the service is going down")


class Running(Protocol):
    """What answers a call: a task, or a `Work`."""

    def cancel(self) -> object:
        """Ends it without an answer; not called once there is one."""


class Work(Running, Protocol):
    """Answers a call without a task: begun once, it has the call finished in any turn of the loop, also at once."""

    def begin(self) -> None:
        """Raises nothing."""


class Stream(Outgoing):
    """One call.

    Attributes:
      metadata: headers by name; of one that comes more than once the values as a list.
      caller: who asks, as far as is known.
      since: when it began, on the clock of `time.monotonic()`.
      deadline: on the same clock; None: the caller sets none.
      owed_bytes: that came and that the caller was not granted anew yet.
      held_bytes: of a message that is not whole yet.
      ended: the caller has sent its last frame.
      whole: nothing more is read, since it ended or since it cannot be answered as asked.
      running: answers it; None: nothing does yet, or it is answered.
    """

    __slots__ = (
        *("_arrived", "_bytes_max", "_messages", "_outlet", "_problem", "_reader", "caller", "deadline", "ended"),
        *("held_bytes", "metadata", "method", "since", "running", "whole", "owed_bytes"),
    )

    def __init__(
        self,
        number: int,
        method: Method,
        metadata: Mapping[bytes, bytes],
        outlet: Outlet,
        now: float,
        bytes_max: int,
    ) -> None:
        """Begins with its headers, at `now` of `time.monotonic()`."""
        super().__init__(number, outlet.stream_window_bytes)
        self.method, self.metadata, self._outlet = method, metadata, outlet
        self.since, self._bytes_max = now, bytes_max
        self.owed_bytes = self.held_bytes = 0
        self.deadline: float | None = None
        self.caller: Caller | None = None
        self._reader: MessageReader | None = None
        self._messages: list[tuple[bool, bytes]] = []
        self._problem: ServiceError | None = None
        self.ended = self.whole = False
        self._arrived: asyncio.Event | None = None
        self.running: Running | None = None

    def problem(self, size_bytes: int, bytes_max: int) -> ServiceError | None:
        """Looks at the headers, so many bytes: who calls, and until when. Returns why nothing more is to be read."""
        if size_bytes > bytes_max:
            return TooLarge(f"the metadata has {size_bytes} bytes; at most {bytes_max} are taken")
        try:
            if self.method.check is not None:
                self.caller = self.method.check(self.metadata)
            timeout_s = timeout_s_of(self.metadata.get(b"grpc-timeout"))
        except ServiceError as problem:
            return problem
        if timeout_s is not None:
            self.deadline = self.since + timeout_s
        return None

    def let_go(self) -> None:
        """Forgets a message that is not whole."""
        self._reader, self.held_bytes = None, 0

    def feed(self, data: bytes) -> None:
        """Takes bytes of the request.

        Raises:
          ServiceError: they are no messages, or too many.
        """
        found = whole_message(data, self._bytes_max) if self._reader is None else None
        if found is not None:  # most messages come in one piece
            self._messages.append(found)
        else:
            reader = self._reader = self._reader or MessageReader(self._bytes_max)
            try:
                self._messages += reader.feed(data)
            finally:
                self.held_bytes = reader.held_bytes
        if len(self._messages) > _QUEUED_MAX:
            raise InvalidArgument(f"more than {_QUEUED_MAX} messages came before the first was answered")
        if self._arrived is not None:
            self._arrived.set()

    def end(self, problem: ServiceError | None = None) -> None:
        """Tells that nothing more comes, or why nothing more is read."""
        self._problem, self.whole = problem, True
        if problem is None and self.held_bytes:
            self._problem = InvalidArgument("the request ends within a message")
        if self._arrived is not None:
            self._arrived.set()

    @property
    def has_told_length(self) -> bool:
        """Whether a request that is whole is as long as its headers say, where they do."""
        told = self.metadata.get(b"content-length")
        if told is None or self.method.at_once:
            return True
        size = self.held_bytes
        for _, message in self._messages:
            size += PREFIX_BYTES + len(message)
        return told == b"%d" % size

    def message_now(self) -> bytes | None:
        """Returns the one message of a request that is whole; None: unpacking it takes a while, `message` has it done.

        Raises:
          ServiceError: why there is none, or that it cannot be read.
        """
        if self._problem is not None:
            raise self._problem
        if len(self._messages) != 1:
            raise InvalidArgument(f"the request has {len(self._messages)} messages; one was expected")
        compressed, message = self._messages[0]
        if not compressed:
            return message
        return self._inflated(message) if len(message) <= _AT_ONCE_BYTES_MAX else None

    async def message(self) -> bytes:
        """Returns the one message of a request that is whole.

        Raises:
          ServiceError: as `message_now`.
        """
        message = self.message_now()
        return await asyncio.to_thread(self._inflated, self._messages[0][1]) if message is None else message

    def _inflated(self, message: bytes) -> bytes:
        return inflated(message, self.metadata.get(b"grpc-encoding"), self._bytes_max)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yields messages as they come, until the caller has sent its last.

        Raises:
          ServiceError: a message cannot be read.
        """
        self._arrived = asyncio.Event()
        while True:
            self._arrived.clear()
            while self._messages:
                compressed, message = self._messages.pop(0)
                yield self._inflated(message) if compressed else message
            if self._problem is not None:
                raise self._problem
            if self.whole:
                return
            await self._arrived.wait()

    async def send(self, message: bytes) -> None:
        """Sends a message before the last one, and waits until the peer has room for the next."""
        self._outlet.push(self, message)
        if self.unsent:
            self.drained = asyncio.get_running_loop().create_future()
            await self.drained


Finish = Callable[[Stream, bytes | None, bytes], None]
"""Ends a call: its message, if there is one, and the headers behind that."""


class Method(NamedTuple):
    """What answers a call: a coroutine in a task of its own, or `work`.

    Attributes:
      answer: returns how the call ends; raises nothing but CancelledError.
      at_once: begun with the headers; else once the request is whole.
      check: returns the caller, or raises a ServiceError for headers that are not to be read on; the stream's messages
        raise it then.
      work: answers instead, once the request is whole.
    """

    answer: Callable[[Stream], Awaitable[Reply]] | None = None
    at_once: bool = False
    check: Callable[[Mapping[bytes, bytes]], Caller] | None = None
    work: Callable[[Stream, Finish], Work] | None = None


async def reply_of(answer: Callable[[Stream], Awaitable[Reply]], stream: Stream) -> Reply:
    """Returns how a call ends that a coroutine answers, whatever becomes of that."""
    enter(stream.caller)
    try:
        return await answer(stream)
    except asyncio.CancelledError:
        return GOING_DOWN  # whoever left is told nothing
    except Exception:  # noqa: BLE001 - one call's bug is not the connection's end
        _LOG.exception("call_failed", extra=logs.fields(call="other", code=Code.INTERNAL.value))
        return Reply(None, _INTERNAL, INTERNAL_SENTENCE)


async def _unknown(_: Stream) -> Reply:
    return Reply(None, 12, "Method not found!")  # UNIMPLEMENTED, in gRPC's own words


UNKNOWN = Method(_unknown, at_once=True)
"""Answers what is no method."""

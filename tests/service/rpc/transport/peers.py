"""A peer that speaks frames over a real socket, with a listener of a few methods in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvloop
from hpack import Decoder, Encoder

from service.errors import ServiceError
from service.rpc.transport import frames
from service.rpc.transport.frames import Kind, Reason
from service.rpc.transport.limits import Limits
from service.rpc.transport.listener import Listener
from service.rpc.transport.messages import OK, prefixed
from service.rpc.transport.room import Room
from service.rpc.transport.streams import Finish, Method, Reply, Stream

WAIT_S = 20.0
GREETING = frames.PREFACE + frames.settings({})


@dataclass
class Served:
    """What the methods saw."""

    room: Room
    port: int
    listener: Listener
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0
    peers: list[Peer] = field(default_factory=list)

    async def connect(self, greeting: bytes = GREETING) -> Peer:
        """A new connection, closed at the end."""
        self.peers.append(Peer(*await asyncio.open_connection("127.0.0.1", self.port)))
        self.peers[-1].send(greeting)
        return self.peers[-1]


@asynccontextmanager
async def serving(limits: Limits | None = None) -> AsyncIterator[Served]:
    """Serves `/Echo` (its message back), `/Now` (the same without a task, but "late" once `held` is set), `/Many` (each
    message back at once), `/Held` (once `held` is set)."""

    async def echo(stream: Stream) -> Reply:
        return Reply(await stream.message(), metadata=(("told", "yes"), ("raw-bin", b"\x00\xff")))

    async def many(stream: Stream) -> Reply:
        async for message in stream.messages():
            await stream.send(message)
        return Reply(None)

    async def hold(stream: Stream) -> Reply:
        served.begun.set()
        try:
            await served.held.wait()
        except asyncio.CancelledError:
            served.cancelled += 1
            raise
        return Reply(await stream.message())

    async def fail(_: Stream) -> Reply:
        raise ZeroDivisionError

    methods = {b"/Echo": Method(safely(echo)), b"/Many": Method(many, at_once=True), b"/Held": Method(hold)}
    methods[b"/Now"] = Method(work=lambda stream, finish: Now(served, stream, finish))
    room = Room({**methods, b"/Fail": Method(fail)}, limits or Limits(), 1.0)
    listener = Listener(room)
    served = Served(room, await listener.start("127.0.0.1", 0), listener)
    try:
        yield served
    finally:
        for peer in served.peers:
            await peer.leave()
        served.held.set()
        await listener.stop(0)
        assert room.intake_bytes == 0


def safely(answer: Callable[[Stream], Coroutine[Any, Any, Reply]]) -> Callable[[Stream], Coroutine[Any, Any, Reply]]:
    async def method(stream: Stream) -> Reply:
        try:
            return await answer(stream)
        except Exception as problem:  # noqa: BLE001 - as the service's own methods do
            return Reply(None, 3, str(problem))

    return method


class Now:
    """A call that is answered by callback."""

    def __init__(self, served: Served, stream: Stream, finish: Finish) -> None:
        self.served, self.stream, self.finish = served, stream, finish
        self.later: asyncio.Task[None] | None = None

    def begin(self) -> None:
        try:
            message = self.stream.message_now()
        except ServiceError as problem:
            self.finish(self.stream, None, Reply(None, 3, str(problem)).block)
            return
        if message == b"late":
            self.later = asyncio.ensure_future(self.answer_late())
            self.served.begun.set()
        else:
            self.finish(self.stream, message, OK)

    async def answer_late(self) -> None:
        await self.served.held.wait()
        self.finish(self.stream, b"late", OK)

    def cancel(self) -> None:
        assert self.later is not None
        self.later.cancel()
        self.served.cancelled += 1


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.encoder, self.decoder = Encoder(), Decoder()
        self.number = -1

    def send(self, *sent: bytes) -> None:
        self.writer.write(b"".join(sent))

    def head(self, path: str, end: bool = False, **more: str) -> bytes:
        """Headers of the next stream."""
        self.number += 2
        pairs = [(":method", "POST"), (":path", path), (":scheme", "http"), ("te", "trailers")]
        pairs += {"content-type": "application/grpc", **{name.replace("_", "-"): more[name] for name in more}}.items()
        return frames.headers(self.number, self.encoder.encode(pairs), end, frames.PAYLOAD_BYTES_MIN)

    def data(self, payload: bytes, end: bool = True) -> bytes:
        return frames.frame(Kind.DATA, frames.END_STREAM if end else 0, self.number, payload)

    def call(self, path: str, message: bytes = b"m", **more: str) -> None:
        """Sends a whole call in two frames."""
        self.send(self.head(path, end=False, **more), self.data(prefixed(message)))

    async def frame(self) -> tuple[int, int, int, bytes]:
        """The next frame that says something: settings and pings are answered or skipped."""
        while True:
            head = await asyncio.wait_for(self.reader.readexactly(frames.HEAD_BYTES), WAIT_S)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, number = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind == Kind.PING and not flags & frames.ACK:
                self.send(frames.frame(Kind.PING, frames.ACK, 0, payload))
            elif kind not in (Kind.SETTINGS, Kind.PING) and (kind, number) != (Kind.WINDOW_UPDATE, 0):
                return kind, flags, number, payload

    def fields(self, block: bytes) -> dict[str, str]:
        return {str(name): str(value) for name, value in self.decoder.decode(block)}

    async def answer(self) -> tuple[bytes, dict[str, str]]:
        """All messages of the next answer, as sent, and its last headers."""
        data = b""
        while True:
            kind, flags, _, payload = await self.frame()
            if kind == Kind.HEADERS:
                told = self.fields(payload)
                if flags & frames.END_STREAM:
                    return data, told
            elif kind == Kind.DATA:
                data += payload

    async def farewell(self) -> Reason:
        """Why the service ends the connection, which it then does."""
        told = b""
        with suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while True:
                kind, _, _, payload = await self.frame()
                told = payload if kind == Kind.GOAWAY else told
        return Reason(int.from_bytes(told[4:8], "big"))

    async def closed(self) -> None:
        async def read() -> None:
            while await self.reader.read(1 << 16):
                pass

        with suppress(ConnectionResetError):
            await asyncio.wait_for(read(), WAIT_S)

    async def leave(self) -> None:
        self.writer.close()
        with suppress(ConnectionResetError):
            await self.writer.wait_closed()


def run(test: Callable[[], Coroutine[Any, Any, None]], loop: str = "asyncio") -> None:
    """Runs a test on either kind of loop."""
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(test(), 60))


async def still_answers(served: Served) -> None:
    peer = await served.connect()
    peer.call("/Echo", b"still")
    assert (await peer.answer())[0] == prefixed(b"still")

"""One HTTP/2 connection of gRPC callers: frames in, calls begun, answers out; nothing a peer sends is kept unbounded.

Source: RFC 9113. What gRPC never sends (push, upgrades, priorities) is refused or skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar

from service.errors import DeadlineExceeded, Overloaded, ServiceError
from service.rpc.transport import frames
from service.rpc.transport.frames import Fault, Kind, Reason
from service.rpc.transport.patience import Patience
from service.rpc.transport.reading import FrameReader, Head, HeadReader
from service.rpc.transport.room import CONNECTION_WINDOW_BYTES, Room
from service.rpc.transport.sending import Outlet
from service.rpc.transport.streams import GOING_DOWN, STREAM_WINDOW_BYTES, Reply, Stream, reply_of
from service.rpc.transport.writing import Writer
from service.security.callers import caller_shown

_UNWRITTEN_BYTES_MAX = 1 << 20
"""Of one connection, beyond the kernel's; then nothing more is read from it until that is less."""
_IDLE_FRAMES_MAX = 10_000
"""Frames between two looks that ask for nothing: pings, settings, resets, empty ones."""
_GOING = b"going-by"
_LAST_CALLS_S = 0.05
"""From a peer's answer that it begins no more calls to the last one that is taken."""


class Connection(asyncio.Protocol):
    """Serves one peer."""

    def __init__(self, room: Room) -> None:
        """Takes what it shares with others."""
        self._room, self._limits = room, room.limits
        self._loop = asyncio.get_running_loop()
        self._patience = Patience(room.limits, time.monotonic())
        self._frames, self._heads = FrameReader(), HeadReader(4 * self._limits.metadata_bytes_max)
        self._streams: dict[int, Stream] = {}
        self._last = self._owed_bytes = self._idle_frames = 0
        self._leaving = self._left = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Sends this side's settings."""
        self._caller = caller_shown(transport.get_extra_info("peercert"))
        self._transport = transport  # uvloop's is no subclass, but has all of its methods
        transport.set_write_buffer_limits(_UNWRITTEN_BYTES_MAX)
        self._writer = Writer(transport)
        self._outlet = Outlet(self._writer, self._answered)
        if not self._room.take_in(self):
            transport.abort()
            return
        self._writer.write(self._room.greeting)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Gives up every call of a peer that is gone."""
        self._room.connections.discard(self)
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._outlet.end()

    def pause_writing(self) -> None:
        """Reads nothing more from a peer that does not read."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Reads on."""
        self._patience.moved(time.monotonic())
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Takes the frames that are whole."""
        patience = self._patience
        patience.heard = time.monotonic()
        try:
            for kind, flags, number, payload in self._frames.frames(data) if patience.parting_since is None else ():
                if patience.parting_since is not None:
                    return
                take = self._TAKERS.get(kind)
                if take is None:
                    frames.check_skipped(kind, number, payload)
                    self._idle(1)
                else:
                    take(self, flags, number, payload)
        except Fault as fault:
            self._end(fault.reason, str(fault))

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size, ends = len(payload), bool(flags & frames.END_STREAM)
        self._owed_bytes += size  # as much as came is granted anew: windows bound only what is on the wire
        if self._owed_bytes > CONNECTION_WINDOW_BYTES // 2:
            self._writer.write(frames.credit(0, self._owed_bytes))
            self._owed_bytes = 0
        stream = self._streams.get(number)
        if stream is None or stream.whole:
            self._data_behind(stream, number, ends)
            return
        stream.owed_bytes += size
        stream.ended |= ends
        if flags & frames.PADDED:
            payload = frames.unpadded(frames.PADDED, payload)
        if payload:
            self._feed(stream, payload)
        elif not ends:
            self._idle(1)
        if ends:
            self._received(stream)
        elif stream.owed_bytes > STREAM_WINDOW_BYTES // 2 and not stream.whole:
            self._writer.write(frames.credit(number, stream.owed_bytes))
            stream.owed_bytes = 0

    def _data_behind(self, stream: Stream | None, number: int, ends: bool) -> None:
        if number == 0 or number > self._last:
            raise Fault(Reason.PROTOCOL_ERROR, "DATA on a stream that was not opened")
        self._idle(1)  # what was refused is still on its way
        if stream is not None and stream.ended:
            self._break_off(stream, Reason.STREAM_CLOSED)
        elif stream is not None:
            stream.ended = ends

    def _feed(self, stream: Stream, payload: bytes) -> None:
        room, held_bytes = self._room, stream.held_bytes
        problem: ServiceError | None = None
        try:
            if room.intake_bytes + len(payload) > self._limits.intake_bytes_max:
                raise Overloaded("the bodies of other calls take all the memory that bodies may", room.retry_after_s)
            stream.feed(payload)
        except ServiceError as found:
            problem = found
        room.intake_bytes += stream.held_bytes - held_bytes
        if problem is not None:
            self._received(stream, problem)

    def _received(self, stream: Stream, problem: ServiceError | None = None) -> None:
        """A request is whole, or no more of it is read."""
        stream.ended |= problem is None
        if stream.whole:
            return
        if problem is None and not stream.has_told_length:
            self._break_off(stream)
            return
        stream.end(problem)
        if stream.held_bytes:
            self._let_go(stream)
        if not stream.method.at_once:
            self._begin(stream)

    def _break_off(self, stream: Stream, reason: Reason = Reason.PROTOCOL_ERROR) -> None:
        self._drop(stream)
        self._writer.write(frames.reset(stream.number, reason))
        self._emptied()

    def _let_go(self, stream: Stream) -> None:
        self._room.intake_bytes -= stream.held_bytes
        stream.let_go()

    def _begin(self, stream: Stream) -> None:
        method = stream.method
        if method.work is not None:
            stream.running = work = method.work(stream, self._finish)
            work.begin()
        elif method.answer is not None:
            stream.running = self._loop.create_task(self._answer(method.answer, stream))

    async def _answer(self, answer: Callable[[Stream], Awaitable[Reply]], stream: Stream) -> None:
        reply = await reply_of(answer, stream)
        self._finish(stream, reply.message, reply.block)

    def _finish(self, stream: Stream, message: bytes | None, block: bytes) -> None:
        stream.running = None
        if stream.number not in self._streams or self._transport.is_closing():
            return
        if len(self._streams) > 1:  # others may be answered in this turn, too
            self._writer.hold()
        self._outlet.finish(stream, message, block)

    def _answered(self, number: int) -> None:
        """The last frame of a stream is out."""
        stream = self._streams.pop(number)
        if not stream.ended:
            self._let_go(stream)
            self._writer.write(frames.reset(number, Reason.NO_ERROR))
        self._idle_frames = max(0, self._idle_frames - 8)
        self._emptied()

    def _emptied(self) -> None:
        if not self._streams:
            self._patience.idle_since = self._patience.heard
            if self._left:
                self._part()

    def _part(self) -> None:
        """Closes this side and waits for the peer to close its own: what it sends meanwhile is dropped, but were that
        left unread, the kernel would reset the connection and the peer lose what it has not read yet."""
        self._patience.parting_since = time.monotonic()
        self._writer.flush()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _drop(self, stream: Stream) -> None:
        del self._streams[stream.number]
        self._let_go(stream)
        self._outlet.drop(stream)
        running, stream.running = stream.running, None
        if running is not None:
            running.cancel()

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        head = self._heads.headers(flags, number, payload)
        if head is not None:
            self._head(head)

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        head = self._heads.continuation(flags, number, payload)
        if head is not None:
            self._head(head)

    def _head(self, head: Head) -> None:
        number = head.number
        if not number & 1:
            raise Fault(Reason.PROTOCOL_ERROR, f"stream {number} is not a client's")
        if number <= self._last:
            stream = self._streams.get(number)
            if stream is None:
                self._idle(1)
            elif stream.ended:
                self._break_off(stream, Reason.STREAM_CLOSED)
            elif not head.flags & frames.END_STREAM:
                raise Fault(Reason.PROTOCOL_ERROR, "headers in the middle of a request")
            elif head.ends_request:
                self._received(stream)
            else:
                self._break_off(stream)
            return
        if self._left:
            return  # it was told that this one is not looked at
        self._last = number
        if len(self._streams) >= self._limits.streams_max:
            self._idle(1)
            self._writer.write(frames.reset(number, Reason.REFUSED_STREAM))
            return
        self._open(head)

    def _open(self, head: Head) -> None:
        flags, number, metadata = head.flags, head.number, head.fields
        if not head.begins_request:
            self._writer.write(frames.reset(number, Reason.PROTOCOL_ERROR))
            return
        if metadata.get(b":method") != b"POST" or not metadata.get(b"content-type", b"").startswith(
            b"application/grpc"
        ):
            told = frames.field(b":status", b"415")
            self._writer.write(frames.headers(number, told, True, frames.PAYLOAD_BYTES_MIN))
            if not flags & frames.END_STREAM:
                self._writer.write(frames.reset(number, Reason.NO_ERROR))
            return
        method = self._room.methods.get(metadata.get(b":path", b""), self._room.unknown)
        stream = Stream(number, method, metadata, self._outlet, self._patience.heard, self._limits.message_bytes_max)
        stream.caller = self._caller
        self._streams[number] = stream
        problem = stream.problem(head.size_bytes, self._limits.metadata_bytes_max)
        if method.at_once:
            self._begin(stream)
        if problem is not None:
            self._received(stream, problem)
        elif flags & frames.END_STREAM:
            self._received(stream)

    def _rst_stream(self, _: int, number: int, payload: bytes) -> None:
        if number == 0 or number > self._last:
            raise Fault(Reason.PROTOCOL_ERROR, "RST_STREAM of nothing")
        frames.check_size(payload, 4)
        self._idle(8)  # a stream that is begun and given up costs more than a ping
        stream = self._streams.get(number)
        if stream is not None:
            self._drop(stream)
            self._emptied()

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        frames.check_connection(number)
        self._idle(1)
        if flags & frames.ACK:
            frames.check_size(payload, 0)
            return
        self._writer.write(frames.frame(Kind.SETTINGS, frames.ACK, 0, b""))
        self._outlet.configure(payload, list(self._streams.values()))

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        frames.check_connection(number)
        frames.check_size(payload, 8)
        if not flags & frames.ACK:
            self._idle(1)
            self._writer.write(frames.frame(Kind.PING, frames.ACK, 0, payload))
        elif payload == _GOING and self._leaving:  # some peers answer ahead of calls that they have begun
            self._loop.call_later(_LAST_CALLS_S, self._leave)

    def _window_update(self, _: int, number: int, payload: bytes) -> None:
        if number > self._last:
            raise Fault(Reason.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        frames.check_size(payload, 4)
        size = int.from_bytes(payload, "big") & frames.WINDOW_BYTES_MAX
        stream = self._streams.get(number)
        if stream is not None or number == 0:
            self._outlet.grant(stream, size)

    def _push(self, _: int, __: int, ___: bytes) -> None:
        raise Fault(Reason.PROTOCOL_ERROR, "a client pushes nothing")

    _TAKERS: ClassVar[dict[int, Callable[[Connection, int, int, bytes], None]]] = {
        Kind.DATA: _data,
        Kind.HEADERS: _headers,
        Kind.RST_STREAM: _rst_stream,
        Kind.SETTINGS: _settings,
        Kind.PUSH_PROMISE: _push,
        Kind.PING: _ping,
        Kind.WINDOW_UPDATE: _window_update,
        Kind.CONTINUATION: _continuation,
    }

    def _idle(self, cost: int) -> None:
        self._idle_frames += cost
        if self._idle_frames > _IDLE_FRAMES_MAX:
            raise Fault(Reason.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def _end(self, reason: Reason, sentence: str) -> None:
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._writer.write(frames.go_away(self._last, reason, sentence))
        self._part()

    def go_away(self) -> None:
        """Asks the peer to begin no more calls here; closes once those that it began are answered."""
        if self._leaving or self._patience.parting_since is not None:
            return
        self._leaving = True
        if not self._frames.settled:
            self._end(Reason.NO_ERROR, "")
            return
        ping = frames.frame(Kind.PING, 0, 0, _GOING)  # its answer comes after all that was sent before it was heard of
        self._writer.write(frames.go_away(frames.STREAM_MAX, Reason.NO_ERROR) + ping)

    def _leave(self) -> None:
        if self._left or self._patience.parting_since is not None or self._transport.is_closing():
            return
        self._left = True
        self._writer.write(frames.go_away(self._last, Reason.NO_ERROR))
        self._emptied()

    def cancel(self) -> None:
        """Ends the calls that are still computed, telling their callers so."""
        for stream in list(self._streams.values()):
            running = stream.running
            if running is not None:
                running.cancel()
                if stream.method.work is not None:
                    self._finish(stream, None, GOING_DOWN.block)

    def close(self) -> None:
        """Closes once what was answered is out; `look` does not wait for that for long."""
        self._patience.parting_since = self._patience.parting_since or time.monotonic()
        self._writer.flush()
        self._transport.close()

    def look(self, now: float) -> None:
        """Holds the peer to its times; called every second or so."""
        self._idle_frames, patience = 0, self._patience
        if patience.over(now, self._frames.settled, self.unread_bytes > 0, self._outlet.moved_bytes):
            self._transport.abort()
        if self._transport.is_closing() or patience.parting_since is not None:
            return
        for stream in list(self._streams.values()):
            if not stream.whole and not stream.method.at_once and now - stream.since > self._limits.receive_s:
                self._received(stream, DeadlineExceeded("the time for this call is over"))
        if patience.spent(now, self.has_calls):
            self.go_away()
        if (self._streams or self._leaving) and patience.wonders(now):
            self._writer.write(frames.frame(Kind.PING, 0, 0, bytes(8)))

    @property
    def has_calls(self) -> bool:
        """Whether a call is not answered yet."""
        return bool(self._streams)

    @property
    def unread_bytes(self) -> int:
        """Of answers that the peer has not taken."""
        waiting = sum(len(stream.unsent) for stream in self._streams.values()) if self._outlet.waiting else 0
        return waiting + int(self._transport.get_write_buffer_size())

    def abort(self) -> None:
        """Ends at once, whatever is on its way."""
        self._transport.abort()

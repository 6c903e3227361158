"""Answers on their way to one peer, within the windows it grants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from service.rpc.transport import frames
from service.rpc.transport.frames import Fault, Kind, Reason, Setting
from service.rpc.transport.messages import HEAD, prefixed

_HEAD_HEAD = frames.headers(0, HEAD, end=False, payload_bytes_max=frames.PAYLOAD_BYTES_MIN)[:5]
"""How the frame of every answer's first headers begins, up to the number of the stream."""

_NOTHING = bytearray()
"""Unsent of every stream at first: most never have anything there."""


class Outgoing:
    """What one stream sends.

    Attributes:
      begun: whether its first headers are out.
      window_bytes: what the peer still takes on it; below 0 once it took a grant back.
    """

    __slots__ = ("begun", "drained", "last", "number", "unsent", "window_bytes")

    def __init__(self, number: int, window_bytes: int) -> None:
        """Begins with nothing to send."""
        self.number, self.window_bytes = number, window_bytes
        self.begun = False
        self.unsent = _NOTHING
        self.last: bytes | None = None
        self.drained: asyncio.Future[None] | None = None


class Writes(Protocol):
    """A connection."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Writes some bytes."""


class Outlet:
    """Sends what streams have, in frames that the peer takes; what its windows have no room for waits here.

    Attributes:
      stream_window_bytes: of a new stream.
      payload_bytes_max: of one frame, as the peer's settings say.
      moved_bytes: sent so far, so that one may see whether anything moves.
    """

    def __init__(self, writer: Writes, ended: Callable[[int], None]) -> None:
        """Begins with the windows of a new connection.

        Args:
          writer: to the connection.
          ended: told the number of each stream whose last frame is out.
        """
        self._writer, self._ended = writer, ended
        self._window = self.stream_window_bytes = frames.WINDOW_BYTES
        self._waiting: dict[int, Outgoing] = {}
        self.payload_bytes_max = frames.PAYLOAD_BYTES_MIN
        self.moved_bytes = 0
        self._first = b""

    def configure(self, payload: bytes, streams: list[Outgoing]) -> None:
        """Takes the peer's settings, for the streams that there are and new ones.

        Raises:
          Fault: they are none, or beyond what they may be.
        """
        for name, value in frames.settings_of(payload):
            if name == Setting.HEADER_TABLE_SIZE:
                self._first = b"\x20"  # the next block says that the table, which is not used, has size 0 from now on
            elif name == Setting.INITIAL_WINDOW_SIZE:
                self._resize(value, streams)
            elif name == Setting.ENABLE_PUSH and value > 1:
                raise Fault(Reason.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
            elif name == Setting.MAX_FRAME_SIZE:
                if not frames.PAYLOAD_BYTES_MIN <= value < 1 << 24:
                    raise Fault(Reason.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {value}")
                self.payload_bytes_max = value

    @property
    def waiting(self) -> bool:
        """Whether a window holds something back."""
        return bool(self._waiting)

    def finish(self, out: Outgoing, message: bytes | None, block: bytes) -> None:
        """Sends a stream's last message, if there is one, and the headers that end it."""
        if message is None:
            if out.unsent:
                out.last = block
            else:
                self._close(out, block)
            return
        size, number = len(message) + 5, out.number.to_bytes(4, "big")
        room = min(out.window_bytes, self._window, self.payload_bytes_max)
        if out.begun or self._first or size > room or len(block) > frames.PAYLOAD_BYTES_MIN:
            self.push(out, message, block)
            return
        # What nearly every call sends, in one piece.
        out.window_bytes -= size
        self._window -= size
        self.moved_bytes += size
        out.begun = True
        self._writer.write(
            b"%b%b%b%b\x00\x00%b\x00%b%b%b\x01\x05%b%b"
            % (
                _HEAD_HEAD,
                number,
                HEAD,
                size.to_bytes(3, "big"),
                number,
                (size - 5).to_bytes(4, "big"),
                message,
                len(block).to_bytes(3, "big"),
                number,
                block,
            )
        )
        self._ended(out.number)

    def push(self, out: Outgoing, message: bytes, last: bytes | None = None) -> None:
        """Sends a message, and the headers that end the stream where `last` has them."""
        if not out.begun:
            out.begun = True
            self._headers(out, HEAD, end=False)
        out.unsent = out.unsent + prefixed(message)
        out.last = last
        self._waiting[out.number] = out
        self._move(out)

    def drop(self, out: Outgoing) -> None:
        """Forgets what a stream has to send."""
        self._waiting.pop(out.number, None)
        self._tell(out)

    def end(self) -> None:
        """The connection is lost: it is let go of, which else only a collection of garbage would do."""
        self._ended = _nobody

    def grant(self, out: Outgoing | None, size_bytes: int) -> None:
        """Widens the window of a stream; None: of the connection.

        Raises:
          Fault: by nothing, or beyond what a window may be.
        """
        if size_bytes == 0:
            raise Fault(Reason.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if out is None:
            self._window = _within(self._window + size_bytes)
            self.move()
        else:
            out.window_bytes = _within(out.window_bytes + size_bytes)
            if out.number in self._waiting:
                self._move(out)

    def move(self) -> None:
        """Sends what there is room for now."""
        for out in list(self._waiting.values()):
            if self._window <= 0:
                return
            self._move(out)

    def _resize(self, window_bytes: int, streams: list[Outgoing]) -> None:
        more, self.stream_window_bytes = _within(window_bytes) - self.stream_window_bytes, window_bytes
        for out in streams:
            out.window_bytes = _within(out.window_bytes + more)
        self.move()

    def _move(self, out: Outgoing) -> None:
        framed = []
        while out.unsent and (size := min(len(out.unsent), out.window_bytes, self._window, self.payload_bytes_max)) > 0:
            framed.append(frames.frame(Kind.DATA, 0, out.number, bytes(out.unsent[:size])))
            del out.unsent[:size]
            out.window_bytes -= size
            self._window -= size
            self.moved_bytes += size
        if framed:
            self._writer.write(b"".join(framed))
        if out.unsent:
            return
        del self._waiting[out.number]
        self._tell(out)
        if out.last is not None:
            self._close(out, out.last)

    def _close(self, out: Outgoing, block: bytes) -> None:
        if not out.begun:
            block = HEAD + block
        self._headers(out, block, end=True)
        self._ended(out.number)

    def _headers(self, out: Outgoing, block: bytes, end: bool) -> None:
        block, self._first = self._first + block, b""
        self._writer.write(frames.headers(out.number, block, end, self.payload_bytes_max))

    def _tell(self, out: Outgoing) -> None:
        if out.drained is not None and not out.drained.done():
            out.drained.set_result(None)


def _nobody(number: int) -> None:
    """Takes the number of a stream that ended behind its connection."""


def _within(window_bytes: int) -> int:
    if window_bytes > frames.WINDOW_BYTES_MAX:
        raise Fault(Reason.FLOW_CONTROL_ERROR, f"a window of {window_bytes} bytes")
    return window_bytes

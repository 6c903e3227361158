"""Bytes of one peer cut into frames, and header blocks into headers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from service.rpc.transport import frames
from service.rpc.transport.frames import Fault, Kind, Reason
from service.rpc.transport.unpacking import MALFORMED, Unpacker

PAYLOAD_BYTES_MAX = 64 << 10
"""Of a frame that is taken."""

_HEAD = struct.Struct(">HBBBL")
"""Of a frame: its length in two parts, kind, flags, number of the stream."""
_HEADERS, _CONTINUATION = int(Kind.HEADERS), int(Kind.CONTINUATION)  # members of enumerations are slow to find

Frame = tuple[int, int, int, bytes]
"""Kind, flags, number of the stream, payload."""


class FrameReader:
    """Cuts what comes on a connection into frames; keeps at most one that is not whole."""

    def __init__(self) -> None:
        """Expects the preface first, then settings."""
        self._held = b""
        self._greeted = False
        self.settled = False
        """Whether the peer's first settings are here."""
        self._within_block = False

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that are whole now.

        Raises:
          Fault: this is no HTTP/2, a frame is too large, or not to come now.
        """
        if self._held:
            data, self._held = self._held + data, b""
        at, size = 0, len(data)
        if not self._greeted:
            at = self._greeting(data)
            if not self._greeted:
                self._held = data
                return
        while size - at >= frames.HEAD_BYTES:
            high, low, kind, flags, number = _HEAD.unpack_from(data, at)
            length = high << 8 | low
            if length > PAYLOAD_BYTES_MAX:
                raise Fault(
                    Reason.FRAME_SIZE_ERROR, f"a frame of {length} bytes; at most {PAYLOAD_BYTES_MAX} are taken"
                )
            end = at + frames.HEAD_BYTES + length
            if end > size:
                break
            if self._within_block or kind == _CONTINUATION or not self.settled:
                self._check_order(kind)
            if kind in (_HEADERS, _CONTINUATION):
                self._within_block = not flags & frames.END_HEADERS
            yield kind, flags, number & frames.STREAM_MAX, data[at + frames.HEAD_BYTES : end]
            at = end
        if at < size:
            self._held = data[at:]

    def _greeting(self, data: bytes) -> int:
        expected = frames.PREFACE
        if not expected.startswith(data[: len(expected)]):
            raise Fault(Reason.PROTOCOL_ERROR, "this is no HTTP/2")
        self._greeted = len(data) >= len(expected)
        return len(expected) if self._greeted else 0

    def _check_order(self, kind: int) -> None:
        if not self.settled:
            if kind != Kind.SETTINGS:
                raise Fault(Reason.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self.settled = True
        elif self._within_block != (kind == Kind.CONTINUATION):
            raise Fault(Reason.PROTOCOL_ERROR, "a header block is interrupted, or goes on where none began")


class Head(NamedTuple):
    """One block of headers.

    Attributes:
      size_bytes: as sent.
      fields: by name; of one that comes more than once the values as a list.
    """

    flags: int
    number: int
    size_bytes: int
    fields: dict[bytes, bytes]

    @property
    def begins_request(self) -> bool:
        """Whether a request begins so."""
        return b":path" in self.fields and MALFORMED not in self.fields

    @property
    def ends_request(self) -> bool:
        """Whether these may come behind a request's body."""
        return b":path" not in self.fields and MALFORMED not in self.fields


class HeadReader:
    """Unpacks header blocks, of one frame or several; HPACK keeps what it saw before, so all have to be read."""

    def __init__(self, bytes_max: int) -> None:
        """Takes the most bytes that one block may have, as sent and as unpacked."""
        self._bytes_max = bytes_max
        self._unpacker = Unpacker(bytes_max)
        self._begun: tuple[int, int, bytearray] | None = None

    def headers(self, flags: int, number: int, payload: bytes) -> Head | None:
        """Takes a HEADERS frame; returns its block if that is whole.

        Raises:
          Fault: it cannot be unpacked, or not to so much.
        """
        if flags & (frames.PADDED | frames.WITH_PRIORITY):
            payload = frames.unpadded(flags, payload)
        if flags & frames.END_HEADERS:
            return Head(flags, number, len(payload), self._unpacker.unpacked(payload))
        self._begun = flags, number, bytearray(payload)
        return None

    def continuation(self, flags: int, number: int, payload: bytes) -> Head | None:
        """Takes a CONTINUATION frame, which comes after HEADERS that were not all; returns the block if it is whole.

        Raises:
          Fault: it cannot be unpacked, not to so much, or belongs to another stream.
        """
        if self._begun is None or self._begun[1] != number:
            raise Fault(Reason.PROTOCOL_ERROR, "CONTINUATION of another stream")
        first_flags, _, block = self._begun
        block += payload
        if len(block) > self._bytes_max or not payload:
            raise Fault(Reason.ENHANCE_YOUR_CALM, f"headers of more than {self._bytes_max} bytes, or in empty pieces")
        if not flags & frames.END_HEADERS:
            return None
        self._begun = None
        return Head(first_flags, number, len(block), self._unpacker.unpacked(bytes(block)))

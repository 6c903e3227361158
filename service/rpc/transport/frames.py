"""HTTP/2 frames as bytes, and what may be wrong with them. Nothing here keeps state.

Source: RFC 9113 (HTTP/2), sections 4, 6 and 7; RFC 7541 (HPACK), sections 5.1 and 6.2.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import cache

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
PAYLOAD_BYTES_MIN = 1 << 14
"""Payload that every receiver takes; more has to be allowed by its settings."""
WINDOW_BYTES = 65_535
"""Window of a connection, and of a stream unless settings say otherwise."""
WINDOW_BYTES_MAX = (1 << 31) - 1
STREAM_MAX = (1 << 31) - 1


class Kind(IntEnum):
    """What a frame is; kinds that are not listed are skipped."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20


class Setting(IntEnum):
    """Settings that mean something here."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Reason(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Fault(Exception):
    """The peer broke the protocol or its limits: the connection cannot go on."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        """Takes what the peer is told."""
        super().__init__(sentence)
        self.reason = reason


def frame(kind: Kind, flags: int, stream: int, payload: bytes) -> bytes:
    """Returns one frame."""
    return b"%b%c%c%b%b" % (len(payload).to_bytes(3, "big"), kind, flags, stream.to_bytes(4, "big"), payload)


def settings(values: Mapping[Setting, int]) -> bytes:
    """Returns a SETTINGS frame."""
    pairs = [name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items()]
    return frame(Kind.SETTINGS, 0, 0, b"".join(pairs))


def settings_of(payload: bytes) -> Iterable[tuple[int, int]]:
    """Returns the settings that a frame's payload holds, in their order.

    Raises:
      Fault: it holds no whole number of them.
    """
    if len(payload) % 6:
        raise Fault(Reason.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    for at in range(0, len(payload), 6):
        yield int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")


def reset(stream: int, reason: Reason) -> bytes:
    """Returns an RST_STREAM frame."""
    return frame(Kind.RST_STREAM, 0, stream, reason.to_bytes(4, "big"))


def go_away(last: int, reason: Reason, sentence: str = "") -> bytes:
    """Returns a GOAWAY frame: streams after `last` were not looked at."""
    return frame(Kind.GOAWAY, 0, 0, last.to_bytes(4, "big") + reason.to_bytes(4, "big") + sentence.encode())


def credit(stream: int, size_bytes: int) -> bytes:
    """Returns a WINDOW_UPDATE frame; stream 0: of the connection."""
    return frame(Kind.WINDOW_UPDATE, 0, stream, size_bytes.to_bytes(4, "big"))


def headers(stream: int, block: bytes, end: bool, payload_bytes_max: int) -> bytes:
    """Returns a header block as HEADERS, and as CONTINUATION what does not fit."""
    flags = END_STREAM if end else 0
    if len(block) <= payload_bytes_max:
        return frame(Kind.HEADERS, flags | END_HEADERS, stream, block)
    parts = [block[at : at + payload_bytes_max] for at in range(0, len(block), payload_bytes_max)]
    framed = [frame(Kind.HEADERS, flags, stream, parts[0])]
    framed += [frame(Kind.CONTINUATION, 0, stream, part) for part in parts[1:-1]]
    return b"".join(framed) + frame(Kind.CONTINUATION, END_HEADERS, stream, parts[-1])


def field(name: bytes, value: bytes) -> bytes:
    """Returns a header for a block: a literal that no table remembers, so that writing needs no state.

    `name` has to be one of few: what begins a header is kept for each.
    """
    size = len(value)
    return (_name(name) + bytes((size,)) if size < 127 else _name(name) + _length(size)) + value


@cache
def _name(name: bytes) -> bytes:
    return b"\x00" + _length(len(name)) + name


def check_skipped(kind: int, number: int, payload: bytes) -> None:
    """Checks a frame that asks for nothing: a priority, that the peer begins no more calls, or what is not known here.

    Raises:
      Fault: it is no such frame.
    """
    if kind == Kind.GOAWAY:
        check_connection(number)
    elif kind == Kind.PRIORITY:
        check_size(payload, 5)
        if not number:
            raise Fault(Reason.PROTOCOL_ERROR, "PRIORITY of no stream")


def check_connection(number: int) -> None:
    """Checks the number of a frame that is a connection's.

    Raises:
      Fault: it is a stream's.
    """
    if number:
        raise Fault(Reason.PROTOCOL_ERROR, f"a frame of stream {number} that is a connection's")


def check_size(payload: bytes, size: int) -> None:
    """Checks a frame's payload that has one size.

    Raises:
      Fault: it has another.
    """
    if len(payload) != size:
        raise Fault(Reason.FRAME_SIZE_ERROR, f"a frame with {len(payload)} bytes; {size} were expected")


def unpadded(flags: int, payload: bytes) -> bytes:
    """Returns what a DATA or HEADERS frame carries, without padding and priority.

    Raises:
      Fault: there is less of it than it says.
    """
    first, last = 0, len(payload)
    if flags & PADDED:
        first, last = 1, last - (payload[0] if payload else 1)
    if flags & WITH_PRIORITY:
        first += 5
    if first > last:
        raise Fault(Reason.PROTOCOL_ERROR, "more padding than payload")
    return payload[first:last]


def _length(size: int) -> bytes:
    """An integer of 7 bits and more, without Huffman's bit."""
    if size < 127:
        return bytes((size,))
    octets, size = bytearray((127,)), size - 127
    while size > 127:
        octets.append(size & 127 | 128)
        size >>= 7
    octets.append(size)
    return bytes(octets)

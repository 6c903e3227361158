"""gRPC on a stream: messages with their lengths, deadlines, statuses and metadata as headers.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote

from service.errors import InvalidArgument, TooLarge
from service.rpc.transport import frames

PREFIX_BYTES = 5
ENCODINGS = {b"gzip": 31, b"deflate": 15}
"""How messages may be compressed, beside identity -> zlib's `wbits`."""
Metadata = tuple[tuple[str, str | bytes], ...]
"""Names in lower case; values of names that end in `-bin` are bytes."""

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

HEAD = b"\x88" + frames.field(b"content-type", b"application/grpc")
"""Header block of every answer: status 200 by its place in HPACK's table."""
OK = frames.field(b"grpc-status", b"0")


@lru_cache(256)
def timeout_s_of(text: bytes | None) -> float | None:
    """Returns what `grpc-timeout` says, seconds; None if it says nothing.

    Raises:
      InvalidArgument: it is no such time.
    """
    if text is None:
        return None
    told = _TIMEOUT.fullmatch(text)
    if told is None:
        raise InvalidArgument(f"grpc-timeout is {text[:20]!r}; up to 8 digits and one of HMSmun were expected")
    return int(told[1]) * _UNIT_S[told[2]]


def prefixed(message: bytes) -> bytes:
    """Returns a message with its length, not compressed."""
    return b"\x00%b%b" % (len(message).to_bytes(4, "big"), message)


def status_block(status: int, sentence: str, metadata: Metadata) -> bytes:
    """Returns the header block that ends a call."""
    told = OK if status == 0 else frames.field(b"grpc-status", b"%d" % status)
    if sentence:
        told += frames.field(b"grpc-message", quote(sentence, safe=_PLAIN).encode())
    return told + b"".join(_fields(metadata))


def _fields(metadata: Metadata) -> Iterable[bytes]:
    for name, value in metadata:
        text = base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value.encode("latin-1", "replace")
        yield frames.field(name.encode(), text)


def whole_message(data: bytes, bytes_max: int) -> tuple[bool, bytes] | None:
    """Returns the one message that `data` is, with whether it is compressed; None: it is less or more than one.

    Raises:
      TooLarge: it says that it is larger than `bytes_max`.
      InvalidArgument: it has no sound prefix.
    """
    if len(data) < PREFIX_BYTES or len(data) != PREFIX_BYTES + _size(data, bytes_max):
        return None
    return data[0] == 1, data[PREFIX_BYTES:]


class MessageReader:
    """Cuts what comes on one stream into messages."""

    __slots__ = ("_bytes_max", "_held", "_wanted")

    def __init__(self, bytes_max: int) -> None:
        """Takes the largest message, as sent, that is read."""
        self._bytes_max = bytes_max
        self._held = bytearray()
        self._wanted = PREFIX_BYTES

    @property
    def held_bytes(self) -> int:
        """Of a message that is not whole yet."""
        return len(self._held)

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """Returns the messages that are whole now, each with whether it is compressed.

        Raises:
          TooLarge, InvalidArgument: as `whole_message`; none of that message is kept.
        """
        held, found = self._held, []
        held += data
        while len(held) >= self._wanted:
            if self._wanted == PREFIX_BYTES:
                self._wanted += _size(held, self._bytes_max)
            if len(held) < self._wanted:
                break
            found.append((held[0] == 1, bytes(held[PREFIX_BYTES : self._wanted])))
            del held[: self._wanted]
            self._wanted = PREFIX_BYTES
        return found


def _size(prefix: bytes | bytearray, bytes_max: int) -> int:
    if prefix[0] > 1:
        raise InvalidArgument(f"a message begins with byte {prefix[0]}; 0 or 1 was expected")
    size = int.from_bytes(prefix[1:PREFIX_BYTES], "big")
    if size > bytes_max:
        raise TooLarge(f"the body has {size} bytes; at most {bytes_max} are taken")
    return size


def inflated(message: bytes, encoding: bytes | None, bytes_max: int) -> bytes:
    """Returns what a compressed message holds.

    Raises:
      TooLarge: more than `bytes_max`; no more than that is ever unpacked.
      InvalidArgument: it is not compressed as it says.
    """
    wbits = ENCODINGS.get(encoding or b"")
    if wbits is None:
        raise InvalidArgument(f"grpc-encoding is {(encoding or b'')[:20]!r}; gzip, deflate or identity was expected")
    unpacking = zlib.decompressobj(wbits)
    try:
        plain = unpacking.decompress(message, bytes_max + 1)
    except zlib.error:
        raise InvalidArgument("the message is not compressed as its headers say") from None
    if len(plain) > bytes_max:
        raise TooLarge(f"the body has more than {bytes_max} bytes once decompressed")
    if not unpacking.eof or unpacking.unused_data:
        raise InvalidArgument("the compressed message is cut short, or something is behind it")
    return plain

"""Heads that were parsed before: whoever keeps a connection sends the same one again and again.

What the parser makes of a head depends on its bytes alone. So what begins with a head that it took before, but for
the values of a few headers, and goes on with just the body that it announces, is not parsed again; figures in
docs/adr/0026.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from service.rest import schemas
from service.rest.paths import Asked
from service.rest.schemas import Header, Headers
from service.wire.calls import REQUEST_ID, TIMEOUT_MS, TRACE_PARENT

HEAD_BYTES_MAX = 64 << 10
"""Request line and headers."""
HEADERS_MAX = 128
LENGTH = b"content-length"
_TIMEOUT_MS = TIMEOUT_MS.encode()
_CALLER = (REQUEST_ID.encode(), TRACE_PARENT.encode())
_VARYING = (LENGTH, _TIMEOUT_MS, *_CALLER)
"""Headers whose values differ from call to call. To the parser only the first means anything."""
_UNUSUAL = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
"""Headers that tell how to go on: whoever sends one is left to the parser."""
_VALUE = re.compile(rb"[!-~]{1,128}")
"""A value that the parser takes as it is."""
_DIGITS_MAX = 9
_BYTES_MAX = 2048
_CHANCES = 4
"""Heads that may come in a row that are not as the ones before; then none is looked at any more on that connection."""
_END = b"\r\n\r\n"


class ManyHeadersError(Exception):
    """A head has more than HEADERS_MAX headers: ends the parser."""


class Call(NamedTuple):
    """A whole request that was not parsed: a POST over HTTP/1.1, behind which its connection is kept.

    Attributes:
      head: as it was parsed before.
      values: of its headers that vary, in the head's order.
      body_at: where the body begins, which is all the rest.
    """

    head: Head
    values: Sequence[bytes]
    body_at: int

    @property
    def headers(self) -> Headers:
        """Every header, names in lower case."""
        return {**self.head.headers, **dict(zip(self.head.varying, self.values, strict=True))}


class Head:
    """A head as it was parsed, and what in the bytes of one may differ from it.

    Attributes:
      asked: as its URL tells.
      headers: names in lower case.
      varying: names of those whose values may differ, in the order of the head.
      timeout_at: of which of them is the caller's time; None: it says nothing of it.
      names_itself: whether the call has an id, or a trace has one.
      protobuf: whether its answer is a protobuf message.
    """

    __slots__ = (
        "_latest",
        "_length_at",
        "_pieces",
        "asked",
        "headers",
        "names_itself",
        "protobuf",
        "timeout_at",
        "varying",
    )

    def __init__(
        self, asked: Asked, headers: Sequence[Header], varying: Sequence[bytes], pieces: Sequence[bytes]
    ) -> None:
        """Takes what was parsed.

        Args:
          asked, headers, varying: as the attributes.
          pieces: the bytes before, between and behind the values of those that vary.
        """
        self.asked, self.headers, self.varying = asked, combined(headers), tuple(varying)
        self.timeout_at = varying.index(_TIMEOUT_MS) if _TIMEOUT_MS in varying else None
        self.names_itself = any(name in self.headers for name in _CALLER)
        self.protobuf = schemas.wants_protobuf(self.headers)
        self._length_at, self._pieces = varying.index(LENGTH), tuple(pieces)
        self._latest: tuple[bytes, int, Sequence[bytes]] = b"", -1, ()
        """The last one that was found, how long it was with its body, and its values that vary."""

    def call_in(self, data: bytes) -> Call | None:
        """Returns the call that these bytes are; None: they are to be parsed."""
        latest, size, known = self._latest
        if len(data) == size and data.startswith(latest):
            return Call(self, known, len(latest))
        values, at = list[bytes](), 0
        for piece in self._pieces[:-1]:
            if not data.startswith(piece, at):
                return None
            found = _VALUE.match(data, at + len(piece))
            if found is None:
                return None
            values.append(found[0])
            at = found.end()
        if not data.startswith(self._pieces[-1], at):
            return None
        at += len(self._pieces[-1])
        length = values[self._length_at]
        if not length.isdigit() or len(length) > _DIGITS_MAX or int(length) != len(data) - at:
            return None
        if not self.names_itself:  # else hardly any is as the one before
            self._latest = data[:at], len(data), values
        return Call(self, values, at)


class Memory:
    """The head that the calls on one connection have, as long as they have the same."""

    __slots__ = ("_chances", "_head")

    def __init__(self) -> None:
        """Begins with none."""
        self._head: Head | None = None
        self._chances = _CHANCES

    def call_in(self, data: bytes) -> Call | None:
        """Returns the call that these bytes are; None: they are to be parsed."""
        call = None if self._head is None else self._head.call_in(data)
        if call is not None:
            self._chances = _CHANCES
        return call

    def learn(self, heads: Heads, data: bytes, url: bytes, headers: Sequence[Header], asked: Asked) -> None:
        """Takes what was parsed for the next call; see `Heads.learned`."""
        self._chances -= 1
        self._head = heads.learned(data, url, headers, asked) if self._chances > 0 else None


class Heads:
    """The heads of late of one door: callers that are alike share one."""

    def __init__(self, kept_max: int = 256) -> None:
        """Begins with none; 0: stays so, and every head is parsed."""
        self._kept_max = kept_max
        self._kept: dict[tuple[bytes, ...], Head] = {}

    def learned(self, data: bytes, url: bytes, headers: Sequence[Header], asked: Asked) -> Head | None:
        """Returns the head of a call for the next one; None: it had better be parsed each time.

        Args:
          data: whatever came between two requests; its first or only one was parsed, or the next one.
          url, headers: as the parser gave them, of a POST over HTTP/1.1 without a connection to be closed behind it.
          asked: as the URL tells.
        """
        end = data.find(_END, 0, _BYTES_MAX) if self._kept_max else -1
        line, *lines = data[: max(0, end)].split(b"\r\n")
        # What is read here as the parser read it, line by line, has no other end than this one.
        if line != b"POST %b HTTP/1.1" % url or [_header_of(each) for each in lines] != list(headers):
            return None
        names = [name for name, _ in headers]
        if names.count(LENGTH) != 1 or not _UNUSUAL.isdisjoint(names):
            return None
        pieces, varying = [line + b"\r\n"], []
        for (name, value), each in zip(headers, lines, strict=True):
            if name in _VARYING and names.count(name) == 1 and _VALUE.fullmatch(value) and each.endswith(value):
                pieces[-1] += each.removesuffix(value)
                varying.append(name)
                pieces.append(b"\r\n")
            else:
                pieces[-1] += each + b"\r\n"
        pieces[-1] += b"\r\n"
        if LENGTH not in varying:
            return None
        key = tuple(pieces)
        head = self._kept.get(key)
        if head is None:
            if len(self._kept) == self._kept_max:
                del self._kept[next(iter(self._kept))]
            head = self._kept[key] = Head(asked, headers, varying, key)
        return head


def combined(headers: Sequence[Header]) -> dict[bytes, bytes]:
    """Returns headers by name; of one that came more than once the values as a list, as HTTP has it.

    So no header wins over another of its name: two tokens are no token, and two times are no time.
    Source: RFC 9110, section 5.2.
    """
    found = dict(headers)
    if len(found) != len(headers):
        found = {}
        for name, value in headers:
            found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found


def without_offer(method: bytes, url: bytes, version: str, headers: Sequence[Header]) -> bytes:
    """Returns a head as it was parsed, but for the protocol that it offers to change to: none is spoken here."""
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join(lines) + _END


def _header_of(line: bytes) -> Header:
    name, _, value = line.partition(b":")
    return name.lower(), value.strip(b" \t")

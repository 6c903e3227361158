"""Reads a request's body within its limit, plain or gzip. Nothing is kept of a body that is too large."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping

from starlette.types import Receive

from service.errors import Cancelled, DeadlineExceeded, InvalidArgument, Overloaded, TooLarge

SLOW_S = 5.0
"""From here on a body has to have come at the least rate."""
DRAIN_S_MAX = 2.0
"""How long the rest of a refused body is thrown away, so that its sender gets to read the refusal."""
DRAIN_BYTES_MAX = 64 << 20


class BodyTooLarge(TooLarge):
    """The body is over its limit, and part of it is still on the wire."""


class BodyTooSlow(DeadlineExceeded):
    """The body was not here in time, and part of it is still on the wire."""


class IntakeFull(Overloaded):
    """No memory is left for this body, and part of it is still on the wire."""


UNREAD = (BodyTooLarge, BodyTooSlow, IntakeFull)


class Intake:
    """Bytes of all bodies that are still coming: many senders, each within its limit, are bounded together too."""

    def __init__(self, bytes_max: int, retry_after_s: float) -> None:
        """Begins with none."""
        self._bytes_max, self._retry_after_s = bytes_max, retry_after_s
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Held now."""
        return self._held_bytes

    def take(self, size_bytes: int) -> None:
        """Counts bytes in.

        Raises:
          IntakeFull: that would be too many.
        """
        if self._held_bytes + size_bytes > self._bytes_max:
            raise IntakeFull("the bodies of other calls take all the memory that bodies may", self._retry_after_s)
        self._held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Counts bytes out."""
        self._held_bytes -= size_bytes


class Arrival:
    """The body of one request while it arrives: bounded, counted, and whole in the end."""

    def __init__(self, headers: Mapping[bytes, bytes], limit: int, intake: Intake) -> None:
        """Begins with nothing of it.

        Args:
          headers: of the request, names in lower case.
          limit: bytes, of the body as sent and as decompressed.
          intake: where its bytes are counted until it is whole.

        Raises:
          BodyTooLarge: it says that it is larger.
          InvalidArgument: it is encoded in a way that is not known here.
        """
        said = headers.get(b"content-length", b"")
        if said.isdigit() and int(said[:20]) > limit:
            raise BodyTooLarge(f"the body has {int(said[:20])} bytes; at most {limit} are taken")
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in {b"identity", b"gzip"}:
            raise InvalidArgument(f"content-encoding is {encoding.decode('latin-1')[:40]!r}; gzip or none was expected")
        self.zipped = encoding == b"gzip"
        self.limit, self._intake = limit, intake
        self._chunks: list[bytes] = []
        self._size = self._counted = 0

    def take(self, chunk: bytes) -> None:
        """Takes the next bytes.

        Raises:
          IntakeFull: too many bytes of other bodies are on their way.
          BodyTooLarge: there are more than may be.
        """
        self._intake.take(len(chunk))
        self._size = self._counted = self._size + len(chunk)
        if self._size > self.limit:
            raise BodyTooLarge(f"the body has more than {self.limit} bytes; at most {self.limit} are taken")
        self._chunks.append(chunk)

    def leave(self) -> None:
        """Counts its bytes out; none are taken any more."""
        self._intake.give_back(self._counted)
        self._counted = 0

    def whole(self) -> bytes:
        """Returns what came, and counts it out."""
        self.leave()
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def due_s(self, bytes_per_s_min: int) -> float:
        """Returns how long what came so far may have taken, seconds."""
        return SLOW_S + self._size / bytes_per_s_min


def too_slow(bytes_per_s_min: int | None) -> BodyTooSlow:
    """Returns why a body is not waited for; None: its call is late, whatever its rate."""
    if bytes_per_s_min is None:
        return BodyTooSlow("the time for this call is over")
    return BodyTooSlow(f"the body came slower than {bytes_per_s_min} bytes a second")


async def read_body(receive: Receive, body: Arrival, wait_s: float, bytes_per_s_min: int = 1) -> bytes:
    """Reads the whole body.

    Args:
      receive: ASGI's source of messages.
      body: nothing of which is read yet.
      wait_s: how long its sender may take, seconds.
      bytes_per_s_min: that it has to come at, once SLOW_S are over.

    Raises:
      BodyTooLarge: it is larger; read no further than that.
      TooLarge: it is larger once decompressed.
      IntakeFull: too many bytes of other bodies are on their way.
      BodyTooSlow: it was not here in time.
      InvalidArgument: it is not encoded as it says.
      Cancelled: the caller left before its body was here.
    """
    began = asyncio.get_running_loop().time()
    end, more = began + wait_s, True
    try:
        async with asyncio.timeout_at(min(end, began + SLOW_S)) as timeout:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise left_early()
                body.take(message.get("body", b""))
                more = message.get("more_body", False)
                timeout.reschedule(min(end, began + body.due_s(bytes_per_s_min)))
    except TimeoutError:
        raise too_slow(None if timeout.when() == end else bytes_per_s_min) from None
    finally:
        body.leave()
    return await plain_of(body.whole(), body)


def left_early() -> Cancelled:
    """Returns what came of a call whose caller left before it was asked."""
    return Cancelled("the caller left before its body was here")


async def plain_of(sent: bytes, body: Arrival) -> bytes:
    """Returns a whole body as it was before its encoding.

    Raises:
      TooLarge: it is larger than it may be.
      InvalidArgument: it is not encoded as it says.
    """
    return await asyncio.to_thread(_gunzip, sent, body.limit) if body.zipped else sent


async def drain(receive: Receive) -> None:
    """Throws away what is left of a refused body, for a bounded time and a bounded size."""
    size, more = 0, True
    try:
        async with asyncio.timeout(DRAIN_S_MAX):
            while more and size < DRAIN_BYTES_MAX:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        return


def _gunzip(body: bytes, limit: int) -> bytes:
    """Decompresses one gzip member, and never more than the limit of it."""
    inflate = zlib.decompressobj(wbits=31)  # 31: gzip's header and checksum, the largest window
    try:
        plain = inflate.decompress(body, limit + 1)
    except zlib.error:
        raise InvalidArgument("the body is no gzip, although content-encoding says so") from None
    if len(plain) > limit:
        raise TooLarge(f"the body has more than {limit} bytes once decompressed; at most {limit} are taken")
    if not inflate.eof or inflate.unused_data:
        raise InvalidArgument("the body is cut short or has more than one gzip member")
    return plain

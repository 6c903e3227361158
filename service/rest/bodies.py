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


async def read_body(
    receive: Receive,
    headers: Mapping[bytes, bytes],
    limit: int,
    intake: Intake,
    wait_s: float,
    bytes_per_s_min: int = 1,
) -> bytes:
    """Reads the whole body.

    Args:
      receive: ASGI's source of messages.
      headers: of the request, names in lower case.
      limit: bytes, of the body as sent and as decompressed.
      intake: where its bytes are counted until it is whole.
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
    said = headers.get(b"content-length", b"")
    if said.isdigit() and int(said[:20]) > limit:
        raise BodyTooLarge(f"the body has {int(said[:20])} bytes; at most {limit} are taken")
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in {b"identity", b"gzip"}:
        raise InvalidArgument(f"content-encoding is {encoding.decode('latin-1')[:40]!r}; gzip or none was expected")
    body = await _whole(receive, limit, intake, wait_s, bytes_per_s_min)
    return await asyncio.to_thread(_gunzip, body, limit) if encoding == b"gzip" else body


async def _whole(receive: Receive, limit: int, intake: Intake, wait_s: float, bytes_per_s_min: int) -> bytes:
    chunks: list[bytes] = []
    size, more = 0, True
    now = asyncio.get_running_loop().time()
    end, slow = now + wait_s, now + SLOW_S
    try:
        async with asyncio.timeout_at(min(end, slow)) as timeout:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Cancelled("the caller left before its body was here")
                chunk = message.get("body", b"")
                intake.take(len(chunk))
                size += len(chunk)
                if size > limit:
                    raise BodyTooLarge(f"the body has more than {limit} bytes; at most {limit} are taken")
                chunks.append(chunk)
                more = message.get("more_body", False)
                if more and end > slow:
                    timeout.reschedule(min(end, slow + size / bytes_per_s_min))
    except TimeoutError:
        if timeout.when() == end:
            raise BodyTooSlow("the time for this call is over") from None
        raise BodyTooSlow(f"the body came slower than {bytes_per_s_min} bytes a second") from None
    finally:
        intake.give_back(size)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


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

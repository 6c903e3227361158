"""Reads a request's body within its limit, plain or gzip. Nothing is kept of a body that is too large."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping

from starlette.types import Receive

from service.errors import Cancelled, InvalidArgument, TooLarge

DRAIN_S_MAX = 2.0
"""How long the rest of a refused body is thrown away, so that its sender gets to read the refusal."""
DRAIN_BYTES_MAX = 64 << 20


class BodyTooLarge(TooLarge):
    """The body is over its limit, and part of it is still on the wire."""


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """Reads the whole body.

    Args:
      receive: ASGI's source of messages.
      headers: of the request, names in lower case.
      limit: bytes, of the body as sent and as decompressed.

    Raises:
      BodyTooLarge: it is larger; read no further than that.
      TooLarge: it is larger once decompressed.
      InvalidArgument: it is not encoded as it says.
      Cancelled: the caller left before its body was here.
    """
    said = headers.get(b"content-length", b"")
    if said.isdigit() and int(said[:20]) > limit:
        raise BodyTooLarge(f"the body has {int(said[:20])} bytes; at most {limit} are taken")
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in {b"identity", b"gzip"}:
        raise InvalidArgument(f"content-encoding is {encoding.decode('latin-1')[:40]!r}; gzip or none was expected")
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the caller left before its body was here")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(f"the body has more than {limit} bytes; at most {limit} are taken")
        chunks.append(chunk)
        more = message.get("more_body", False)
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    return await asyncio.to_thread(_gunzip, body, limit) if encoding == b"gzip" else body


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

"""Bodies: of requests read whole, within limits on size, time and memory, and decompressed; of
responses written.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from google.protobuf.message import Message
from starlette.responses import Response
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Send

from service.byte_budget import Reservation
from service.codec import json
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.errors import Cancelled, DeadlineExceeded, InvalidArgument, TooLarge
from service.http.headers import JSON, PROTOBUF, Headers, accepts_protobuf

_TRAILERS_MAX = 100
"""Maximum number of trailers after a chunked body. They are ignored."""
_TRAILERS_CHECK_S = 0.05
"""Interval of the checks while a body arrives."""
_INLINE_BYTES = 16 << 10
"""Maximum size of a gzip body that is decompressed on the event loop."""
_INLINE_STEP_BYTES = 64 << 10
"""Maximum output of that decompression; a body that yields more goes to a decoder thread."""
_STEP_BYTES = 1 << 20
"""Output per step of a decompression in a decoder thread; limits are checked between steps."""


class BodyTimeout(DeadlineExceeded):
    """The body did not arrive in time."""


def response_of(
    headers: Headers, message: Callable[[], Message], value: Callable[[], Any]
) -> Response:
    """Returns a response in the form that the headers of the request name."""
    if accepts_protobuf(headers):
        return Response(message().SerializeToString(), media_type=PROTOBUF)
    return Response(json.dump(value()), media_type=JSON)


class ResponseNotRead(Exception):
    """A client did not read a response in time. The server closes the connection."""


async def send_pieces(
    pieces: Sequence[bytes], media_type: str, timeout_s: float, send: Send
) -> None:
    """Sends a response; see `send_body`."""
    length = sum(map(len, pieces))
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(length).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if length > json.PIECE_BYTES:
        await send_body(pieces, timeout_s, send)
    else:
        await send({"type": "http.response.body", "body": b"".join(pieces)})


async def send_body(
    pieces: Iterable[bytes], timeout_s: float, send: Send, more_body: bool = False
) -> None:
    """Sends the body of a response in parts, each once the client has read most of those before.

    Args:
      pieces: The body.
      timeout_s: The maximum time for the client to read one part.
      send: Sends an ASGI message.
      more_body: Whether more of the body follows.

    Raises:
      ResponseNotRead: The client did not read a part in time.
    """
    # The empty end waits until most of the last part has been read as well.
    for body in chain(chain.from_iterable(map(_parts, pieces)), [b""]):
        message = {
            "type": "http.response.body",
            "body": body,
            "more_body": more_body or bool(body),
        }
        try:
            async with asyncio.timeout(timeout_s):
                await send(message)
        except TimeoutError:
            raise ResponseNotRead from None


def _parts(piece: bytes) -> Iterator[bytes]:
    for first in range(0, len(piece), json.PIECE_BYTES):
        yield piece[first : first + json.PIECE_BYTES]


class BodyReader:
    """Reads the body of one request; its bytes count in the reservation of the request."""

    def __init__(
        self,
        dataplane: Dataplane,
        context: RequestContext,
        held: Reservation,
        received_headers: Sequence[object],
    ) -> None:
        """Creates the reader of one body.

        Args:
          dataplane: Has the limits.
          context: The request's.
          held: Counts the bytes of the body.
          received_headers: Those of the ASGI scope. uvicorn adds trailers to them, without a limit.
        """
        self._received_headers = received_headers
        self._trailers_begin = len(received_headers)
        self._dataplane = dataplane
        self._context = context
        self._held = held
        self._limit = dataplane.settings.max_request_bytes
        self._timeout_s = dataplane.settings.body_timeout_s

    async def read(self, headers: Headers, receive: Receive) -> bytes:
        """Returns the body, decompressed.

        Raises:
          TooLarge: it declares or reaches more bytes than the limit, as sent or decompressed.
          Overloaded: the bodies of other requests take all the memory.
          BodyTimeout: it did not arrive in time.
          InvalidArgument: it is not encoded as its headers declare.
          Cancelled: the client hung up before the body had arrived.
        """
        encoding = "identity"
        if "content-encoding" in headers:
            encoding = headers["content-encoding"].strip().lower()
        if encoding not in {"identity", "gzip"}:
            raise InvalidArgument(
                f"content-encoding is {encoding[:40]!r}; gzip or none was expected"
            )
        self._check(int(headers.get("content-length", "0")))
        body = await self._receive(receive, chunked="transfer-encoding" in headers)
        if encoding == "gzip":
            return await self._decompress(body)
        return body

    def _check(self, size: int, form: str = "") -> None:
        if size > self._limit:
            raise TooLarge(
                f"the body has {size} bytes or more{form}; at most {self._limit} are accepted"
            )

    async def _receive(self, receive: Receive, chunked: bool) -> bytes:
        timeout_s = min(self._timeout_s, self._context.deadline - time.monotonic())
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(timeout_s):
                while more:
                    message = await (self._next_message(receive) if chunked else receive())
                    if message["type"] == "http.disconnect":
                        raise Cancelled("the client disconnected before the body had arrived")
                    chunk: bytes = message.get("body", b"")
                    more = message.get("more_body", False)
                    self._held.reserve(len(chunk))
                    self._check(len(body) + len(chunk))
                    if not body and not more:
                        return chunk
                    body += chunk
        except TimeoutError:
            raise BodyTimeout(
                "the body did not arrive in time (body_timeout_s, or the deadline)"
            ) from None
        return bytes(body)

    async def _next_message(self, receive: Receive) -> AsgiMessage:
        """Waits for more of a chunked body, and checks the trailers meanwhile: no message has
        them.
        """
        while True:
            try:
                async with asyncio.timeout(_TRAILERS_CHECK_S):
                    return await receive()
            except TimeoutError:
                trailers = len(self._received_headers) - self._trailers_begin
                if trailers > _TRAILERS_MAX:
                    raise TooLarge(
                        f"the body has {trailers} or more trailers; at most {_TRAILERS_MAX} are "
                        "accepted"
                    ) from None

    async def _decompress(self, body: bytes) -> bytes:
        """Decompresses one gzip member in steps: each is reserved first, large ones run in the
        bounded pool.
        """
        gzip = zlib.decompressobj(wbits=31)  # 31: gzip's header and checksum, the largest window
        steps = list[bytes]()
        size = 0
        rest = body
        while not gzip.eof:
            inline = len(body) <= _INLINE_BYTES and not steps
            reserved = min(_INLINE_STEP_BYTES if inline else _STEP_BYTES, self._limit - size + 1)
            self._held.reserve(reserved)
            try:
                if inline:
                    step = gzip.decompress(rest, reserved)
                else:
                    step = await self._dataplane.offload(gzip.decompress, rest, reserved)
            except zlib.error:
                raise InvalidArgument(
                    "the body is not gzip, although content-encoding says so"
                ) from None
            self._held.release(reserved - len(step))
            size = size + len(step)
            rest = gzip.unconsumed_tail
            self._check(size, " decompressed")
            if not step and not rest and not gzip.eof:
                raise InvalidArgument("the gzip body is truncated")
            steps.append(step)
        if gzip.unused_data:
            raise InvalidArgument("the body has more than one gzip member, or bytes after it")
        self._held.release(len(body))
        return b"".join(steps)

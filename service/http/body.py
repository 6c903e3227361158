"""Bodies: of requests read whole, within limits on size, time and memory, and decompressed; of
responses written.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from typing import Any, Self

from google.protobuf.message import Message
from starlette.responses import Response
from starlette.types import Receive

from service.codec import json
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.errors import Cancelled, DeadlineExceeded, InvalidArgument, TooLarge
from service.http.headers import JSON, PROTOBUF, Headers, accepts_protobuf

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


class BodyReader:
    """Reads the body of one request; its bytes count in the budget of the process until the `with`
    block ends.
    """

    def __init__(self, dataplane: Dataplane, context: RequestContext) -> None:
        self._dataplane = dataplane
        self._context = context
        self._limit = dataplane.settings.max_request_bytes
        self._timeout_s = dataplane.settings.body_timeout_s
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._release(self._held)

    async def read(self, headers: Headers, receive: Receive) -> bytes:
        """Returns the body, decompressed.

        Raises:
          TooLarge: it declares or reaches more bytes than the limit, as sent or decompressed.
          Overloaded: the bodies of other requests take all the memory.
          BodyTimeout: it did not arrive in time.
          InvalidArgument: it is not encoded as its headers declare.
          Cancelled: the client hung up before the body had arrived.
        """
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in {"identity", "gzip"}:
            raise InvalidArgument(
                f"content-encoding is {encoding[:40]!r}; gzip or none was expected"
            )
        self._check(int(headers.get("content-length", "0")))
        body = await self._receive(receive)
        if encoding == "gzip":
            return await self._decompress(body)
        return body

    def _reserve(self, size: int) -> None:
        self._dataplane.budget.reserve(size, self._context.call)
        self._held += size

    def _release(self, size: int) -> None:
        self._dataplane.budget.release(size)
        self._held -= size

    def _check(self, size: int, form: str = "") -> None:
        if size > self._limit:
            raise TooLarge(
                f"the body has {size} bytes or more{form}; at most {self._limit} are accepted"
            )

    async def _receive(self, receive: Receive) -> bytes:
        timeout_s = min(self._timeout_s, self._context.deadline - time.monotonic())
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(timeout_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Cancelled("the client disconnected before the body had arrived")
                    chunk: bytes = message.get("body", b"")
                    more = message.get("more_body", False)
                    self._reserve(len(chunk))
                    self._check(len(body) + len(chunk))
                    if not body and not more:
                        return chunk
                    body += chunk
        except TimeoutError:
            raise BodyTimeout(
                "the body did not arrive in time (body_timeout_s, or the deadline)"
            ) from None
        return bytes(body)

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
            self._reserve(reserved)
            try:
                if inline:
                    step = gzip.decompress(rest, reserved)
                else:
                    step = await self._dataplane.offload(gzip.decompress, rest, reserved)
            except zlib.error:
                raise InvalidArgument(
                    "the body is not gzip, although content-encoding says so"
                ) from None
            self._release(reserved - len(step))
            size = size + len(step)
            rest = gzip.unconsumed_tail
            self._check(size, " decompressed")
            if not step and not rest and not gzip.eof:
                raise InvalidArgument("the gzip body is truncated")
            steps.append(step)
        if gzip.unused_data:
            raise InvalidArgument("the body has more than one gzip member, or bytes after it")
        self._release(len(body))
        return b"".join(steps)

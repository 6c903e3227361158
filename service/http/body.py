"""Request bodies: read whole, within limits on size, time and memory, and decompressed."""

from __future__ import annotations

import asyncio
import functools
import time
import zlib
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.dataplane import Application
from service.engine.context import RequestContext
from service.errors import Cancelled, DeadlineExceeded, InvalidArgument, Overloaded, TooLarge
from service.http.headers import Headers

COMPLETE = "body_complete"
"""Key of the scope's state: whether the whole body has been read; absent until reading it begins."""
_INLINE_BYTES, _INLINE_STEP_BYTES = 16 << 10, 64 << 10
"""A gzip body up to the first size is decompressed on the event loop, as far as it yields no more than the second."""
_STEP_BYTES = 1 << 20
_SKIPPED_BYTES = 64 << 10
_DRAIN_BYTES, _DRAIN_S = 64 << 20, 2.0


class BodyMiddleware:
    """Limits the body of every request and holds its bytes in the budget of the process until the request ends.

    The body is read when the application first receives, and arrives as one message.
    """

    def __init__(self, app: ASGIApp, application: Application) -> None:
        self._app, self._application = app, application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(scope, receive, self._application)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.release(body.held)


class _Body:
    """The body of one request.

    Attributes:
      held: bytes reserved for it in the budget.
    """

    __slots__ = ("_application", "_receive", "_scope", "held")

    def __init__(self, scope: Scope, receive: Receive, application: Application) -> None:
        self._scope, self._receive, self._application = scope, receive, application
        self.held = 0

    async def receive(self) -> Message:
        """Returns the whole body at first, then what the server has: that the client has hung up.

        Raises:
          TooLarge: it declares or reaches more bytes than the limit, as sent or decompressed.
          Overloaded: the bodies of other requests take all the memory.
          DeadlineExceeded: it did not arrive in time.
          InvalidArgument: it is not encoded as its headers say.
          Cancelled: the client hung up before the body had arrived.
        """
        state = self._scope["state"]
        if COMPLETE in state:
            return await self._receive()
        state[COMPLETE] = False
        headers: Headers = state["headers"]
        context: RequestContext = state["context"]
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in {b"identity", b"gzip"}:
            raise InvalidArgument(f"content-encoding is {encoding.decode('latin-1')[:40]!r}; gzip or none was expected")
        self._check(int(headers.get(b"content-length", b"0")))
        try:
            body = await self._read(context)
            state[COMPLETE] = True
            if encoding == b"gzip":
                body = await self._decompress(body)
        except Overloaded as problem:
            self._application.metrics.rejected(context.call, problem.reason)
            raise
        return {"type": "http.request", "body": body, "more_body": False}

    def release(self, size: int) -> None:
        """Returns bytes to the budget."""
        self._application.dataplane.budget.release(size)
        self.held -= size

    def _reserve(self, size: int) -> None:
        self._application.dataplane.budget.reserve(size)
        self.held += size

    def _check(self, size: int, form: str = "") -> None:
        limit = self._application.settings.max_request_bytes
        if size > limit:
            raise TooLarge(f"the body has {size} bytes or more{form}; at most {limit} are accepted")

    async def _read(self, context: RequestContext) -> bytes:
        timeout_s = min(self._application.settings.body_timeout_s, context.deadline - time.monotonic())
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(timeout_s):
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Cancelled("the client hung up before its body had arrived")
                    chunk: bytes = message.get("body", b"")
                    more = message.get("more_body", False)
                    self._reserve(len(chunk))
                    self._check(len(body) + len(chunk))
                    if not body and not more:
                        return chunk
                    body += chunk
        except TimeoutError:
            raise DeadlineExceeded("the body did not arrive in time (body_timeout_s, or the deadline)") from None
        return bytes(body)

    async def _decompress(self, body: bytes) -> bytes:
        """Decompresses one gzip member in steps: each is reserved first, large ones run in the bounded pool."""
        gzip = zlib.decompressobj(wbits=31)  # 31: gzip's header and checksum, the largest window
        steps, size, rest = list[bytes](), 0, body
        limit, offload = self._application.settings.max_request_bytes, self._application.dataplane.offload
        while not gzip.eof:
            inline = len(body) <= _INLINE_BYTES and not steps
            reserved = min(_INLINE_STEP_BYTES if inline else _STEP_BYTES, limit - size + 1)
            self._reserve(reserved)
            decompress = functools.partial(gzip.decompress, rest, reserved)
            try:
                step = decompress() if inline else await offload(decompress)
            except zlib.error:
                raise InvalidArgument("the body is not gzip, although content-encoding says so") from None
            self.release(reserved - len(step))
            size, rest = size + len(step), gzip.unconsumed_tail
            self._check(size, " decompressed")
            if not step and not rest and not gzip.eof:
                raise InvalidArgument("the gzip body is truncated")
            steps.append(step)
        if gzip.unused_data:
            raise InvalidArgument("the body has more than one gzip member, or bytes after it")
        self.release(len(body))
        return steps[0] if len(steps) == 1 else b"".join(steps)


def is_left_unread(scope: Scope) -> bool:
    """Returns whether a connection must be closed behind a rejected request, since much of its body may still come."""
    state = scope["state"]
    if COMPLETE in state:
        return not state[COMPLETE]
    headers: Headers = state["headers"]
    return b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")) > _SKIPPED_BYTES


async def drain(receive: Receive) -> None:
    """Discards the rest of a rejected body, within bounds, so that the client reads the answer before a reset."""
    size, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            while more and size < _DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)

"""Bodies, and the headers that describe them: of requests read whole, within limits on size, time
and memory, and decompressed; of responses written in the form that the client accepts.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from google.protobuf.message import Message
from starlette.responses import Response
from starlette.types import Receive, Send

from service.codec import json
from service.codec.metadata import REQUEST_ID, TIMEOUT_MS, TRACE_PARENT
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.errors import Cancelled, DeadlineExceeded, InvalidArgument, TooLarge

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
_JSON_TYPES = (JSON, "")
_PROTOBUF_TYPES = (PROTOBUF, "application/protobuf")
_LARGE_BYTES = 1 << 20
"""Admission leaves larger bodies to what handles calls, which closes the connection where that is
cheaper than to skip them.
"""
_CACHED = 32
"""Headers that are parsed once: clients send few different ones."""

Headers = Mapping[str, str]
"""Values by name in lower case."""
_NAMES = {
    name.encode(): name
    for name in (
        REQUEST_ID,
        TIMEOUT_MS,
        TRACE_PARENT,
        "accept",
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "origin",
        "transfer-encoding",
    )
}
"""The headers that the service reads."""
_TRAILERS_MAX = 100
"""Maximum number of trailers after a chunked body. They are ignored."""
_SWEEP_S = 0.05
"""Interval at which all bodies that arrive are looked over."""
_INLINE_BYTES = 16 << 10
"""Maximum size of a gzip body that is decompressed on the event loop."""
_INLINE_STEP_BYTES = 64 << 10
"""Maximum output of that decompression; a body that yields more goes to a decoder thread."""
_STEP_BYTES = 1 << 20
"""Output per step of a decompression in a decoder thread; limits are checked between steps."""


def joined(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Returns the headers of an ASGI scope that the service reads; one that comes more than once is
    the list of its values.
    """
    headers: dict[str, str] = {}
    for key, value in raw:
        if key in _NAMES:
            name = _NAMES[key]
            text = value.decode("latin-1")
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def is_unusual(headers: Headers) -> bool:
    """Returns whether the body of a request is large, or may become so."""
    return "transfer-encoding" in headers or int(headers.get("content-length", 0)) > _LARGE_BYTES


def is_protobuf(headers: Headers) -> bool:
    """Returns whether the body is a protobuf message; else it is JSON, also without a content type.

    Raises:
      InvalidArgument: it is neither, or a web page sent it without a content type. Without asking,
        browsers let a page send forms, and bodies without a type, to any address.
    """
    content_type = headers.get("content-type", "")
    media_type = _media_type(content_type)
    untyped = not media_type and "origin" in headers
    if untyped or (media_type not in _JSON_TYPES and media_type not in _PROTOBUF_TYPES):
        raise InvalidArgument(
            f"content-type is {content_type[:80]!r}; {JSON} or {PROTOBUF} was expected"
        )
    return media_type in _PROTOBUF_TYPES


def accepts_protobuf(headers: Headers) -> bool:
    """Returns whether the answer is a message: the first form that `accept` names, else that of the
    body.
    """
    return _accepts_protobuf(headers.get("accept", ""), headers.get("content-type", ""))


@lru_cache(_CACHED)
def _accepts_protobuf(accept: str, content_type: str) -> bool:
    known = (JSON, *_PROTOBUF_TYPES)
    accepted = [each for each in map(_media_type, accept.split(",")) if each in known]
    media_type = accepted[0] if accepted else _media_type(content_type)
    return media_type in _PROTOBUF_TYPES


@lru_cache(_CACHED)
def _media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


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
    pieces: Sequence[bytes], media_type: bytes, timeout_s: float, send: Send
) -> None:
    """Sends a response; see `send_body`."""
    length = sum(map(len, pieces))
    headers = [(b"content-type", media_type), (b"content-length", b"%d" % length)]
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


@dataclass(slots=True)
class _Arriving:
    """A body that has not arrived yet.

    Attributes:
      deadline: when it must have, on the clock of `time.monotonic()`.
      headers: those of the ASGI scope. uvicorn adds trailers to them, without a limit.
      headers_max: how many there may be.
      problem: why nobody waits for it any more; None: its request does.
    """

    deadline: float
    headers: Sequence[object]
    headers_max: int
    problem: TooLarge | BodyTimeout | None = None


class BodyReader:
    """Reads the bodies of requests, which count in the byte budget.

    Most bodies are there before their requests are handled. So they have no timers: one sweep looks
    at those that arrive slowly.
    """

    def __init__(self, dataplane: Dataplane) -> None:
        """Creates a reader; `dataplane` has the limits."""
        self._dataplane = dataplane
        self._budget = dataplane.budget
        self._limit = dataplane.settings.max_request_bytes
        self._timeout_s = dataplane.settings.body_timeout_s
        self._arriving: dict[asyncio.Task[Any], _Arriving] = {}
        self._sweeping = False

    async def read(
        self,
        context: RequestContext,
        headers: Headers,
        received_headers: Sequence[object],
        receive: Receive,
    ) -> bytes:
        """Returns a body, decompressed.

        Args:
          context: The request's.
          headers: The headers of the request.
          received_headers: Those of the ASGI scope.
          receive: Returns the next ASGI message.

        Raises:
          TooLarge: it declares or reaches more bytes than the limit, as sent or decompressed; or it
            has too many trailers.
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
        if "content-length" in headers:
            self._check(int(headers["content-length"]))
        body = await self._receive(context, received_headers, receive)
        if encoding == "gzip":
            return await self._decompress(context, body)
        return body

    def _check(self, size: int, form: str = "") -> None:
        if size > self._limit:
            raise TooLarge(
                f"the body has {size} bytes or more{form}; at most {self._limit} are accepted"
            )

    async def _receive(
        self, context: RequestContext, received_headers: Sequence[object], receive: Receive
    ) -> bytes:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        deadline = min(context.received_at + self._timeout_s, context.deadline)
        headers_max = len(received_headers) + _TRAILERS_MAX
        arriving = _Arriving(deadline, received_headers, headers_max)
        self._arriving[task] = arriving
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        body = bytearray()
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Cancelled("the client disconnected before the body had arrived")
                chunk: bytes = message.get("body", b"")
                self._budget.reserve(context, len(chunk))
                is_last = not message.get("more_body", False)
                if is_last and not body:
                    self._check(len(chunk))
                    return chunk
                body += chunk
                self._check(len(body))
                if is_last:
                    return bytes(body)
        except asyncio.CancelledError:
            if arriving.problem is None or task.uncancel():
                raise
            raise arriving.problem from None
        finally:
            del self._arriving[task]

    def _sweep(self) -> None:
        """Ends the wait for the bodies that take too long, or have too many trailers: no message
        has trailers.
        """
        self._sweeping = bool(self._arriving)
        if not self._sweeping:
            return
        now = time.monotonic()
        for task, arriving in self._arriving.items():
            if arriving.problem is not None:
                continue
            headers = len(arriving.headers)
            if now >= arriving.deadline:
                arriving.problem = BodyTimeout(
                    "the body did not arrive in time (body_timeout_s, or the deadline)"
                )
                task.cancel()
            elif headers > arriving.headers_max:
                trailers = headers - arriving.headers_max + _TRAILERS_MAX
                arriving.problem = TooLarge(
                    f"the body has {trailers} or more trailers; at most {_TRAILERS_MAX} are "
                    "accepted"
                )
                task.cancel()
        asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    async def _decompress(self, context: RequestContext, body: bytes) -> bytes:
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
            self._budget.reserve(context, reserved)
            try:
                if inline:
                    step = gzip.decompress(rest, reserved)
                else:
                    step = await self._dataplane.offload(gzip.decompress, rest, reserved)
            except zlib.error:
                raise InvalidArgument(
                    "the body is not gzip, although content-encoding says so"
                ) from None
            self._budget.release(context, reserved - len(step))
            size = size + len(step)
            rest = gzip.unconsumed_tail
            self._check(size, " decompressed")
            if not step and not rest and not gzip.eof:
                raise InvalidArgument("the gzip body is truncated")
            steps.append(step)
        if gzip.unused_data:
            raise InvalidArgument("the body has more than one gzip member, or bytes after it")
        self._budget.release(context, len(body))
        return b"".join(steps)

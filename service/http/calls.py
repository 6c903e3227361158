"""The calls over HTTP: their bodies are read whole, within limits on size, time and memory,
and decompressed; their responses are sent as clients read them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from starlette.types import Receive, Scope, Send

from service.codec import json
from service.codec.metadata import (
    JSON,
    PROTOBUF,
    Headers,
    accepts_protobuf,
    is_protobuf,
)
from service.codec.operations import OPERATIONS, Exchange
from service.contract.messages import Target
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.errors import (
    Cancelled,
    DeadlineExceeded,
    FieldViolation,
    InvalidArgument,
    NotFound,
    TooLarge,
)
from service.http.admission import is_unusual
from service.http.other_protocols import OtherProtocol, check_spoken
from service.query_strings import check_query
from service.security.principal import authorize

_JSON = JSON.encode()
_PROTOBUF = PROTOBUF.encode()
_SWEEP_S = 0.05
"""Interval at which the sweep looks at all bodies that arrive."""


class MethodNotAllowed(InvalidArgument):
    """The path does not have this method."""

    def __init__(self, method: str, allowed: str) -> None:
        """Creates the error.

        Args:
          method: The method of the request, which may be of any length.
          allowed: The methods of the path, as the header `allow` lists them.
        """
        message = f"method {method[:20]} is not allowed for this path; {allowed} is"
        super().__init__(message, FieldViolation("method", method[:20], allowed))
        self.allowed = allowed


class BodyTimeout(DeadlineExceeded):
    """The body did not arrive in time."""


def target_of(model: str, version: str | None = None, label: str | None = None) -> Target:
    """Returns the model, and the version or label, that a path names.

    Raises:
      InvalidArgument: The version is not a number.
    """
    if version is None:
        return Target(model, label=label or "")
    if not (version.isascii() and version.isdecimal() and len(version) < 20):
        raise InvalidArgument.of_field("version", repr(version[:40]), "a positive integer")
    return Target(model, int(version))


class CallEndpoint:
    """Responds to the calls, as an ASGI application. The scope's `path_params` have the model and
    the call, the version or label if the path names one, and the `protocol` if it is not rowcast's
    own.
    """

    def __init__(self, dataplane: Dataplane, protocols_off: Mapping[str, OtherProtocol]) -> None:
        """Creates the application.

        Args:
          dataplane: Computes the calls.
          protocols_off: The protocols that the service does not speak, by their names.
        """
        self._dataplane = dataplane
        self._protocols_off = protocols_off
        self._timeout_s = dataplane.settings.body_timeout_s
        self._bodies = BodyReader(dataplane)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds to one request."""
        if scope["query_string"]:
            check_query(scope["query_string"])
        path = scope["path_params"]
        headers = scope["state"]["headers"]
        context: RequestContext = scope["state"]["context"]
        protocol: OtherProtocol | None = path.get("protocol")
        if protocol is None and path["call"] not in OPERATIONS:
            check_spoken(self._protocols_off, scope["path"])
            name = repr(path["call"][:40])
            names = ", ".join(OPERATIONS)
            message = f"call {name} does not exist; the calls are {names}"
            raise NotFound(message, FieldViolation("call", name, f"one of {names}"))
        context.call = path["call"]
        context.model = path["model"]
        if scope["method"] != "POST":
            raise MethodNotAllowed(scope["method"], "POST")
        target = target_of(path["model"], path["version"], path["label"])

        as_protobuf = True
        if protocol is None:
            operation: Exchange = OPERATIONS[path["call"]]
            protobuf = is_protobuf(headers)
            as_protobuf = accepts_protobuf(headers)
        else:
            operation, response_headers = protocol.start(self._dataplane, scope)
            protobuf = True

        authorize(context.principal, target.model)
        # `Admission` has checked all calls but the unusual ones.
        if is_unusual(headers):
            engine = self._dataplane.engine
            engine.check_admission(context.call, context.deadline, target.model)

        async def disconnected() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        try:
            body = await self._bodies.read(context, headers, receive)
            context.received_at = time.monotonic()
            # Only now: before, the coroutine would take parts of the body.
            context.disconnected = disconnected
            pieces = await self._dataplane.call(
                operation, body, protobuf, target, context, as_protobuf
            )
            if protocol is None:
                media_type = _PROTOBUF if as_protobuf else _JSON
                content_headers = [(b"content-type", media_type)]
            else:
                content_headers = response_headers()
            await send_pieces(pieces, content_headers, self._timeout_s, send)
        finally:
            self._dataplane.budget.release(context)


@dataclass(slots=True)
class _Arriving:
    """A body that has not arrived yet.

    Attributes:
      deadline: The time by which it must have arrived, on the clock of `time.monotonic()`.
      problem: Why its request waits for it no longer; None: the request waits.
    """

    deadline: float
    problem: BodyTimeout | None = None


class BodyReader:
    """Reads the bodies of requests, which count in the byte budget.

    Most bodies are there before their requests are handled. So they have no timers: one sweep looks
    at the bodies that arrive slowly.
    """

    def __init__(self, dataplane: Dataplane) -> None:
        """Creates a reader; `dataplane` has the limits."""
        self._dataplane = dataplane
        self._budget = dataplane.budget
        self._limit = dataplane.settings.max_request_bytes
        self._timeout_s = dataplane.settings.body_timeout_s
        self._arriving: dict[asyncio.Task[Any], _Arriving] = {}
        self._sweeping = False

    async def read(self, context: RequestContext, headers: Headers, receive: Receive) -> bytes:
        """Returns a body, decompressed.

        Args:
          context: The context of the request.
          headers: The headers of the request.
          receive: Returns the next ASGI message.

        Raises:
          TooLarge: It declares or reaches more bytes than the limit, as sent or decompressed.
          Overloaded: The bodies of other requests take all the memory.
          BodyTimeout: It did not arrive in time.
          InvalidArgument: It is not encoded as its headers declare.
          Cancelled: The client hung up before the body had arrived.
        """
        encoding = "identity"
        if "content-encoding" in headers:
            encoding = headers["content-encoding"].strip().lower()
        # Another name of the same encoding (RFC 9110, section 8.4.1.3).
        if encoding == "x-gzip":
            encoding = "gzip"
        if encoding not in {"identity", "gzip"}:
            raise InvalidArgument.of_field("content-encoding", repr(encoding[:40]), "gzip or none")
        # A length beyond the limit is rejected before anything is received.
        if "content-length" in headers:
            self._check(int(headers["content-length"]))
        body = await self._receive(context, receive)
        if encoding == "gzip":
            return await self._dataplane.decompress(body, context)
        return body

    def _check(self, size: int) -> None:
        if size > self._limit:
            size_text = f"{size} bytes or more"
            raise TooLarge.of_limit("body", size_text, self._limit, "max_request_bytes")

    async def _receive(self, context: RequestContext, receive: Receive) -> bytes:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        deadline = min(context.received_at + self._timeout_s, context.deadline)
        arriving = _Arriving(deadline)
        self._arriving[task] = arriving
        # The first body that has not arrived starts the sweep; it ends with the last one.
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
                size = len(chunk)
                # Reserved as it arrives: a declared length may never be sent.
                self._budget.reserve(context, size)
                is_last = not message.get("more_body", False)
                # Most bodies are one chunk, which is not copied.
                if is_last and not body:
                    self._check(size)
                    return chunk
                body += chunk
                self._check(len(body))
                if is_last:
                    return bytes(body)
        except asyncio.CancelledError:
            # The sweep cancels the task to end its wait. Without a problem, or if it is cancelled
            # once more, somebody else did.
            if arriving.problem is None or task.uncancel():
                raise
            raise arriving.problem from None
        finally:
            del self._arriving[task]

    def _sweep(self) -> None:
        """Ends the wait for the bodies that take too long."""
        self._sweeping = bool(self._arriving)
        if not self._sweeping:
            return
        now = time.monotonic()
        for task, arriving in self._arriving.items():
            if arriving.problem is None and now >= arriving.deadline:
                arriving.problem = BodyTimeout(
                    "the body did not arrive in time (body_timeout_s, or the deadline)"
                )
                task.cancel()
        asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)


async def send_pieces(
    pieces: Sequence[bytes],
    headers: Sequence[tuple[bytes, bytes]],
    timeout_s: float,
    send: Send,
) -> None:
    """Sends a response; see `send_body`.

    Args:
      pieces: The body.
      headers: All headers but the length of the body.
      timeout_s: The maximum time for the client to read one part.
      send: Sends an ASGI message.
    """
    length = sum(map(len, pieces))
    all_headers = [*headers, (b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": 200, "headers": all_headers})
    # Small responses, which are most, take no timer and one message.
    if length > json.PIECE_BYTES:
        await send_body(pieces, timeout_s, send)
    else:
        await send({"type": "http.response.body", "body": b"".join(pieces)})


async def send_body(
    pieces: Iterable[bytes], timeout_s: float, send: Send, more_body: bool = False
) -> None:
    """Sends the body of a response in parts, each once the client has read most of the last ones.

    Args:
      pieces: The body.
      timeout_s: The maximum time for the client to read one part.
      send: Sends an ASGI message.
      more_body: Whether more of the body follows.

    Raises:
      Cancelled: The client did not read a part in time.
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
            problem = "the client did not read the response in time (body_timeout_s)"
            raise Cancelled(problem) from None


def _parts(piece: bytes) -> Iterator[bytes]:
    for first in range(0, len(piece), json.PIECE_BYTES):
        yield piece[first : first + json.PIECE_BYTES]

"""The path of a request behind both transports: admission, bounded decoding, permission, engine,
recording, bounded encoding.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from traceback import clear_frames
from typing import Any, TypeVar

from service.codec import json
from service.codec.operations import Exchange, Operation
from service.config import ServiceSettings
from service.contract.messages import Result, Target
from service.contract.reading import NoCondition
from service.decode_turns import DecodeTurns
from service.descriptions import Descriptions
from service.engine.context import RequestContext
from service.engine.engine import Engine
from service.engine.filters import check_attribute
from service.engine.validation import check_bytes
from service.errors import InvalidArgument, Overloaded, TooLarge
from service.observability.metrics import Metrics
from service.observability.tracing import Tracing
from service.request_log.record import RequestLog
from service.request_reports import RequestReports
from service.request_sizes import size_of
from service.security.principal import authorize
from service.security.tls import Certificates
from service.security.tokens import TokenStore

DECODERS = 2
"""Threads that decompress and decode bodies, and encode responses."""
_INLINE_BYTES = 64 << 10
"""Larger bodies are decoded in a thread: a body of this size takes about a millisecond."""
GZIP = 31
"""zlib's number for gzip's header and checksum, with the largest window."""
GZIP_OR_ZLIB = 47
"""zlib's number for either header, with the largest window."""
_INLINE_GZIP_BYTES = 16 << 10
"""Maximum size of a gzip body that is decompressed on the event loop, up to `_INLINE_BYTES`."""
_STEP_BYTES = 1 << 20
"""Output per step of a decompression in a thread; limits are checked between steps."""
_INLINE_NUMBERS = 64 << 10
"""Larger responses are encoded in a thread: one of this size takes about 2 ms."""
_PIECES_PER_STEP = 16
"""Number of pieces of a response that are encoded at a time; limits are checked between steps."""

Returned = TypeVar("Returned")


class ByteBudget:
    """Bytes of bodies that a process holds, compressed and decompressed alike, and of what requests
    take beyond their bodies once they are decoded. Belongs to one event loop, so that it needs no
    lock.

    Attributes:
      held: The number of bytes now.
    """

    def __init__(self, settings: ServiceSettings, metrics: Metrics, turns: DecodeTurns) -> None:
        """Creates an empty budget; a request that holds nothing any more leaves its turn."""
        self._max_bytes = settings.max_inflight_bytes
        self._retry_after_s = settings.retry_after_s
        self._metrics = metrics
        self._turns = turns
        self.held = 0

    def reserve(self, context: RequestContext, size: int) -> None:
        """Counts bytes of a request, or of its response.

        Raises:
          Overloaded: There would be too many.
        """
        if self.held + size > self._max_bytes:
            self._metrics.call_rejected(context.call, context.model, "bytes")
            raise Overloaded(
                "the bodies of other requests use all the memory for bodies (max_inflight_bytes)",
                self._retry_after_s,
                "bytes",
            )
        self.held += size
        context.held_bytes += size

    def release(self, context: RequestContext, size: int | None = None) -> None:
        """Counts bytes of a request out; None: all that it holds, and its turn to be decoded."""
        if size is None:
            size = context.held_bytes
            if context.has_turn:
                self._turns.leave(context)
        self.held -= size
        context.held_bytes -= size


class Dataplane:
    """Decodes requests of either transport and has the engine compute them; all that the transports
    share.

    Attributes:
      engine: Computes the requests.
      problem: Returns why requests should not be sent here; "": they should.
      settings: The settings of the service.
      metrics: The metrics of the process.
      tokens: The tokens of clients; None: no token is required.
      certificates: The certificates of the endpoints; None: plain text.
      budget: The bytes of bodies that the process holds.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ServiceSettings,
        metrics: Metrics,
        request_log: RequestLog | None = None,
        certificates: Certificates | None = None,
        tracing: Tracing | None = None,
        problem: Callable[[], str] | None = None,
    ) -> None:
        """Creates the data plane of an engine.

        Args:
          engine: Computes the requests.
          settings: The settings of the service.
          metrics: The metrics of the process.
          request_log: Records successful requests that name no version; None: none is recorded.
          certificates: The certificates of the endpoints; None: plain text.
          tracing: Gets a span of each request; None: there are no spans.
          problem: Returns why requests should not be sent here; "": they should. None: the
            engine knows.
        """
        self.engine = engine
        self.descriptions = Descriptions(engine)
        self.problem = problem or (lambda: engine.problem)
        self.settings = settings
        self.metrics = metrics
        self._reports: RequestReports | None = None
        if settings.access_log or tracing is not None:
            self._reports = RequestReports(settings.access_log, tracing)
        self._request_log = request_log
        self.tokens = TokenStore.of(settings.tokens, root=settings.root)
        self.certificates = certificates
        self._decoders = ThreadPoolExecutor(DECODERS, "rowcast-decode")
        self._turns = DecodeTurns(self._decoders)
        self.budget = ByteBudget(settings, metrics, self._turns)

    async def offload(self, function: Callable[..., Returned], *args: Any) -> Returned:
        """Runs a function in the bounded pool of decoders; one that waits is dropped if its request
        is cancelled.
        """
        return await asyncio.get_running_loop().run_in_executor(self._decoders, function, *args)

    async def decode(
        self, read: Callable[[], Returned], size: int, context: RequestContext
    ) -> Returned:
        """Reads a body: a small one at once, a large one in a thread.

        A parser keeps the GIL: one large body at a time, with pauses for everything else.

        Args:
          read: Parses the body, and returns what it holds.
          size: The number of bytes of the body.
          context: The context of the request.

        Raises:
          ServiceError: The body cannot be read, or its request ended before its turn.
        """
        if size <= _INLINE_BYTES and not context.has_turn:
            return read()
        await self._turns.take(context)
        try:
            sized: tuple[Returned, int] = await self._turns.run(context, _read_with_size, read)
        finally:
            self._turns.leave(context)
        content, content_bytes = sized
        # Texts, and numbers that JSON wrote with one digit, take more than their bytes.
        self.budget.reserve(context, max(0, content_bytes - size))
        return content

    async def decompress(self, body: bytes, context: RequestContext, wbits: int = GZIP) -> bytes:
        """Decompresses one gzip member, or zlib stream, in steps: the output of each is reserved
        first. A large body is decompressed in the turn in which it is decoded, so that those that
        wait are compressed.

        Args:
          body: The compressed bytes, which the budget counts.
          context: The context of the request.
          wbits: GZIP or GZIP_OR_ZLIB.

        Raises:
          TooLarge: The output exceeds the limit.
          Overloaded: The bodies of other requests take all the memory.
          InvalidArgument: The body is not one whole member or stream.
          ServiceError: The request ended before its turn.
        """
        gzip = zlib.decompressobj(wbits)
        limit = self.settings.max_request_bytes
        steps = list[bytes]()
        size = 0
        compressed = body
        while not gzip.eof:
            is_inline = len(body) <= _INLINE_GZIP_BYTES and not steps
            step_bytes = _INLINE_BYTES
            if not is_inline:
                await self._turns.take(context)
                step_bytes = _STEP_BYTES
            # One byte beyond the limit shows that the body exceeds it.
            reserved = min(step_bytes, limit - size + 1)
            self.budget.reserve(context, reserved)
            try:
                if is_inline:
                    step = gzip.decompress(compressed, reserved)
                else:
                    step = await self._turns.run(context, gzip.decompress, compressed, reserved)
            except zlib.error:
                hint = "compress it, or leave content-encoding out"
                raise InvalidArgument.of_field("body", "not gzip", "gzip", hint=hint) from None
            # What the step did not need is returned.
            self.budget.release(context, reserved - len(step))
            size += len(step)
            compressed = gzip.unconsumed_tail
            if size > limit:
                size_text = f"{size} bytes or more decompressed"
                raise TooLarge.of_limit("body", size_text, limit, "max_request_bytes")
            if not step and not compressed and not gzip.eof:
                raise InvalidArgument.of_field("body", "truncated", "a whole body of gzip")
            steps.append(step)
        if gzip.unused_data:
            value = "more than one gzip member, or bytes after it"
            raise InvalidArgument.of_field("body", value, "one", "has")
        # The compressed body is no longer needed.
        self.budget.release(context, len(body))
        return b"".join(steps)

    def report_load(self) -> None:
        """Sets the metric of the decode turn, and logs one that takes long."""
        self._turns.report(self.metrics)

    async def call(
        self,
        operation: Exchange,
        body: bytes,
        is_protobuf: bool,
        target: Target | None,
        context: RequestContext,
        as_protobuf: bool = True,
    ) -> list[bytes]:
        """Executes a request.

        Args:
          operation: The call, or the exchange of another protocol.
          body: The request as sent, decompressed.
          is_protobuf: Whether the request is a protobuf message; else it is JSON. Other protocols
            distinguish their forms themselves: true for them, as is `as_protobuf`.
          target: The model and version in the URL; None: there is no URL.
          context: The context of the request, for which the bytes of a large response count in the
            byte budget.
          as_protobuf: Whether the response is a protobuf message.

        Returns:
          The response, a large one in several pieces.

        Raises:
          ServiceError: The request failed; `service/errors.py` lists the errors.
        """
        if target is None:
            # Before anything is decoded for a client that may not use the model. One that may not
            # use all of them has to name the model where it is found.
            context.model = operation.model_of(body)
            authorize(context.principal, context.model)
        self.engine.admit(context.call, context.deadline, context.model)
        try:
            began = time.perf_counter()
            read = partial(operation.read, body, is_protobuf, target, self.settings)
            try:
                request, is_list = await self.decode(read, len(body), context)
            except NoCondition as problem:
                if target is not None:
                    with self.engine.lease(target) as version:
                        check_attribute(version, problem.name, problem.path)
                raise
            request_target: Target = request.target
            context.phases["decode"] = time.perf_counter() - began

            # What could be read before parsing may be nothing. The decoded request decides.
            if target is None:
                context.model = request_target.model
                authorize(context.principal, request_target.model)
            result = await self.engine.execute(request, context)

            # Recorded requests are replayed to new versions, so that one that names its version is
            # of no use.
            request_log = self._request_log
            names_version = request_target.version is not None or bool(request_target.label)
            if request_log is not None and not names_version and request_log.samples():
                recorded = operation.recorded(request, is_protobuf, body)
                request_log.offer(result.model, *recorded)

            began = time.perf_counter()
            if as_protobuf or not isinstance(operation, Operation):
                pieces = [await self._encode_message(operation, result, context)]
            else:
                value = operation.write_json(result, is_list)
                pieces = await self._encode_json(value, result, context)
            context.phases["encode"] = time.perf_counter() - began
            return pieces
        except Exception as problem:
            # The frames of jobs refer to this error, as it does to them: with the request, both
            # would stay until the next garbage collection.
            clear_frames(problem.__traceback__)
            raise
        finally:
            self.engine.leave()

    def request_finished(
        self, transport: str, context: RequestContext, code: str, seconds: float
    ) -> None:
        """Reports a request that has ended.

        Args:
          transport: "http" or "grpc".
          context: The context of the request.
          code: "OK", or the value of a Code.
          seconds: The duration of the request.
        """
        self.metrics.request_finished(
            transport, context.call, context.model, code, seconds, context.phases
        )
        if self._reports is not None:
            model = self.metrics.known_model(context.model)
            self._reports.add(transport, context, model, code, seconds)

    def request_rejected(
        self, transport: str, call: str, model: str, code: str, request_id: str
    ) -> None:
        """Reports a request that was rejected before it was read.

        Args:
          transport: "http" or "grpc".
          call: The name of the call.
          model: The model as the client named it.
          code: The value of a Code.
          request_id: The id that the response carries.
        """
        self.metrics.request_rejected(transport, call, model, code)
        if self._reports is not None:
            model = self.metrics.known_model(model)
            self._reports.add_rejected(transport, call, model, code, request_id)

    async def _encode_message(
        self, operation: Exchange, result: Result, context: RequestContext
    ) -> bytes:
        if result.encoding_cost > _INLINE_NUMBERS:
            message = await self.offload(operation.write, result)
        else:
            message = operation.write(result)
        # Small responses are sent at once. Large ones are held until the client has read them.
        size = len(message)
        if size > json.PIECE_BYTES:
            self._check_response(size)
            self.budget.reserve(context, size)
        return message

    async def _encode_json(
        self, value: dict[str, Any], result: Result, context: RequestContext
    ) -> list[bytes]:
        if result.encoding_cost <= _INLINE_NUMBERS:
            return [json.dump(value)]
        pieces: list[bytes] = []
        size = 0
        pieces_left = json.dump_in_pieces(value)

        def encode_step() -> list[bytes]:
            return list(islice(pieces_left, _PIECES_PER_STEP))

        # The limits are checked while the response grows, before all of it is in memory.
        while step := await self.offload(encode_step):
            step_size = sum(map(len, step))
            size += step_size
            self._check_response(size)
            self.budget.reserve(context, step_size)
            pieces += step
        return pieces

    def _check_response(self, size: int) -> None:
        # The engine has estimated the size from the request and the model. Strings can be longer
        # than the average that it assumes.
        check_bytes(size, "longer values than usual", self.settings)

    def close(self) -> None:
        """Ends the decoders; what waits is dropped."""
        self._decoders.shutdown(wait=False, cancel_futures=True)


def _read_with_size(read: Callable[[], Returned]) -> tuple[Returned, int]:
    """Returns what `read` returns, and the memory that it takes."""
    content = read()
    return content, size_of(content)

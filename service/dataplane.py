"""The one way of a request behind both transports: admission, bounded decoding, permission, engine, recording."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from service.codec import json, protobuf
from service.codec.limits import Limits
from service.codec.operations import Operation
from service.config import ServiceSettings
from service.engine.context import RequestContext
from service.engine.engine import Engine
from service.engine.requests import Target
from service.errors import Overloaded
from service.observability.metrics import Metrics
from service.security.principal import authorize
from service.security.tls import Certificates
from service.security.tokens import TokenStore

DECODERS = 2
"""Bodies that are decoded at once beside the event loop; the others wait, compressed."""
_INLINE_BYTES = 64 << 10
"""Larger bodies are decoded in a thread: a body of this size takes about a millisecond."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Record = Callable[[str, str, bool, bytes], None]
"""Takes the model, the call, whether the body is protobuf, and the body of an answered request."""


class ByteBudget:
    """Bytes of request bodies that a process holds, compressed and decompressed alike. Belongs to one event loop."""

    def __init__(self, settings: ServiceSettings, metrics: Metrics) -> None:
        """Begins with none."""
        self._max_bytes, self._retry_after_s = settings.max_inflight_bytes, settings.retry_after_s
        self._metrics = metrics
        self.held = 0

    def reserve(self, size: int, call: str) -> None:
        """Counts bytes in for a call.

        Raises:
          Overloaded: that would be too many.
        """
        if self.held + size > self._max_bytes:
            self._metrics.rejected(call, "bytes")
            raise Overloaded("other requests' bodies take all the memory for bodies", self._retry_after_s, "bytes")
        self.held += size

    def release(self, size: int) -> None:
        """Counts bytes out."""
        self.held -= size


class Dataplane:
    """Decodes requests of either transport and has the engine answer them."""

    def __init__(
        self, engine: Engine, settings: ServiceSettings, metrics: Metrics, record: Record | None = None
    ) -> None:
        """Answers from an engine; `record` is given a request after its answer, unless it names a version."""
        self.engine, self._metrics, self._record = engine, metrics, record
        self.limits = Limits.of(settings)
        self.budget = ByteBudget(settings, metrics)
        self._decoders = ThreadPoolExecutor(DECODERS, "rowcast-decode")

    def check_admission(self, call: str, deadline: float) -> None:
        """Rejects a request before its body is read; see Engine.check_admission."""
        self.engine.check_admission(call, deadline)

    async def offload(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **_: Parameters.kwargs
    ) -> Result:
        """Runs a function in the bounded pool of decoders; one that waits is dropped if its request is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, function, *args)

    async def call(
        self, operation: Operation, body: bytes, is_protobuf: bool, target: Target, context: RequestContext
    ) -> tuple[Any, bool]:
        """Answers a request of HTTP.

        Returns:
          The answer, and whether it is to be written as a list of results.
        Raises:
          ServiceError: as the table of `service/errors.py` says.
        """

        def decode() -> tuple[Any, bool]:
            if is_protobuf:
                message = protobuf.parse(operation.request_class, body)
                return operation.read_message(message, target, self.limits), True
            return operation.read_json(json.parse(body, self.limits), target, self.limits)

        return await self._answer(decode, body, is_protobuf, context)

    async def call_message(self, operation: Operation, raw: bytes, context: RequestContext) -> Any:
        """Answers a request of gRPC by the bytes of its message; raises as `call`."""

        def decode() -> tuple[Any, bool]:
            return operation.read_message(protobuf.parse(operation.request_class, raw), None, self.limits), True

        answer, _ = await self._answer(decode, raw, True, context)
        return answer

    async def _answer(
        self, decode: Callable[[], tuple[Any, bool]], body: bytes, is_protobuf: bool, context: RequestContext
    ) -> tuple[Any, bool]:
        with self.engine.admit(context.call, context.deadline):
            began = time.perf_counter()
            request, several = await self.offload(decode) if len(body) > _INLINE_BYTES else decode()
            context.phases["decode"] = seconds = time.perf_counter() - began
            self._metrics.phase(context.call, "decode", seconds)
            target: Target = request.target
            authorize(context.principal, target.model)
            answer = await self.engine.execute(request, context)
            if self._record is not None and target.version is None and not target.label:
                self._record(answer.model, context.call, is_protobuf, body)
            return answer, several

    def close(self) -> None:
        """Ends the decoders; what waits is dropped."""
        self._decoders.shutdown(wait=False, cancel_futures=True)


@dataclass
class Readiness:
    """Whether load balancers should send requests here.

    Attributes:
      engine: tells why not, for as long as the service is not draining.
      draining: the service is shutting down; never unset.
    """

    engine: Engine
    draining: bool = False

    def problem(self) -> str:
        """Returns why requests should not be sent here; empty: they should."""
        return "the service is shutting down" if self.draining else self.engine.problem


@dataclass(frozen=True)
class Application:
    """What a worker process hands to its transports.

    Attributes:
      tokens: of clients; None: no token is required.
      certificates: of the endpoints; None: plain text.
    """

    settings: ServiceSettings
    dataplane: Dataplane
    metrics: Metrics
    readiness: Readiness
    tokens: TokenStore | None = None
    certificates: Certificates | None = None

    @property
    def engine(self) -> Engine:
        """The engine behind the data plane."""
        return self.dataplane.engine

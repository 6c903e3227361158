"""The path of a request behind both transports: admission, bounded decoding, permission, engine,
recording.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from service.codec.operations import Operation
from service.config import ServiceSettings
from service.engine.calls import Target
from service.engine.context import RequestContext
from service.engine.engine import Engine
from service.errors import Overloaded
from service.observability.metrics import Metrics
from service.request_log.record import RequestLog
from service.security.principal import authorize
from service.security.tls import Certificates
from service.security.tokens import TokenStore

DECODERS = 2
"""Bodies that are decoded at once beside the event loop; the others wait, compressed."""
_INLINE_BYTES = 64 << 10
"""Larger bodies are decoded in a thread: a body of this size takes about a millisecond."""

Result = TypeVar("Result")


class ByteBudget:
    """Bytes of request bodies that a process holds, compressed and decompressed alike. Belongs to
    one event loop.
    """

    def __init__(self, settings: ServiceSettings, metrics: Metrics) -> None:
        """Creates an empty budget."""
        self._max_bytes = settings.max_inflight_bytes
        self._retry_after_s = settings.retry_after_s
        self._metrics = metrics
        self.held = 0

    def reserve(self, size: int, call: str) -> None:
        """Counts bytes in for a call.

        Raises:
          Overloaded: that would be too many.
        """
        if self.held + size > self._max_bytes:
            self._metrics.count("rejected_requests", 1, call, "bytes")
            raise Overloaded(
                "the bodies of other requests use all the memory for bodies (max_inflight_bytes)",
                self._retry_after_s,
                "bytes",
            )
        self.held += size

    def release(self, size: int) -> None:
        """Counts bytes out."""
        self.held -= size


class Dataplane:
    """Decodes requests of either transport and has the engine answer them; all that the transports
    share.

    Attributes:
      tokens: of clients; None: no token is required.
      certificates: of the endpoints; None: plain text.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ServiceSettings,
        metrics: Metrics,
        request_log: RequestLog | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """Creates the data plane of an engine; requests that name no version are logged once
        answered.
        """
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self._request_log = request_log
        self.tokens = TokenStore.of(settings.tokens)
        self.certificates = certificates
        self.budget = ByteBudget(settings, metrics)
        self._decoders = ThreadPoolExecutor(DECODERS, "rowcast-decode")

    async def offload(self, function: Callable[..., Result], *args: Any) -> Result:
        """Runs a function in the bounded pool of decoders; one that waits is dropped if its request
        is cancelled.
        """
        return await asyncio.get_running_loop().run_in_executor(self._decoders, function, *args)

    async def call(
        self,
        operation: Operation,
        body: bytes,
        is_protobuf: bool,
        target: Target | None,
        context: RequestContext,
    ) -> tuple[Any, bool]:
        """Answers a request.

        Args:
          target: the URL's; None: there is no URL.
        Returns:
          The answer, and whether it is to be written as a list of results.
        Raises:
          ServiceError: as listed in `service/errors.py`.
        """
        model = "" if target is None else target.model
        if model:  # before anything is decoded for a client that may not use the model
            authorize(context.principal, model)
        with self.engine.admit(context.call, context.deadline, model):
            began = time.perf_counter()
            to_read = (body, is_protobuf, target, self.settings)
            large = len(body) > _INLINE_BYTES
            if large:
                request, several = await self.offload(operation.read, *to_read)
            else:
                request, several = operation.read(*to_read)
            context.phases["decode"] = seconds = time.perf_counter() - began
            self.metrics.observe("phase_seconds", seconds, context.call, "decode")
            wanted: Target = request.target
            authorize(context.principal, wanted.model)
            answer = await self.engine.execute(request, context)
            if self._request_log is not None and wanted.version is None and not wanted.label:
                self._request_log.offer(answer.model, context.call, is_protobuf, body)
            return answer, several

    def close(self) -> None:
        """Ends the decoders; what waits is dropped."""
        self._decoders.shutdown(wait=False, cancel_futures=True)

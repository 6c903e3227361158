"""The bytes of request and response bodies that a process holds, and how many it may hold."""

from __future__ import annotations

from service.config import ServiceSettings
from service.engine.context import RequestContext
from service.errors import Overloaded
from service.observability.metrics import Metrics


class ByteBudget:
    """Bytes of bodies that a process holds, compressed and decompressed alike. Belongs to one
    event loop.
    """

    def __init__(self, settings: ServiceSettings, metrics: Metrics) -> None:
        """Creates an empty budget."""
        self._max_bytes = settings.max_inflight_bytes
        self._retry_after_s = settings.retry_after_s
        self._metrics = metrics
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
        """Counts bytes of a request out; None: all that it holds."""
        if size is None:
            size = context.held_bytes
        self.held -= size
        context.held_bytes -= size

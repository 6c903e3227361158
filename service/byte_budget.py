"""The bytes of request and response bodies that a process holds, and how many it may hold."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from service.config import ServiceSettings
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

    def reservation(self, call: str, model: str = "") -> Reservation:
        """Returns an empty reservation for one request; `model`: "" if it is not known yet."""
        return Reservation(self, call, model)

    def reserve(self, size: int, call: str, model: str) -> None:
        """Counts bytes in for a call.

        Raises:
          Overloaded: There would be too many.
        """
        if self.held + size > self._max_bytes:
            self._metrics.call_rejected(call, model, "bytes")
            raise Overloaded(
                "the bodies of other requests use all the memory for bodies (max_inflight_bytes)",
                self._retry_after_s,
                "bytes",
            )
        self.held += size

    def release(self, size: int) -> None:
        """Counts bytes out."""
        self.held -= size


class Reservation:
    """The bytes that one request holds, released when the `with` block ends."""

    def __init__(self, budget: ByteBudget, call: str, model: str) -> None:
        self._budget = budget
        self._call = call
        self._model = model
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release_all()

    def reserve(self, size: int) -> None:
        """Counts bytes in; raises Overloaded if there would be too many."""
        self._budget.reserve(size, self._call, self._model)
        self._held += size

    def release(self, size: int) -> None:
        """Counts bytes out."""
        self._budget.release(size)
        self._held -= size

    def release_all(self) -> None:
        """Counts out everything that is still held."""
        self.release(self._held)

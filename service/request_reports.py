"""What an operator can have reported of every request: a line of the access log, and a span."""

from __future__ import annotations

from service.engine.context import RequestContext
from service.errors import Code
from service.observability import logging
from service.observability.tracing import Tracing

_log = logging.logger(__name__)

_NAME_CHARS_MAX = 80
"""Of the name of a model, which a client can make up."""
_FAULTS = frozenset({Code.INTERNAL.value, Code.DATA_LOSS.value, Code.NOT_READY.value})
"""Failures of the service, not of its client."""


class RequestReports:
    """Reports requests of either transport as they end."""

    def __init__(self, access_log: bool, tracing: Tracing | None) -> None:
        """Begins with no request.

        Args:
          access_log: Whether each request is a line of the log.
          tracing: None: requests have no spans.
        """
        self._access_log = access_log
        self._tracing = tracing

    def add(self, transport: str, context: RequestContext, code: str, seconds: float) -> None:
        """Reports a request.

        Args:
          transport: "http" or "grpc".
          code: "OK", or the value of a Code.
          seconds: The duration of the request.
        """
        if self._access_log:
            extra = logging.fields(
                transport=transport,
                call=context.call,
                model=context.model[:_NAME_CHARS_MAX],
                version=context.version,
                code=code,
                ms=round(seconds * 1000, 3),
                request_id=context.request_id,
            )
            extra = logging.unlimited(extra)
            _log.info("request", extra=extra)
        if self._tracing is not None:
            self._add_span(self._tracing, transport, context, code, seconds)

    def add_rejected(
        self, transport: str, call: str, model: str, code: str, request_id: str
    ) -> None:
        """Reports a request that was rejected before it was read: it has no duration and no span.

        Args:
          transport, code: As in `add`.
          call: The call.
          model: As the client named it.
          request_id: The id that the response carries.
        """
        if self._access_log:
            extra = logging.fields(
                transport=transport,
                call=call,
                model=model[:_NAME_CHARS_MAX],
                code=code,
                request_id=request_id,
            )
            extra = logging.unlimited(extra)
            _log.info("request", extra=extra)

    def _add_span(
        self, tracing: Tracing, transport: str, context: RequestContext, code: str, seconds: float
    ) -> None:
        attributes: dict[str, str | int | float] = {
            "rowcast.transport": transport,
            "rowcast.model": context.model[:_NAME_CHARS_MAX],
            "rowcast.version": context.version,
            "rowcast.code": code,
            "rowcast.request_id": context.request_id,
        }
        for phase, phase_s in context.phases.items():
            attributes[f"rowcast.{phase}_ms"] = round(phase_s * 1000, 3)
        tracing.add(context.call, context.trace_parent, seconds, attributes, code in _FAULTS)

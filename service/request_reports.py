"""Reports of every request that an operator can enable: a line of the access log, and a span."""

from __future__ import annotations

from service.engine.context import RequestContext
from service.errors import Code
from service.observability import logging
from service.observability.tracing import Tracing

_log = logging.logger(__name__)

_FAULTS = frozenset({Code.INTERNAL.value, Code.DATA_LOSS.value, Code.NOT_READY.value})
"""Codes of failures that are the service's fault, not its client's."""


class RequestReports:
    """Reports requests of either transport as they end."""

    def __init__(self, access_log: bool, tracing: Tracing | None) -> None:
        """Begins with no request.

        Args:
          access_log: Whether each request is a line of the log.
          tracing: Sends the spans; None: requests have no spans.
        """
        self._access_log = access_log
        self._tracing = tracing

    def add(
        self, transport: str, context: RequestContext, model: str, code: str, seconds: float
    ) -> None:
        """Reports a request.

        Args:
          transport: "http" or "grpc".
          context: The context of the request.
          model: The name of the model if it exists, else "".
          code: "OK", or the value of a Code.
          seconds: The duration of the request.
        """
        if self._access_log:
            extra = logging.fields(
                transport=transport,
                call=context.call,
                model=model,
                version=context.version,
                code=code,
                ms=round(seconds * 1000, 3),
                request_id=context.request_id,
            )
            # An access log is complete: the limit of lines per event would leave requests out.
            extra = logging.unlimited(extra)
            _log.info("request", extra=extra)
        if self._tracing is not None:
            self._add_span(self._tracing, transport, context, model, code, seconds)

    def add_rejected(
        self, transport: str, call: str, model: str, code: str, request_id: str
    ) -> None:
        """Reports a request that was rejected before it was read: it has no duration and no span.

        Args:
          transport: "http" or "grpc".
          call: The name of the call.
          model: The name of the model if it exists, else "".
          code: The value of a Code.
          request_id: The id that the response carries.
        """
        if self._access_log:
            extra = logging.fields(
                transport=transport,
                call=call,
                model=model,
                code=code,
                request_id=request_id,
            )
            extra = logging.unlimited(extra)
            _log.info("request", extra=extra)

    def _add_span(
        self,
        tracing: Tracing,
        transport: str,
        context: RequestContext,
        model: str,
        code: str,
        seconds: float,
    ) -> None:
        attributes: dict[str, str | int | float] = {
            "rowcast.transport": transport,
            "rowcast.model": model,
            "rowcast.version": context.version,
            "rowcast.code": code,
            "rowcast.request_id": context.request_id,
        }
        for phase, phase_s in context.phases.items():
            attributes[f"rowcast.{phase}_ms"] = round(phase_s * 1000, 3)
        tracing.add(context.call, context.trace_parent, seconds, attributes, code in _FAULTS)

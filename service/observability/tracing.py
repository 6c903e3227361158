"""Traces of requests for an OpenTelemetry collector.

Each request is one span, which continues the trace of its `traceparent`. The variables of the
OpenTelemetry SDK (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`)
configure where spans go, and which.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping

_SERVICE_NAME = "rowcast"
_CLOSE_TIMEOUT_S = 2.0
"""Time in which the spans that wait must be sent when the process ends."""


class TracingUnavailable(Exception):
    """The packages that send traces are not installed."""


def require_packages() -> None:
    """Raises TracingUnavailable if the packages are not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError as problem:
        raise TracingUnavailable("pip install 'rowcast[otel]' installs them") from problem


class Tracing:
    """Sends the spans of one process, in batches, in a thread of its own."""

    def __init__(self) -> None:
        """Starts the thread.

        Raises:
          TracingUnavailable: The extra `otel` is not installed.
        """
        require_packages()
        # Imported here, since the packages are an extra.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        name = os.environ.get("OTEL_SERVICE_NAME", _SERVICE_NAME)
        # The SDK's own hook at exit would wait for a collector that cannot be reached.
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("rowcast")
        self._propagator = TraceContextTextMapPropagator()

    def add(
        self,
        name: str,
        trace_parent: str,
        seconds: float,
        attributes: Mapping[str, str | int | float],
        is_failed: bool,
    ) -> None:
        """Adds the span of a request that has just ended.

        Args:
          name: The call.
          trace_parent: The header `traceparent` that the client sent. If it is empty or malformed,
            the span begins a trace.
          seconds: The duration of the request.
          attributes: The attributes of the span.
          is_failed: Whether the service, not its client, is to blame for a failure.
        """
        from opentelemetry.trace import SpanKind, StatusCode

        end_ns = time.time_ns()
        span = self._tracer.start_span(
            name,
            context=self._propagator.extract({"traceparent": trace_parent}),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=end_ns - int(seconds * 1e9),
        )
        if is_failed:
            span.set_status(StatusCode.ERROR)
        span.end(end_ns)

    def close(self) -> None:
        """Sends the spans that wait, if the collector takes them in time."""
        # A collector that cannot be reached must not delay the end of the process.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)

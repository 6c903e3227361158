"""Spans of requests reach a collector, an HTTP server of this test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import httpx
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is missing")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.grpc_api.requests import call, retrieve
from tests.units.service.running import RunningService

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACE_PARENT = f"00-{TRACE}-{PARENT}-01"


class Collector:
    """Receives spans over OTLP."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever).start()

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    yield collector
    collector.close()


def attributes_of(span: Span) -> dict[str, Any]:
    span_attributes = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        span_attributes[attribute.key] = getattr(attribute.value, kind)
    return span_attributes


@pytest.fixture
def service(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], collector: Collector
) -> RunningService:
    write()
    return serve(tracing=True)


def test_span_continues_the_trace_and_tells_model_version_and_phases(
    service: RunningService, collector: Collector
) -> None:
    url = f"{service.http}/v1/models/movies:retrieve"
    body = {"context": {"user": 1}, "k": 2}
    response = httpx.post(url, json=body, headers={"traceparent": TRACE_PARENT})
    assert response.status_code == 200

    until(lambda: len(collector.spans) == 1)
    (span,) = collector.spans
    assert (span.name, span.kind) == ("retrieve", Span.SPAN_KIND_SERVER)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.start_time_unix_nano < span.end_time_unix_nano
    assert span.status.code == Status.STATUS_CODE_UNSET
    span_attributes = attributes_of(span)
    assert span_attributes["rowcast.transport"] == "http"
    assert span_attributes["rowcast.model"] == "movies"
    assert span_attributes["rowcast.version"] == 1
    assert span_attributes["rowcast.code"] == "OK"
    assert span_attributes["rowcast.request_id"] == response.headers["x-request-id"]
    assert span_attributes["rowcast.search_ms"] > 0
    (resource,) = collector.requests[0].resource_spans
    named = {
        attribute.key: attribute.value.string_value for attribute in resource.resource.attributes
    }
    assert named["service.name"] == "rowcast"


def test_span_of_a_failed_grpc_call_has_its_code_and_nothing_that_the_client_sent(
    service: RunningService, collector: Collector
) -> None:
    request = retrieve("movies")
    request.context["secret"].CopyFrom(request.context.pop("user"))
    with grpc.insecure_channel(service.grpc) as channel:
        failed = call(channel, "Retrieve", request, metadata=[("traceparent", "malformed")])
        assert failed.code == "INVALID_ARGUMENT"

    until(lambda: len(collector.spans) == 1)
    (span,) = collector.spans
    assert span.parent_span_id == b""
    assert attributes_of(span)["rowcast.code"] == "INVALID_ARGUMENT"
    assert span.status.code == Status.STATUS_CODE_UNSET  # the client is to blame
    assert not span.events
    assert b"secret" not in collector.requests[0].SerializeToString()


def test_spans_that_wait_are_sent_when_the_service_ends(
    write: Callable[..., SmallBundle],
    serve: Callable[..., RunningService],
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    write()
    service = serve(tracing=True)
    assert httpx.get(f"{service.http}/v1/models").status_code == 200
    assert collector.spans == []
    service.close()
    assert [span.name for span in collector.spans] == ["models"]

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


def test_spans_continue_the_trace_and_tell_what_served_a_request_and_nothing_it_sent(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], collector: Collector
) -> None:
    write()
    service = serve(tracing=True)
    url = f"{service.http}/v1/models/movies:retrieve"
    body = {"context": {"user": 1}, "k": 2}
    response = httpx.post(url, json=body, headers={"traceparent": TRACE_PARENT}, verify=False)
    until(lambda: len(collector.spans) == 1)
    request = retrieve("movies")
    request.context["secret"].CopyFrom(request.context.pop("user"))
    with grpc.insecure_channel(service.grpc) as channel:
        failed = call(channel, "Retrieve", request, metadata=[("traceparent", "malformed")])
        assert failed.code == "INVALID_ARGUMENT"
    until(lambda: len(collector.spans) == 2)
    span, of_failure = collector.spans
    assert (span.name, span.kind) == ("retrieve", Span.SPAN_KIND_SERVER)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.start_time_unix_nano < span.end_time_unix_nano
    attributes = attributes_of(span)
    assert attributes.pop("rowcast.search_ms") > 0
    expected = {
        "transport": "http",
        "model": "movies",
        "version": 1,
        "code": "OK",
        "request_id": response.headers["x-request-id"],
    }
    assert {
        f"rowcast.{name}": value for name, value in expected.items()
    }.items() <= attributes.items()
    resource = collector.requests[0].resource_spans[0].resource.attributes
    named = {attribute.key: attribute.value.string_value for attribute in resource}
    assert named["service.name"] == "rowcast"

    assert (of_failure.parent_span_id, len(of_failure.events)) == (b"", 0)
    assert attributes_of(of_failure)["rowcast.code"] == "INVALID_ARGUMENT"
    # The client is to blame.
    assert span.status.code == of_failure.status.code == Status.STATUS_CODE_UNSET
    assert b"secret" not in collector.requests[1].SerializeToString()

"""What every request over HTTP gets: an id, a deadline, one form of errors, and a cancellation."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import INTERNAL_MESSAGE
from tests.e2e.process import until
from tests.units.service.http.clients import (
    BODY,
    PROTOBUF,
    RETRIEVE,
    connected,
    error_of,
    head,
    one_in_progress,
)
from tests.units.service.running import FailingTower, RunningService, log_lines

RESET = struct.pack("ii", 1, 0)


def test_request_id_is_used_or_replaced(http: httpx.Client) -> None:
    def id_of(**headers: str) -> str:
        return http.post(RETRIEVE, json=BODY, headers=headers).headers["x-request-id"]

    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert id_of(**{"x-request-id": "order-17"}) == "order-17"
    assert id_of(traceparent=f"00-{trace}-00f067aa0ba902b7-01") == trace
    assert re.fullmatch("[0-9a-f]{32}", id_of(**{"x-request-id": "a b;c"}))


@pytest.mark.parametrize("path", [RETRIEVE, "/v1/models/books:retrieve", "/v1/models/books"])
def test_failed_request_is_logged_with_its_model_and_reason(path: str, http: httpx.Client) -> None:
    with log_lines() as written:
        if path.endswith("retrieve"):
            http.post(path, json={**BODY, "k": -1})
        else:
            http.get(path)
    failed = json.loads(written.getvalue().splitlines()[-1])
    # What a client sent is not logged, and so neither is a name that no model has.
    expected = "movies" if path == RETRIEVE else ""
    assert (failed["event"], failed["model"]) == ("request_failed", expected)
    if path == RETRIEVE:
        assert failed["reason"].startswith("k: 1 to 1000 (max_k)")
    else:
        assert "books" not in json.dumps(failed)


def test_time_of_a_request_begins_when_its_body_has_arrived(
    serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    service = serve(body_timeout_s=30)
    sent_s = 3.0
    text = json.dumps(BODY).encode()
    with connected(service) as connection:
        connection.sendall(head(len(text)) + text[:5])
        time.sleep(sent_s)  # a client that sends slowly
        connection.sendall(text[5:])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    service.worker.metrics.flush()
    labels = {"transport": "http", "call": "retrieve"}
    assert service.value("rowcast_request_seconds_count", **labels) == 1
    assert service.value("rowcast_request_seconds_sum", **labels) < sent_s


def test_timeout_of_the_client_is_the_deadline(http: httpx.Client) -> None:
    response = http.post(RETRIEVE, json=BODY, headers={"x-request-timeout-ms": "0"})
    assert response.status_code in {429, 504}
    assert (
        http.post(RETRIEVE, json=BODY, headers={"x-request-timeout-ms": "60000"}).status_code == 200
    )


def test_failure_of_a_protobuf_call_is_an_error_details_message(http: httpx.Client) -> None:
    response = http.post("/v1/models/songs:retrieve", content=b"", headers=PROTOBUF)
    details = pb.ErrorDetails.FromString(response.content)
    assert (response.status_code, details.code) == (404, pb.ERROR_CODE_NOT_FOUND)
    assert details.request_id == response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", RETRIEVE, "POST"),
        ("GET", RETRIEVE, "POST"),
        ("GET", "/v1/models/movies/versions/1:rank", "POST"),
        ("POST", "/v1/models/movies", "GET"),
    ],
)
def test_other_method_is_405_and_names_the_allowed_one(
    method: str, path: str, allowed: str, http: httpx.Client
) -> None:
    response = http.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    assert error_of(response)["code"] == "INVALID_ARGUMENT"


def test_bug_is_hidden_from_the_client_and_logged(
    serve: Callable[..., RunningService], write: Any
) -> None:
    write()
    service = serve()
    service.with_network("query", FailingTower(service.waiting()))
    with log_lines() as lines:
        response = httpx.post(service.http + RETRIEVE, json=BODY)
    assert (response.status_code, error_of(response)["message"]) == (500, INTERNAL_MESSAGE)
    assert "secret of the tower" in lines.getvalue()
    assert lines.getvalue().count('"level":"error"') == 1


def test_overloaded_service_rejects_with_retry_after(
    serve: Callable[..., RunningService], write: Any
) -> None:
    write()
    service = serve(max_concurrent_requests=1, inline_max_us=0, retry_after_s=1.5)
    with one_in_progress(service), connected(service) as connection:
        connection.sendall(head(1000, "x-request-id: first"))  # its body never comes
        response = connection.recv(1 << 16).decode()
        assert response.startswith("HTTP/1.1 429 ")
        assert "\r\nretry-after: 2\r\n" in response
        assert "connection: close" not in response
        assert httpx.get(service.http + "/livez").status_code == 200
    assert httpx.post(service.http + RETRIEVE, json=BODY).status_code == 200


def test_client_that_hangs_up_is_cancelled(
    serve: Callable[..., RunningService], write: Any
) -> None:
    write()
    service = serve(inline_max_us=0)

    def cancelled() -> float:
        return service.value(
            "rowcast_requests_total", transport="http", call="retrieve", code="CANCELLED"
        )

    body = json.dumps(BODY).encode()
    with log_lines() as written, one_in_progress(service):
        for number, traceparent in enumerate(
            (head(len(body)) + body, head(100)), 1
        ):  # with a whole body, and without
            with connected(service) as connection:
                connection.sendall(traceparent)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                if number == 1:
                    until(lambda: service.dataplane.engine.inflight == 2)
            until(lambda number=number: cancelled() == number)  # type: ignore[misc]
    assert '"code":"CANCELLED"' in written.getvalue()
    assert '"traceback"' not in written.getvalue()


def test_draining_service_closes_connections_after_their_responses(
    serve: Callable[..., RunningService], write: Any
) -> None:
    write()
    service = serve(drain_delay_s=2)
    with httpx.Client(base_url=service.http) as client:
        assert "connection" not in client.get("/livez").headers
        service.drain()
        until(lambda: client.get("/readyz").status_code == 503)
        response = client.post(RETRIEVE, json=BODY)
    assert (response.status_code, response.headers["connection"]) == (200, "close")


def test_requests_are_counted_by_call_and_code(http: httpx.Client, service: RunningService) -> None:
    keys = [
        ("models", "OK"),
        ("model", "INVALID_ARGUMENT"),
        ("embed", "INVALID_ARGUMENT"),
        ("other", "NOT_FOUND"),
    ]

    def counts() -> list[float]:
        return [
            service.value("rowcast_requests_total", transport="http", call=call, code=code)
            for call, code in keys
        ]

    before = counts()
    for path in ("/v1/models", "/v1/models/movies/versions/x", "/nowhere"):
        http.get(path)
    http.post("/v1/models/movies:embed", json={"towers": 1})
    assert counts() == [count + 1 for count in before]

"""The five calls over HTTP, on a real socket."""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import INTERNAL_MESSAGE
from tests.e2e.process import until
from tests.service.http.clients import (
    BODY,
    PROTOBUF,
    RETRIEVE,
    connected,
    error_of,
    head,
    one_in_progress,
)
from tests.service.running import FailingTower, RunningService, log_lines

BODIES: dict[str, Any] = {
    "retrieve": BODY,
    "rank": {"context": {"user": 7}, "candidates": [1000, 1007]},
    "recommend": {"k": 2, "features": {"user": 7}},
    "embed": {"tower": "query", "features": {"user": 7}},
    "lookup": {"feature": "user", "ids": [7]},
}
RESET = struct.pack("ii", 1, 0)
USER = pb.Column(int64s=(7).to_bytes(8, "little"))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    "path", ["/v1/models/movies", "/v1/models/movies/versions/1", "/v1/models/%6Dovies"]
)
def test_call_by_json_is_answered_by_json(name: str, path: str, http: httpx.Client) -> None:
    answer = http.post(f"{path}:{name}", json=BODIES[name])
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert (answer.json()["model"], answer.json()["version"]) == ("movies", 1)
    assert re.match(r"decode;dur=[\d.]+, ", answer.headers["server-timing"])
    assert "encode;dur=" in answer.headers["server-timing"]


def test_call_by_protobuf_is_answered_by_protobuf(http: httpx.Client) -> None:
    body = pb.LookupRequest(feature="user", ids=USER).SerializeToString()
    answer = http.post("/v1/models/movies/versions/1:lookup", content=body, headers=PROTOBUF)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-protobuf")
    assert pb.LookupResponse.FromString(answer.content).table == "users"


def test_call_with_accept_is_answered_in_the_first_known_form(http: httpx.Client) -> None:
    accept = {"accept": "application/x-protobuf;q=0.9, application/json"}
    assert (
        pb.RetrieveResponse.FromString(
            http.post(RETRIEVE, json=BODY, headers=accept).content
        ).searched
        == 40
    )
    body = pb.RetrieveRequest(k=2, features={"user": USER}).SerializeToString()
    accept = {"accept": "*/*, application/json, application/x-protobuf"}
    assert (
        len(
            http.post(RETRIEVE, content=body, headers=PROTOBUF | accept).json()["results"][0][
                "neighbors"
            ]
        )
        == 2
    )


@pytest.mark.parametrize(
    "kind", [None, "application/x-www-form-urlencoded", "Application/JSON; charset=utf-8"]
)
def test_call_without_a_type_or_with_that_of_curl_is_read_as_json(
    kind: str | None, http: httpx.Client
) -> None:
    answer = http.post(
        RETRIEVE, content=json.dumps(BODY), headers={"content-type": kind} if kind else {}
    )
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


def test_request_id_is_used_or_replaced(http: httpx.Client) -> None:
    def id_of(**headers: str) -> str:
        return http.post(RETRIEVE, json=BODY, headers=headers).headers["x-request-id"]

    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert id_of(**{"x-request-id": "order-17"}) == "order-17"
    assert id_of(traceparent=f"00-{trace}-00f067aa0ba902b7-01") == trace
    assert re.fullmatch("[0-9a-f]{32}", id_of(**{"x-request-id": "a b;c"}))


def test_timeout_of_the_client_is_the_deadline(http: httpx.Client) -> None:
    answer = http.post(RETRIEVE, json=BODY, headers={"x-request-timeout-ms": "0"})
    assert answer.status_code in {429, 504}
    assert (
        http.post(RETRIEVE, json=BODY, headers={"x-request-timeout-ms": "60000"}).status_code == 200
    )


@pytest.mark.parametrize(
    ("path", "options", "status", "message"),
    [
        (RETRIEVE, {"content": b"{"}, 400, "JSON"),
        (RETRIEVE, {"content": b'{"k": "\xff"}'}, 400, "JSON"),
        (RETRIEVE, {"json": {"kk": 1}}, 400, "did you mean 'k'"),
        (
            RETRIEVE,
            {"json": BODY, "headers": {"content-type": "text/plain"}},
            400,
            "application/x-protobuf",
        ),
        (RETRIEVE, {"json": BODY, "headers": {"content-encoding": "br"}}, 400, "gzip or none"),
        (RETRIEVE, {"json": BODY, "headers": {"content-encoding": "gzip"}}, 400, "not gzip"),
        (
            RETRIEVE,
            {"json": BODY, "headers": [("content-encoding", "gzip")] * 2},
            400,
            "gzip or none",
        ),
        (
            RETRIEVE,
            {"json": BODY, "headers": {"x-request-timeout-ms": "soon"}},
            400,
            "x-request-timeout-ms is 'soon'",
        ),
        (
            RETRIEVE,
            {"json": BODY, "headers": [("x-request-timeout-ms", "9")] * 2},
            400,
            "timeout-ms is '9, 9'",
        ),
        (RETRIEVE, {"json": BODY | {"attributes": ["title"] * 5}}, 413, "at most 4"),
        (RETRIEVE, {"json": {"requests": [{"features": {"user": 1}}] * 9}}, 413, "at most 8"),
        ("/v1/models/movies/versions/x:retrieve", {"json": BODY}, 400, "version is 'x'"),
        ("/v1/models/movies/versions/0:retrieve", {"json": BODY}, 404, "0"),
        (
            f"/v1/models/movies/versions/{'9' * 5000}:retrieve",
            {"json": BODY},
            400,
            "positive integer",
        ),
        ("/v1/models/movies/versions/2:retrieve", {"json": BODY}, 404, "2"),
        ("/v1/models/movies/labels/stable:retrieve", {"json": BODY}, 404, "stable"),
        ("/v1/models/songs:retrieve", {"json": BODY}, 404, "songs"),
        ("/v1/models/movies:retreive", {"json": BODY}, 404, "calls are retrieve, rank"),
        ("/v1/nothing", {"json": BODY}, 404, "/docs lists the paths"),
        (RETRIEVE + "/", {"json": BODY}, 404, "/docs lists the paths"),
        (
            RETRIEVE,
            {"content": b"\xff\xff", "headers": {**PROTOBUF, "accept": "application/json"}},
            400,
            "protobuf",
        ),
        (RETRIEVE, {"content": bytes(4097)}, 413, "at most 4096"),
        (
            RETRIEVE,
            {"content": gzip.compress(bytes(10**6)), "headers": {"content-encoding": "gzip"}},
            413,
            "4096",
        ),
        (
            RETRIEVE,
            {"content": gzip.compress(b"{}")[:-3], "headers": {"content-encoding": "gzip"}},
            400,
            "truncated",
        ),
        (
            RETRIEVE,
            {"content": gzip.compress(b"{}") * 2, "headers": {"content-encoding": "gzip"}},
            400,
            "one gzip",
        ),
    ],
)
def test_bad_request_is_rejected_in_the_one_form(
    path: str,
    options: dict[str, Any],
    status: int,
    message: str,
    http: httpx.Client,
    service: RunningService,
) -> None:
    answer = http.post(path, **options)
    assert answer.status_code == status
    assert message in error_of(answer)["message"]
    assert http.post(RETRIEVE, json=BODY).status_code == 200
    assert service.dataplane.budget.held == 0


def test_failure_of_a_protobuf_call_is_an_error_details_message(http: httpx.Client) -> None:
    answer = http.post("/v1/models/songs:retrieve", content=b"", headers=PROTOBUF)
    details = pb.ErrorDetails.FromString(answer.content)
    assert (answer.status_code, details.code) == (404, "NOT_FOUND")
    assert details.request_id == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("DELETE", RETRIEVE, "POST"), ("POST", "/v1/models/movies", "GET")],
)
def test_other_method_is_405_and_names_the_allowed_one(
    method: str, path: str, allowed: str, http: httpx.Client
) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert error_of(answer)["code"] == "INVALID_ARGUMENT"


def test_bug_is_hidden_from_the_client_and_logged(
    serve: Callable[..., RunningService], write: Any
) -> None:
    write()
    service = serve()
    service.with_network("query", FailingTower(service.waiting()))
    with log_lines() as lines:
        answer = httpx.post(service.http + RETRIEVE, json=BODY)
    assert (answer.status_code, error_of(answer)["message"]) == (500, INTERNAL_MESSAGE)
    assert "secret of the tower" in lines.getvalue()
    assert lines.getvalue().count('"level":"error"') == 1


def test_overloaded_service_rejects_with_retry_after(
    serve: Callable[..., RunningService], write: Any
) -> None:
    write()
    service = serve(max_concurrent_requests=1, inline_max_us=0, retry_after_s=1.5)
    with one_in_progress(service), connected(service) as connection:
        connection.sendall(head(1000, "x-request-id: first"))  # its body never comes
        answer = connection.recv(1 << 16).decode()
        assert answer.startswith("HTTP/1.1 429 ")
        assert "\r\nretry-after: 2\r\n" in answer
        assert "connection: close" not in answer
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
    with one_in_progress(service):
        for number, sent in enumerate(
            (head(len(body)) + body, head(100)), 1
        ):  # with a whole body, and without
            with connected(service) as connection:
                connection.sendall(sent)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                if number == 1:
                    until(lambda: service.dataplane.engine.inflight == 2)
            until(lambda number=number: cancelled() == number)  # type: ignore[misc]


def test_draining_service_closes_connections_behind_their_answers(
    serve: Callable[..., RunningService], write: Any
) -> None:
    write()
    service = serve(drain_delay_s=2)
    with httpx.Client(base_url=service.http) as client:
        assert "connection" not in client.get("/livez").headers
        service.drain()
        until(lambda: client.get("/readyz").status_code == 503)
        answer = client.post(RETRIEVE, json=BODY)
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")

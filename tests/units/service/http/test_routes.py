"""The endpoints over HTTP, on a real socket: calls, models, health and metrics."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from tests.units.service.http.clients import (
    BODY,
    PROTOBUF,
    RETRIEVE,
    connected,
    error_of,
    received,
)
from tests.units.service.running import RunningService, log_lines

BODIES: dict[str, Any] = {
    "retrieve": BODY,
    "rank": {"context": {"user": 7}, "candidate_ids": [1000, 1007]},
    "recommend": {"k": 2, "context": {"user": 7}},
    "embed": {"tower": "query", "features": {"user": 7}},
    "lookup": {"feature": "user", "ids": [7]},
}
USER = pb.Column(int64s=(7).to_bytes(8, "little"))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    "path", ["/v1/models/movies", "/v1/models/movies/versions/1", "/v1/models/%6Dovies"]
)
def test_call_by_json_returns_json(name: str, path: str, http: httpx.Client) -> None:
    response = http.post(f"{path}:{name}", json=BODIES[name])
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert (response.json()["model"], response.json()["version"]) == ("movies", 1)
    assert re.match(r"decode;dur=[\d.]+, ", response.headers["server-timing"])
    assert "encode;dur=" in response.headers["server-timing"]


def test_call_by_protobuf_returns_protobuf(http: httpx.Client) -> None:
    body = pb.LookupRequest(feature="user", ids=USER).SerializeToString()
    response = http.post("/v1/models/movies/versions/1:lookup", content=body, headers=PROTOBUF)
    assert (response.status_code, response.headers["content-type"]) == (
        200,
        "application/x-protobuf",
    )
    assert pb.LookupResponse.FromString(response.content).table == "users"


def test_call_with_accept_returns_the_type_that_it_prefers(http: httpx.Client) -> None:
    accept = {"accept": "application/json;q=0.8, application/x-protobuf;q=0.9, */*"}
    assert (
        pb.RetrieveResponse.FromString(
            http.post(RETRIEVE, json=BODY, headers=accept).content
        ).searched
        == 40
    )
    body = pb.RetrieveRequest(k=2, context={"user": USER}).SerializeToString()
    accept = {"accept": "*/*, application/x-protobuf;q=0, application/json, application/protobuf"}
    assert (
        len(
            http.post(RETRIEVE, content=body, headers=PROTOBUF | accept).json()["results"][0]["ids"]
        )
        == 2
    )


@pytest.mark.parametrize("kind", [None, "Application/JSON; charset=utf-8"])
def test_call_without_a_type_is_read_as_json(kind: str | None, http: httpx.Client) -> None:
    response = http.post(
        RETRIEVE, content=json.dumps(BODY), headers={"content-type": kind} if kind else {}
    )
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")


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
        (RETRIEVE, {"json": {"requests": [{"context": {"user": 1}}] * 9}}, 413, "at most 8"),
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
def test_bad_request_returns_the_error_body(
    path: str,
    options: dict[str, Any],
    status: int,
    message: str,
    http: httpx.Client,
    service: RunningService,
) -> None:
    response = http.post(path, **options)
    assert response.status_code == status
    assert message in error_of(response)["message"]
    assert http.post(RETRIEVE, json=BODY).status_code == 200
    assert service.dataplane.budget.held == 0


ACCEPT = {"accept": "application/x-protobuf"}


def test_models_lists_versions_and_states(http: httpx.Client) -> None:
    response = http.get("/v1/models", headers={"x-request-id": "r-2"})
    (model,) = response.json()["models"]
    assert (model["name"], model["versions"][0]["version"], model["versions"][0]["state"]) == (
        "movies",
        1,
        "available",
    )
    assert response.headers["x-request-id"] == "r-2"


@pytest.mark.parametrize(
    "path", ["/v1/models/movies", "/v1/models/movies/versions/1", "/v1/models/%6Dovies"]
)
def test_model_describes_a_version(path: str, http: httpx.Client) -> None:
    details = http.get(path).json()
    assert (details["model"], details["version"], details["current"]) == ("movies", 1, True)
    assert details["calls"][0]["features"][0]["name"] == "user"


def test_models_and_model_with_accept_return_protobuf(http: httpx.Client) -> None:
    models = pb.ListModelsResponse.FromString(http.get("/v1/models", headers=ACCEPT).content)
    assert models.models[0].versions[0].state == pb.LOAD_STATE_AVAILABLE
    details = pb.GetModelResponse.FromString(http.get("/v1/models/movies", headers=ACCEPT).content)
    assert details.calls[0].features[0].table == "users"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"{RETRIEVE}?k=1", 400),
        ("POST", f"{RETRIEVE}?", 200),
        ("GET", "/v1/models?k", 400),
        ("GET", "/v1/models/movies?version=1", 400),
        ("POST", "/v1/models/movies/candidates/delete?k=1", 400),
        ("GET", "/v1/models/movies/changes/records?k=1&sequence=0&checksum=0", 400),
        ("GET", "/metrics?name[]=rowcast_ready", 200),
        ("GET", "/readyz?1700000000", 200),
    ],
)
def test_unknown_parameter_is_rejected_by_its_name_except_by_probes_and_metrics(
    method: str, path: str, status: int, http: httpx.Client
) -> None:
    response = http.request(method, path, json=BODY)
    assert response.status_code == status
    if status == 400:
        violation = error_of(response)["violations"][0]
        parameter = path.partition("?")[2].partition("=")[0]
        assert (violation["field"], violation["value"]) == ("query", repr(parameter))


def test_white_space_around_a_header_is_no_part_of_it(service: RunningService) -> None:
    lines = ("x-request-id: order-17 ", "x-request-timeout-ms:20000\t ", "connection: close")
    head = "\r\n".join(("GET /v1/models HTTP/1.1\r\nhost: localhost", *lines, "", ""))
    with connected(service) as connection:
        connection.sendall(head.encode())
        response = received(connection)
    assert response.startswith(b"HTTP/1.1 200 ")
    assert b"x-request-id: order-17\r\n" in response


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models/songs", 404),
        ("/v1/models/movies/versions/7", 404),
        ("/v1/models/movies/versions/new", 400),
        ("/v1/models/movies/labels/stable", 404),
        ("/v1/models/movies/", 404),
        ("/nowhere", 404),
        ("/docs/assets/nothing.js", 404),
        ("/docs/assets/%2e%2e/core.py", 404),
    ],
)
def test_bad_path_returns_the_error_body(path: str, status: int, http: httpx.Client) -> None:
    response = http.get(path)
    code = error_of(response)["code"]
    assert (response.status_code, code) == (
        status,
        {400: "INVALID_ARGUMENT", 404: "NOT_FOUND"}[status],
    )


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/movies", "/livez", "/readyz", "/metrics", "/nowhere"]
)
def test_head_has_the_headers_of_get_alone(path: str, http: httpx.Client) -> None:
    responses = [http.request(method, path) for method in ("HEAD", "GET", "HEAD")]
    assert {response.status_code for response in responses} == {responses[1].status_code}
    assert responses[0].content == responses[2].content == b""
    assert responses[0].headers["content-type"] == responses[1].headers["content-type"]


def test_health_of_a_service_with_a_model_is_ok(http: httpx.Client) -> None:
    assert http.get("/livez").json() == {"live": True}
    assert http.get("/readyz").json() == {"ready": True}


def test_health_of_a_service_without_a_model_reports_why(
    serve: Callable[..., RunningService],
) -> None:
    service = serve()
    with log_lines() as lines:
        response = httpx.get(service.http + "/readyz")
    assert (response.status_code, error_of(response)["code"]) == (503, "NOT_READY")
    assert "no bundle" in error_of(response)["message"]
    assert "request_failed" not in lines.getvalue()
    assert httpx.get(service.http + "/livez").status_code == 200


def test_metrics_are_prometheus_text(http: httpx.Client) -> None:
    http.post("/v1/models/movies:embed", json={"tower": "query", "features": {"user": 1}})
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    labels = 'call="embed",code="OK",model="movies",transport="http"'
    assert f"rowcast_requests_total{{{labels}}}" in response.text


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "text/plain"},
        {"origin": "https://example.com"},  # of a page that sends bytes without a type
    ],
)
def test_call_that_a_web_page_may_send_to_any_address_is_rejected(
    headers: dict[str, str], http: httpx.Client
) -> None:
    response = http.post(RETRIEVE, content=json.dumps(BODY), headers=headers)
    assert (response.status_code, error_of(response)["code"]) == (400, "INVALID_ARGUMENT")
    assert (
        "application/json or application/x-protobuf was expected" in error_of(response)["message"]
    )
    typed = {"origin": "https://example.com", "content-type": "application/json"}
    assert http.post(RETRIEVE, content=json.dumps(BODY), headers=typed).status_code == 200


def test_call_by_another_method_names_the_method(http: httpx.Client) -> None:
    for method in ("GET", "PUT", "DELETE"):
        response = http.request(method, RETRIEVE)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert error_of(response)["code"] == "INVALID_ARGUMENT"

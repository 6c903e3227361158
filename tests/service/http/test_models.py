"""Models, health and metrics over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from service.codec.stubs import embedding_service_pb2 as pb
from tests.service.http.clients import error_of
from tests.service.running import RunningService, log_lines

ACCEPT = {"accept": "application/x-protobuf"}


def test_models_lists_versions_and_states(http: httpx.Client) -> None:
    answer = http.get("/v1/models", headers={"x-request-id": "r-2"})
    (model,) = answer.json()["models"]
    assert (model["name"], model["versions"][0]["version"], model["versions"][0]["state"]) == (
        "movies",
        1,
        "available",
    )
    assert answer.headers["x-request-id"] == "r-2"


@pytest.mark.parametrize(
    "path", ["/v1/models/movies", "/v1/models/movies/versions/1", "/v1/models/%6Dovies"]
)
def test_model_describes_a_version(path: str, http: httpx.Client) -> None:
    details = http.get(path).json()
    assert (details["model"], details["version"], details["current"]) == ("movies", 1, True)
    assert details["calls"][0]["features"][0]["name"] == "user"


def test_models_and_model_answer_by_protobuf(http: httpx.Client) -> None:
    models = pb.ListModelsResponse.FromString(http.get("/v1/models", headers=ACCEPT).content)
    assert models.models[0].versions[0].state == "available"
    details = pb.ModelDetails.FromString(http.get("/v1/models/movies", headers=ACCEPT).content)
    assert details.calls[0].features[0].table == "users"


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
def test_bad_path_is_rejected_in_the_one_form(path: str, status: int, http: httpx.Client) -> None:
    answer = http.get(path)
    code = error_of(answer)["code"]
    assert (answer.status_code, code) == (
        status,
        {400: "INVALID_ARGUMENT", 404: "NOT_FOUND"}[status],
    )


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/movies", "/livez", "/readyz", "/metrics", "/nowhere"]
)
def test_head_has_the_headers_of_get_alone(path: str, http: httpx.Client) -> None:
    answers = [http.request(method, path) for method in ("HEAD", "GET", "HEAD")]
    assert {each.status_code for each in answers} == {answers[1].status_code}
    assert answers[0].content == answers[2].content == b""
    assert answers[0].headers["content-type"] == answers[1].headers["content-type"]


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


def test_health_of_a_service_with_a_model_is_good(http: httpx.Client) -> None:
    assert http.get("/livez").json() == {"live": True}
    assert http.get("/readyz").json() == {"ready": True}


def test_health_of_a_service_without_a_model_reports_why(
    serve: Callable[..., RunningService],
) -> None:
    service = serve()
    with log_lines() as lines:
        answer = httpx.get(service.http + "/readyz")
    assert (answer.status_code, error_of(answer)["code"]) == (503, "NOT_READY")
    assert "no bundle" in error_of(answer)["message"]
    assert "request_failed" not in lines.getvalue()
    assert httpx.get(service.http + "/livez").status_code == 200


def test_metrics_are_prometheus_text(http: httpx.Client) -> None:
    http.post("/v1/models/movies:embed", json={"tower": "query", "features": {"user": 1}})
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'rowcast_requests_total{call="embed",code="OK",transport="http"}' in answer.text

"""Models, health and metrics over HTTP."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from service.engine.requests import Target
from service.errors import NotFound
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.doors import RunningDoors, ScriptedEngine, codes_of, desk_of, settings_of


def test_models_lists_versions_and_states(http: httpx.Client) -> None:
    answer = http.get("/v1/models", headers={"x-request-id": "r-2"})
    told = {"state": "available", "problem": "", "current": False, "labels": [], "memory_bytes": 0}
    versions = [{"version": 3, **told}]
    assert answer.json() == {"models": [{"name": "m", "versions": versions}]}
    assert answer.headers["x-request-id"] == "r-2"


def test_model_tells_the_signature_of_a_version(http: httpx.Client, engine: ScriptedEngine) -> None:
    assert http.get("/v1/models/m").json()["calls"][0]["features"][0]["name"] == "user"
    assert http.get("/v1/models/m/versions/3").status_code == 200
    assert http.get("/v1/models/m/labels/stable").status_code == 200
    assert [asked[1] for asked in engine.asked] == [Target("m"), Target("m", 3), Target("m", None, "stable")]


def test_models_and_model_as_protobuf(http: httpx.Client) -> None:
    accept = {"accept": "application/x-protobuf"}
    models = pb.ListModelsResponse.FromString(http.get("/v1/models", headers=accept).content)
    assert models.models[0].versions[0].state == "available"
    details = pb.ModelDetails.FromString(http.get("/v1/models/m", headers=accept).content)
    assert details.calls[0].features[0].table == "users"


@pytest.mark.parametrize("path", ["/v1/models/m", "/v1/models"])
def test_failure_behind_starlette_has_the_one_shape(path: str, http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.problem = NotFound("model 'm' is not there")
    answer = http.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "model 'm' is not there"
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]


def test_bug_behind_starlette_tells_nothing(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.problem = KeyError("secret")
    answer = http.get("/v1/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "INTERNAL")
    assert "secret" not in answer.text


def test_what_starlette_answers_is_counted_by_call_and_code(
    http: httpx.Client, engine: ScriptedEngine, doors: RunningDoors
) -> None:
    before = codes_of(doors.desk.metrics, "http")
    http.get("/v1/models")
    http.get("/v1/models/m/versions/x")
    http.get("/nowhere")
    engine.problem = KeyError("a bug")
    http.get("/v1/models/m")
    after = codes_of(doors.desk.metrics, "http")
    assert {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)} == {
        ("models", "OK"): 1,
        ("model", "INVALID_ARGUMENT"): 1,
        ("other", "NOT_FOUND"): 1,
        ("model", "INTERNAL"): 1,
    }


def test_version_that_is_no_number_is_refused(http: httpx.Client) -> None:
    assert http.get("/v1/models/m/versions/new").json()["error"]["code"] == "INVALID_ARGUMENT"


def test_health_follows_the_desk(http: httpx.Client, tmp_path: Path) -> None:
    assert http.get("/livez").json() == {"live": True}
    assert http.get("/readyz").json() == {"ready": True}
    waiting = desk_of(ScriptedEngine(), settings_of(tmp_path), problem="no bundle yet")
    with RunningDoors(waiting) as doors, httpx.Client(base_url=doors.http) as client:
        answer = client.get("/readyz")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["message"]) == (503, "NOT_READY", "no bundle yet")
        assert client.get("/livez").status_code == 200


def test_metrics_are_prometheus_text(http: httpx.Client) -> None:
    http.post("/v1/models/m:embed", json={})
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'rowcast_requests_total{call="embed",code="OK",door="http"}' in answer.text

"""The five calls over HTTP, on a real socket."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import socket
from typing import Any

import httpx
import pytest

from service.engine.requests import Target
from service.errors import (
    ANSWERS,
    INTERNAL_SENTENCE,
    Code,
    Overloaded,
    ServiceError,
)
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.doors import RunningDoors, ScriptedEngine, codes_of

RETRIEVE = "/v1/models/m:retrieve"
PROTOBUF = {"content-type": "application/x-protobuf"}
BODY: dict[str, Any] = {"k": 2, "features": {"user": 7}}


def _problem(code: Code) -> ServiceError:
    kinds = {kind.code: kind for kind in ServiceError.__subclasses__()}
    return Overloaded("busy", 1.5) if code is Code.OVERLOADED else kinds[code]("a sentence")


def _error(answer: httpx.Response) -> dict[str, str]:
    told: dict[str, str] = answer.json()["error"]
    assert set(told) == {"code", "message", "request_id"}
    assert told["request_id"] == answer.headers["x-request-id"]
    return told


def test_call_json_in_json_out(http: httpx.Client, engine: ScriptedEngine) -> None:
    answer = http.post(RETRIEVE, json=BODY)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "model": "m",
        "version": 3,
        "searched": 9,
        "neighbors": [{"id": 4, "score": 0.5, "attributes": {}}, {"id": 2, "score": 0.25, "attributes": {}}],
    }
    name, request, _ = engine.asked[0]
    assert (name, request.target, request.k) == ("retrieve", Target("m"), 2)


def test_call_protobuf_in_protobuf_out(http: httpx.Client, engine: ScriptedEngine) -> None:
    body = pb.LookupRequest(feature="user", ids=pb.Column(int64s=b"\x07" + bytes(7))).SerializeToString()
    answer = http.post("/v1/models/m/versions/3:lookup", content=body, headers=PROTOBUF)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert pb.LookupResponse.FromString(answer.content).table == "t"
    assert engine.asked[0][1].target == Target("m", 3)


def test_call_of_a_label_reaches_the_engine_with_it(http: httpx.Client, engine: ScriptedEngine) -> None:
    assert http.post("/v1/models/m/labels/stable:retrieve", json=BODY).status_code == 200
    assert engine.asked[0][1].target == Target("m", None, "stable")
    by_message = pb.RetrieveRequest(model=pb.ModelSpec(label="canary")).SerializeToString()
    answer = http.post("/v1/models/m/labels/stable:retrieve", content=by_message, headers=PROTOBUF)
    assert answer.status_code == 400, "the body's label is another"


@pytest.mark.parametrize("name", ["retrieve", "rank", "recommend", "embed", "lookup"])
def test_call_of_each_name_reaches_the_engine(name: str, http: httpx.Client, engine: ScriptedEngine) -> None:
    body = {"feature": "user", "ids": [1]} if name == "lookup" else {}
    answer = http.post(f"/v1/models/m:{name}", json=body)
    assert (answer.status_code, engine.asked[0][0]) == (200, name)


def test_accept_chooses_the_form_of_the_answer(http: httpx.Client) -> None:
    as_protobuf = http.post(RETRIEVE, json=BODY, headers={"accept": "application/x-protobuf;q=0.9, application/json"})
    assert pb.RetrieveResponse.FromString(as_protobuf.content).searched == 9
    as_json = http.post(
        RETRIEVE, content=b"", headers=PROTOBUF | {"accept": "*/*, application/json, application/x-protobuf"}
    )
    assert as_json.json()["results"][0]["neighbors"][0]["id"] == 4


@pytest.mark.parametrize("code", list(Code))
def test_failure_of_each_code_has_the_status_of_the_table(
    code: Code, http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.problem = _problem(code)
    answer = http.post(RETRIEVE, json=BODY, headers={"x-request-id": "r-1"})
    told = _error(answer)
    assert (answer.status_code, told["code"], told["request_id"]) == (ANSWERS[code].http, code.value, "r-1")
    assert told["message"] == (INTERNAL_SENTENCE if code is Code.INTERNAL else str(engine.problem))
    assert answer.headers.get("retry-after") == ("2" if code is Code.OVERLOADED else None)


def test_failure_of_a_protobuf_call_is_an_error_details_message(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.problem = _problem(Code.NOT_FOUND)
    answer = http.post(RETRIEVE, content=b"", headers=PROTOBUF)
    details = pb.ErrorDetails.FromString(answer.content)
    assert (answer.status_code, details.code, details.message) == (404, "NOT_FOUND", "a sentence")
    assert details.request_id == answer.headers["x-request-id"]


def test_bug_tells_the_caller_nothing_and_the_log_everything(
    http: httpx.Client, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.problem = RuntimeError("the password is 1234")
    answer = http.post(RETRIEVE, json=BODY)
    assert answer.status_code == 500
    assert "1234" not in answer.text
    assert _error(answer)["message"] == INTERNAL_SENTENCE
    assert "the password is 1234" in caplog.text
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_request_id_is_taken_and_returned(http: httpx.Client, engine: ScriptedEngine) -> None:
    answer = http.post(RETRIEVE, json=BODY, headers={"x-request-id": "order-17"})
    assert answer.headers["x-request-id"] == "order-17"
    assert engine.asked[0][2].request_id == "order-17"


def test_trace_id_is_the_request_id_where_there_is_none(http: httpx.Client) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    answer = http.post(RETRIEVE, json=BODY, headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    assert answer.headers["x-request-id"] == trace


def test_request_id_unsafe_is_replaced(http: httpx.Client) -> None:
    answer = http.post(RETRIEVE, json=BODY, headers={"x-request-id": "a b;c"})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def test_timeout_becomes_the_deadline(http: httpx.Client, engine: ScriptedEngine) -> None:
    http.post(RETRIEVE, json=BODY, headers={"x-request-timeout-ms": "60000"})
    http.post(RETRIEVE, json=BODY, headers={"x-request-timeout-ms": "1000"})
    http.post(RETRIEVE, json=BODY)
    deadlines = [call.deadline for _, _, call in engine.asked]
    assert deadlines[0] is not None
    assert deadlines[1] is not None
    assert 50 < deadlines[0] - deadlines[1] < 60
    assert deadlines[2] is None


@pytest.mark.parametrize(
    ("path", "options", "status", "told"),
    [
        (RETRIEVE, {"content": b"{"}, 400, "no JSON"),
        (RETRIEVE, {"content": b""}, 400, "no JSON"),
        (RETRIEVE, {"content": b'{"k": NaN}'}, 400, "no JSON"),
        (RETRIEVE, {"json": {"kk": 1}}, 400, "did you mean 'k'"),
        (RETRIEVE, {"json": BODY, "headers": {"content-type": "text/plain"}}, 400, "application/x-protobuf"),
        (RETRIEVE, {"json": BODY, "headers": {"content-type": "application/json; charset=latin1"}}, 400, "UTF-8"),
        (RETRIEVE, {"json": BODY, "headers": {"content-encoding": "br"}}, 400, "gzip or none"),
        (RETRIEVE, {"json": BODY, "headers": {"content-encoding": "gzip"}}, 400, "no gzip"),
        (RETRIEVE, {"json": BODY, "headers": {"x-request-timeout-ms": "soon"}}, 400, "x-request-timeout-ms is 'soon'"),
        (
            RETRIEVE,
            {"json": BODY, "headers": [("x-request-timeout-ms", "9")] * 2},
            400,
            "x-request-timeout-ms is '9, 9'",
        ),
        (RETRIEVE, {"json": BODY, "headers": [("content-encoding", "gzip")] * 2}, 400, "gzip or none"),
        ("/v1/models/:retrieve", {"json": BODY}, 400, "model is empty"),
        ("/v1/models//labels/x:retrieve", {"json": BODY}, 400, "model is empty"),
        ("/v1/models/m/labels/:retrieve", {"json": BODY}, 400, "label is empty"),
        ("/v1/models/m/versions/:retrieve", {"json": BODY}, 400, "version is ''"),
        ("/v1/models/m/versions/x:retrieve", {"json": BODY}, 400, "version is 'x'"),
        ("/v1/models/m/versions/0:retrieve", {"json": BODY}, 400, "version is '0'"),
        ("/v1/models/m/versions/9223372036854775808:retrieve", {"json": BODY}, 400, "positive integer"),
        ("/v1/models/m:retreive", {"json": BODY}, 404, "calls are retrieve, rank"),
        ("/v1/models/m:", {"json": BODY}, 404, "calls are"),
        ("/v1/nothing", {"json": BODY}, 404, "/docs lists the paths"),
        (RETRIEVE + "/", {"json": BODY}, 404, "/docs lists the paths"),
        ("/v1/models", {"json": BODY}, 405, "not taken here"),
        (RETRIEVE, {"content": b"\xff\xff", "headers": {**PROTOBUF, "accept": "application/json"}}, 400, "protobuf"),
        (RETRIEVE, {"content": bytes(4097)}, 413, "at most 4096"),
        (RETRIEVE, {"content": gzip.compress(bytes(10**6)), "headers": {"content-encoding": "gzip"}}, 413, "4096"),
        (RETRIEVE, {"content": gzip.compress(b"{}")[:-3], "headers": {"content-encoding": "gzip"}}, 400, "cut short"),
    ],
)
def test_bad_request_is_refused_in_the_one_shape(
    path: str, options: dict[str, Any], status: int, told: str, http: httpx.Client, engine: ScriptedEngine
) -> None:
    answer = http.post(path, **options)
    assert answer.status_code == status
    assert told in _error(answer)["message"]
    assert engine.asked == []
    assert http.post(RETRIEVE, json=BODY).status_code == 200


def test_method_other_than_post_is_405_and_says_which(http: httpx.Client) -> None:
    answer = http.get(RETRIEVE)
    assert (answer.status_code, answer.headers["allow"], _error(answer)["code"]) == (405, "POST", "INVALID_ARGUMENT")


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "Application/JSON; charset=utf-8"])
def test_body_of_no_type_or_of_that_of_curl_is_json(
    kind: str | None, http: httpx.Client, engine: ScriptedEngine
) -> None:
    answer = http.post(RETRIEVE, content=json.dumps(BODY), headers={"content-type": kind} if kind else {})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert engine.asked[0][1].k == 2


def test_gzip_body_is_read(http: httpx.Client, engine: ScriptedEngine) -> None:
    body = gzip.compress(json.dumps(BODY).encode())
    answer = http.post(RETRIEVE, content=body, headers={"content-encoding": "gzip", "content-type": "application/json"})
    assert answer.status_code == 200
    assert engine.asked[0][1].k == 2


def test_chunked_body_over_the_limit_is_refused_before_its_end(doors: RunningDoors, engine: ScriptedEngine) -> None:
    host, port = doors.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(b"POST /v1/models/m:retrieve HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            line.sendall(b"800\r\n" + b"x" * 0x800 + b"\r\n")
        answer = line.recv(65536)  # the body has no end yet
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


def test_declared_body_over_the_limit_is_refused_before_it_is_sent(doors: RunningDoors) -> None:
    host, port = doors.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(b"POST /v1/models/m:retrieve HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999999\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_caller_that_hangs_up_is_given_up(doors: RunningDoors, engine: ScriptedEngine, http: httpx.Client) -> None:
    doors.soon(lambda: setattr(engine, "held", asyncio.Event()))
    before = codes_of(doors.desk.metrics, "http").get(("retrieve", "CANCELLED"), 0)
    host, port = doors.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(
            b"POST /v1/models/m:retrieve HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
            b"content-type: application/json\r\n\r\n{}"
        )
        assert engine.begun.wait(10)
    assert engine.given_up.wait(10)
    engine.held = None
    assert http.get("/livez").status_code == 200
    assert codes_of(doors.desk.metrics, "http")["retrieve", "CANCELLED"] == before + 1


def test_answers_are_counted_by_call_and_code(doors: RunningDoors, http: httpx.Client) -> None:
    before = codes_of(doors.desk.metrics, "http")
    http.post("/v1/models/m:embed", json={})
    http.post("/v1/models/m:embed", content=b"{")
    http.post("/v1/models/m:zzz", content=b"{")
    after = codes_of(doors.desk.metrics, "http")
    grown = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}
    assert grown == {("embed", "OK"): 1, ("embed", "INVALID_ARGUMENT"): 1, ("other", "NOT_FOUND"): 1}

"""The same request through JSON, protobuf over HTTP and gRPC: the same answer and the same code, on a real bundle."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_status import rpc_status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.engine.engine import Engine
from service.errors import ANSWERS, Code
from service.generations.loader import Loader
from service.generations.switch import Switch
from service.metrics import Metrics
from service.rpc.servicer import SERVICE
from service.wire.operations import OPERATIONS
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.door_requests import CASES, LIMITS, MODEL, Case
from tests.service.doors import RunningDoors, desk_of, settings_of
from tests.service.small_bundle import write_small_bundle

RESPONSES: dict[str, Any] = {
    "retrieve": pb.RetrieveResponse,
    "rank": pb.RankResponse,
    "recommend": pb.RecommendResponse,
    "embed": pb.EmbedResponse,
    "lookup": pb.LookupResponse,
}
PROTOBUF = {"content-type": "application/x-protobuf"}
ASKED = {"requests": [{"features": {"user": 5}}]}
SIMPLE = Case("simple", "retrieve", ASKED, {"features": {"user": pb.Column(int64s=(5).to_bytes(8, "little"))}})


@dataclass(frozen=True)
class Service:
    """A running service and clients of both of its doors."""

    engine: Engine
    switch: Switch
    doors: RunningDoors
    http: httpx.Client
    channel: grpc.Channel


@dataclass(frozen=True)
class Answer:
    """What one way of asking got: the code, the sentence or the answer's body."""

    code: str
    sentence: str
    body: bytes


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, towers: Path) -> Path:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, towers, MODEL, 1)
    return root


def _serve(root: Path, load: bool = True, **options: Any) -> Iterator[Service]:
    """A service with one version loaded, or none."""
    limits = settings_of(root, **{**LIMITS, **options})
    switch, metrics = Switch(), Metrics()
    engine = Engine(switch, limits, metrics, workers=2)
    desk = desk_of(engine, limits)
    if load:
        loader = Loader(root, None, "sizes", 2, 0, engine.warm_up)
        switch.put(loader.load(MODEL, 1))
    switch.settle()
    with (
        RunningDoors(desk) as doors,
        httpx.Client(base_url=doors.http, timeout=30) as http,
        grpc.insecure_channel(doors.grpc) as channel,
    ):
        yield Service(engine, switch, doors, http, channel)
    engine.close()
    switch.close()


@pytest.fixture(scope="module")
def service(bundles: Path) -> Iterator[Service]:
    yield from _serve(bundles)


@pytest.fixture
def fresh(bundles: Path) -> Iterator[Service]:
    """A service that a test may break."""
    yield from _serve(bundles, in_flight_max=1, retry_after_s=2.5)


def _by_http(service: Service, case: Case, protobuf: bool, headers: dict[str, str] | None = None) -> Answer:
    version = f"/versions/{case.version}" if case.version else ""
    if protobuf:
        body, kind = case.body(), PROTOBUF
    else:
        body = case.json if isinstance(case.json, bytes) else json.dumps(case.json).encode()
        kind = {"content-type": "application/json"}
    path = f"/v1/models/{case.model}{version}:{case.call}"
    answer = service.http.post(path, content=body, headers={"x-request-id": "agree", **kind, **(headers or {})})
    assert answer.headers["x-request-id"] == "agree"
    if answer.status_code == 200:
        return Answer("OK", "", answer.content)
    told = pb.ErrorDetails.FromString(answer.content) if protobuf else pb.ErrorDetails(**answer.json()["error"])
    assert answer.status_code == ANSWERS[Code(told.code)].http
    assert told.request_id == "agree"
    return Answer(told.code, told.message, b"")


def _by_grpc(service: Service, case: Case, timeout: float = 30) -> Answer:
    method = service.channel.unary_unary(f"/{SERVICE}/{OPERATIONS[case.call].method}")
    call = method.future(case.body(), timeout=timeout, metadata=(("x-request-id", "agree"),))
    problem = call.exception()
    assert dict(call.trailing_metadata())["x-request-id"] == "agree"
    if problem is None:
        return Answer("OK", "", call.result())
    told = pb.ErrorDetails()
    assert rpc_status.from_call(problem).details[0].Unpack(told)
    assert call.code().name == ANSWERS[Code(told.code)].grpc
    assert told.request_id == "agree"
    return Answer(told.code, told.message, b"")


def _ask(service: Service, case: Case) -> tuple[Answer, Answer, Answer]:
    return _by_http(service, case, protobuf=False), _by_http(service, case, protobuf=True), _by_grpc(service, case)


def _ids(message: pb.Ids) -> list[Any]:
    return list(message.strings.values) or np.frombuffer(message.int64s, "<i8").tolist()


def _rows(data: bytes, kind: str = "<f4") -> list[Any]:
    return list(np.frombuffer(data, kind).tolist())


def _attribute(message: pb.Attribute) -> list[Any]:
    kind = message.WhichOneof("values")
    values: list[Any]
    if kind == "lists":
        values = [list(entry.values) for entry in message.lists.values]
    elif kind == "strings":
        values = list(message.strings.values)
    else:
        values = _rows(message.int64s or message.float64s, "<i8" if kind == "int64s" else "<f8")
    for place in message.nulls:
        values[place] = None
    return values


def _found(message: Any, retrieval_scores: bytes | None) -> list[dict[str, Any]]:
    packed = message.neighbors
    values = {name: _attribute(attribute) for name, attribute in packed.attributes.items()}
    found = []
    for place, (one, score) in enumerate(zip(_ids(packed.ids), _rows(packed.scores), strict=True)):
        entry = {"id": one, "score": score, "attributes": {name: column[place] for name, column in values.items()}}
        if retrieval_scores is not None:
            entry["retrieval_score"] = _rows(retrieval_scores)[place]
        found.append(entry)
    bounds = _rows(packed.offsets, "<i4")
    return [{"neighbors": found[first:last]} for first, last in pairwise(bounds)]


def _ranked(message: pb.RankResponse) -> list[dict[str, Any]]:
    bounds = _rows(message.offsets, "<i4")
    ids = _ids(message.candidate_ids) if message.HasField("candidate_ids") else None
    return [
        {
            "ids": None if ids is None else ids[first:last],
            "scores": _rows(message.scores)[first:last],
            "positions": _rows(message.positions, "<i4")[first:last],
            "heads": {name: _rows(scores)[first:last] for name, scores in message.heads.items()},
        }
        for first, last in pairwise(bounds)
    ]


def _as_json(call: str, message: Any) -> dict[str, Any]:
    """What the message says, in the JSON form of a list; written apart from the service's own writers."""
    head: dict[str, Any] = {"model": message.model.name, "version": message.model.version}
    if call == "retrieve":
        return head | {"searched": message.searched, "results": _found(message, None)}
    if call == "recommend":
        return head | {"results": _found(message, message.retrieval_scores)}
    if call == "rank":
        return head | {"results": _ranked(message)}
    rows = [
        _rows(message.vectors)[place : place + message.dim]
        for place in range(0, len(message.vectors) // 4, message.dim)
    ]
    if call == "embed":
        return head | {"results": [{"vector": row} for row in rows]}
    return head | {"table": message.table, "vectors": rows, "found": [flag == 1 for flag in message.found]}


def _float32(value: Any) -> Any:
    """Numbers as the float32 that they stand for."""
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, list):
        return [_float32(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _float32(entry) for name, entry in value.items()}
    return value


def _listed(call: str, value: dict[str, Any]) -> dict[str, Any]:
    if call == "lookup" or "results" in value:
        return value
    head = {name: value.pop(name) for name in ("model", "version", "searched") if name in value}
    return head | {"results": [value]}


def test_table_holds_what_it_should() -> None:
    assert len(CASES) >= 60
    assert {case.call for case in CASES} == set(OPERATIONS)
    assert len({(case.call, case.name) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.call}: {case.name}")
def test_same_request_through_each_door_has_the_same_answer(case: Case, service: Service) -> None:
    by_json, by_protobuf, by_grpc = _ask(service, case)
    assert (by_json.code, by_protobuf.code, by_grpc.code) == (case.code,) * 3, (by_json, by_protobuf, by_grpc)
    assert by_protobuf.sentence == by_grpc.sentence
    if case.code != "OK":
        assert by_json.sentence
        assert "Traceback" not in by_json.sentence + by_grpc.sentence
        return
    message = RESPONSES[case.call].FromString(by_grpc.body)
    assert RESPONSES[case.call].FromString(by_protobuf.body) == message
    told = _listed(case.call, json.loads(by_json.body))
    assert _float32(told) == _float32(_as_json(case.call, message))
    assert (told["model"], told["version"]) == (MODEL, 1)


def test_deadline_that_is_over_is_deadline_at_each_door(service: Service) -> None:
    for protobuf in (False, True):
        answer = _by_http(service, SIMPLE, protobuf, {"x-timeout-ms": "0"})
        assert answer.code == "DEADLINE"
    with pytest.raises(grpc.RpcError) as late:
        service.channel.unary_unary(f"/{SERVICE}/Retrieve")(SIMPLE.body(), timeout=0)
    assert late.value.code().name == ANSWERS[Code.DEADLINE].grpc


def test_models_and_signatures_are_the_same_at_each_door(service: Service) -> None:
    accept = {"accept": "application/x-protobuf"}
    models = service.channel.unary_unary(f"/{SERVICE}/ListModels")(b"")
    assert service.http.get("/v1/models", headers=accept).content == models
    listed = service.http.get("/v1/models").json()["models"]
    assert [(model["name"], model["versions"][0]["state"]) for model in listed] == [(MODEL, "available")]
    asked = pb.GetModelRequest(model=pb.ModelSpec(name=MODEL, version=1)).SerializeToString()
    details = service.channel.unary_unary(f"/{SERVICE}/GetModel")(asked)
    assert service.http.get(f"/v1/models/{MODEL}/versions/1", headers=accept).content == details
    told = service.http.get(f"/v1/models/{MODEL}").json()
    assert [call["call"] for call in told["calls"]] == [call.call for call in pb.ModelDetails.FromString(details).calls]


@pytest.mark.parametrize(("model", "version", "code"), [("books", 0, "NOT_FOUND"), (MODEL, 9, "NOT_FOUND")])
def test_signature_of_what_is_not_there_is_the_same_failure(
    model: str, version: int, code: str, service: Service
) -> None:
    path = f"/v1/models/{model}" + (f"/versions/{version}" if version else "")
    by_http = service.http.get(path)
    asked = pb.GetModelRequest(model=pb.ModelSpec(name=model, version=version)).SerializeToString()
    with pytest.raises(grpc.RpcError) as failed:
        service.channel.unary_unary(f"/{SERVICE}/GetModel")(asked)
    assert by_http.json()["error"]["code"] == code
    assert (by_http.json()["error"]["message"], failed.value.code().name) == (
        failed.value.details(),
        ANSWERS[Code(code)].grpc,
    )


def test_documents_examples_are_answered_as_they_are_shown(service: Service) -> None:
    described = service.http.get("/openapi.json").json()["paths"]
    for call in OPERATIONS:
        shown = described[f"/v1/models/{{model}}:{call}"]["post"]
        body = shown["requestBody"]["content"]["application/json"]["example"]
        answer = service.http.post(f"/v1/models/{MODEL}:{call}", json=body)
        assert answer.json() == shown["responses"]["200"]["content"]["application/json"]["example"]
    retrieval = described["/v1/models/{model}:retrieve"]["post"]["requestBody"]["content"]["application/json"][
        "example"
    ]
    assert set(retrieval["features"]["history"]) <= set(range(1000, 1280, 7))  # candidates that are there


def _expect(service: Service, code: str) -> None:
    by_json, by_protobuf, by_grpc = _ask(service, SIMPLE)
    assert (by_json.code, by_protobuf.code, by_grpc.code) == (code,) * 3
    assert by_json.sentence == by_protobuf.sentence == by_grpc.sentence


def test_nothing_loaded_is_not_ready_at_each_door(tmp_path: Path) -> None:
    for service in _serve(tmp_path, load=False):
        _expect(service, "NOT_READY")


def test_draining_is_not_ready_at_each_door(fresh: Service) -> None:
    _expect(fresh, "OK")
    fresh.engine.drain()
    _expect(fresh, "NOT_READY")


def test_damaged_version_is_data_loss_at_each_door(fresh: Service) -> None:
    generation = fresh.switch.current(MODEL)
    assert generation is not None
    fresh.switch.damage(generation, "tables/users: block 0 does not match its checksum")
    _expect(fresh, "DATA_LOSS")


def test_overload_is_told_with_when_to_come_back_at_each_door(fresh: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = fresh.switch.current(MODEL)
    assert generation is not None
    network = generation.towers["query"].network
    begun, go = threading.Event(), threading.Event()
    run = network.run

    def slow(inputs: Any) -> Any:
        begun.set()
        assert go.wait(30)
        return run(inputs)

    monkeypatch.setattr(network, "run", slow)
    first = threading.Thread(target=_by_grpc, args=(fresh, SIMPLE))
    first.start()
    assert begun.wait(30)
    try:
        _expect(fresh, "OVERLOADED")
        by_http = fresh.http.post(f"/v1/models/{MODEL}:retrieve", json=ASKED)
        assert by_http.headers["retry-after"] == "3"
        with pytest.raises(grpc.RpcError) as busy:
            fresh.channel.unary_unary(f"/{SERVICE}/Retrieve")(SIMPLE.body())
        assert dict(busy.value.trailing_metadata())["retry-after"] == "2.5"
    finally:
        go.set()
        first.join()
    _expect(fresh, "OK")


def test_bug_is_internal_at_each_door_and_tells_nothing(fresh: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = fresh.switch.current(MODEL)
    assert generation is not None

    def broken(inputs: Any) -> Any:
        raise RuntimeError("secret of the tower")

    monkeypatch.setattr(generation.towers["query"].network, "run", broken)
    _expect(fresh, "INTERNAL")
    assert "secret" not in _ask(fresh, SIMPLE)[0].sentence


bounded = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
numbers = st.integers(-(2**70), 2**70) | st.floats()
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5) | st.sampled_from([1000, 5, "1007", "drama"])
names = st.sampled_from(
    ["user", "city", "history", "liked", "recent", "hour", "mood", "movie", "genres", "year", "ids"]
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
features = st.dictionaries(names, values, max_size=4)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(-3, 60) | scalars,
        "features": features | values,
        "context": features | values,
        "candidates": st.lists(st.sampled_from([1000, 1007, 3, "x"]), max_size=4) | values,
        "vector": st.lists(st.floats(), max_size=9) | values,
        "id": values,
        "exclude": values,
        "requests": st.lists(features | values, max_size=3),
        "tower": st.sampled_from(["query", "candidate", "ranking", 1]),
        "feature": names,
        "ids": st.lists(scalars, max_size=4),
        "heads": values,
        "attributes": values,
    },
)
FINE = {"OK", *(code.value for code in Code)} - {"INTERNAL", "DATA_LOSS", "CANCELLED"}


@bounded
@given(call=st.sampled_from(sorted(OPERATIONS)), body=bodies | values)
def test_any_json_is_answered_or_refused_and_never_breaks_the_service(call: str, body: Any, service: Service) -> None:
    case = Case("any", call, json.dumps(body).encode(), b"")
    assert _by_http(service, case, protobuf=False).code in FINE


@bounded
@given(call=st.sampled_from(sorted(OPERATIONS)), body=st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused_alike_and_never_break_the_service(
    call: str, body: bytes, service: Service
) -> None:
    case = Case("any", call, body, body)
    assert _by_http(service, case, protobuf=False).code in FINE
    assert _by_grpc(service, case).code in FINE
    assert _by_http(service, case, protobuf=True).code in FINE


columns = st.builds(
    lambda kind, data, at, weights: pb.Column(**{kind: data}, offsets=at, weights=weights),
    st.sampled_from(["int64s", "int32s", "float32s"]),
    st.binary(max_size=24) | st.sampled_from([(1000).to_bytes(8, "little"), bytes(8), bytes(16)]),
    st.binary(max_size=8) | st.sampled_from([b"", bytes(4) + b"\x01" + bytes(3), bytes(8)]),
    st.binary(max_size=8) | st.just(b""),
)


@bounded
@given(features=st.dictionaries(names, columns, max_size=4), ids=st.binary(max_size=16), at=st.binary(max_size=12))
def test_any_packed_columns_are_answered_or_refused_alike(
    features: dict[str, pb.Column], ids: bytes, at: bytes, service: Service
) -> None:
    messages: dict[str, dict[str, Any]] = {
        "retrieve": {"features": features, "exclude_ids": pb.Ids(int64s=ids), "exclude_offsets": at},
        "rank": {"context": features, "candidate_ids": pb.Ids(int64s=ids), "offsets": at},
        "embed": {"tower": "query", "features": features},
    }
    for call, message in messages.items():
        case = Case("any", call, {}, message)
        by_http, by_grpc = _by_http(service, case, protobuf=True), _by_grpc(service, case)
        assert by_http.code in FINE
        assert (by_http.code, by_http.sentence) == (by_grpc.code, by_grpc.sentence)


def test_after_all_that_the_service_still_answers(service: Service) -> None:
    _expect(service, "OK")

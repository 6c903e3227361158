"""The same request through JSON, protobuf over HTTP and gRPC: the same answer and the same code, on a real bundle."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from service.errors import ANSWERS, Code
from service.rpc.servicer import SERVICE
from service.wire.operations import OPERATIONS
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.asked import ASKED, SIMPLE, Service, ask, by_grpc, by_http, expect, serve
from tests.service.cases import MODEL, Case
from tests.service.context_cases import CONTEXTS
from tests.service.other_cases import OTHERS
from tests.service.ranking_cases import RANKINGS
from tests.service.retrieval_cases import RETRIEVALS
from tests.service.small_bundle import write_small_bundle

CASES = RETRIEVALS + RANKINGS + OTHERS + CONTEXTS
RESPONSES: dict[str, Any] = {
    "retrieve": pb.RetrieveResponse,
    "rank": pb.RankResponse,
    "recommend": pb.RecommendResponse,
    "embed": pb.EmbedResponse,
    "lookup": pb.LookupResponse,
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Path:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, 1, parts=True, users=True)
    return root


@pytest.fixture(scope="module")
def service(bundles: Path) -> Iterator[Service]:
    yield from serve(bundles)


@pytest.fixture
def fresh(bundles: Path) -> Iterator[Service]:
    """A service that a test may break."""
    yield from serve(bundles, in_flight_max=1, retry_after_s=2.5)


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
    json_answer, protobuf_answer, grpc_answer = ask(service, case)
    assert (json_answer.code, protobuf_answer.code, grpc_answer.code) == (case.code,) * 3, (
        json_answer,
        protobuf_answer,
        grpc_answer,
    )
    assert protobuf_answer.sentence == grpc_answer.sentence
    if case.code != "OK":
        assert json_answer.sentence
        assert "Traceback" not in json_answer.sentence + grpc_answer.sentence
        return
    message = RESPONSES[case.call].FromString(grpc_answer.body)
    assert RESPONSES[case.call].FromString(protobuf_answer.body) == message
    told = _listed(case.call, json.loads(json_answer.body))
    assert _float32(told) == _float32(_as_json(case.call, message))
    assert (told["model"], told["version"]) == (MODEL, 1)


def test_deadline_that_is_over_is_deadline_at_each_door(service: Service) -> None:
    for protobuf in (False, True):
        answer = by_http(service, SIMPLE, protobuf, {"x-request-timeout-ms": "0"})
        assert answer.code == "DEADLINE"
    with pytest.raises(grpc.RpcError) as late:
        service.channel.unary_unary(f"/{SERVICE}/Retrieve")(SIMPLE.body(), timeout=-1)  # 0 leaves a millisecond
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
    refused = service.http.get(path)
    asked = pb.GetModelRequest(model=pb.ModelSpec(name=model, version=version)).SerializeToString()
    with pytest.raises(grpc.RpcError) as failed:
        service.channel.unary_unary(f"/{SERVICE}/GetModel")(asked)
    assert refused.json()["error"]["code"] == code
    assert (refused.json()["error"]["message"], failed.value.code().name) == (
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


def test_nothing_loaded_is_not_ready_at_each_door(tmp_path: Path) -> None:
    for service in serve(tmp_path, load=False):
        expect(service, "NOT_READY")


def test_draining_is_not_ready_at_each_door(fresh: Service) -> None:
    expect(fresh, "OK")
    fresh.engine.drain()
    expect(fresh, "NOT_READY")


def test_damaged_version_is_data_loss_at_each_door(fresh: Service) -> None:
    generation = fresh.switch.current(MODEL)
    assert generation is not None
    fresh.switch.damage(generation, "tables/users: block 0 does not match its checksum")
    expect(fresh, "DATA_LOSS")


def test_overload_is_told_with_when_to_come_back_at_each_door(fresh: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = fresh.switch.current(MODEL)
    assert generation is not None
    network = generation.towers["query"].parts[0].network
    begun, go = threading.Event(), threading.Event()
    run = network.run

    def slow(inputs: Any) -> Any:
        begun.set()
        assert go.wait(30)
        return run(inputs)

    monkeypatch.setattr(network, "run", slow)
    first = threading.Thread(target=by_grpc, args=(fresh, SIMPLE))
    first.start()
    assert begun.wait(30)
    try:
        expect(fresh, "OVERLOADED")
        refused = fresh.http.post(f"/v1/models/{MODEL}:retrieve", json=ASKED)
        assert refused.headers["retry-after"] == "3"
        with pytest.raises(grpc.RpcError) as busy:
            fresh.channel.unary_unary(f"/{SERVICE}/Retrieve")(SIMPLE.body())
        assert dict(busy.value.trailing_metadata())["retry-after"] == "2.5"
    finally:
        go.set()
        first.join()
    expect(fresh, "OK")


def test_bug_is_internal_at_each_door_and_tells_nothing(fresh: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = fresh.switch.current(MODEL)
    assert generation is not None

    def broken(inputs: Any) -> Any:
        raise RuntimeError("secret of the tower")

    monkeypatch.setattr(generation.towers["query"].parts[0].network, "run", broken)
    expect(fresh, "INTERNAL")
    assert "secret" not in ask(fresh, SIMPLE)[0].sentence

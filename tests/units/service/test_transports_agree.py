"""The same request over HTTP as JSON and as protobuf, and over gRPC: one response, the
reference's, and one code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rowcast_client.descriptions import plain_message

from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.units.service import cases, reference, reordering_cases, source_cases, stage_cases
from tests.units.service.cases import LIMITS, MODEL, Case, user
from tests.units.service.clients import SIMPLE, Clients
from tests.units.service.engine.served import SlowTower
from tests.units.service.grpc_api.requests import call, code_of
from tests.units.service.running import FailingTower, RunningService

CASES = (*cases.CASES, *reordering_cases.CASES, *source_cases.CASES, *stage_cases.CASES)
RESPONSES: dict[str, Any] = {
    "retrieve": pb.RetrieveResponse,
    "rank": pb.RankResponse,
    "recommend": pb.RecommendResponse,
    "embed": pb.EmbedResponse,
    "lookup": pb.LookupResponse,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> SmallBundle:
    return write_small_bundle(
        tmp_path_factory.mktemp("bundles"),
        small_towers,
        MODEL,
        1,
        parts=True,
        users=True,
        lists=True,
        keep=40,
    )


@pytest.fixture(scope="module")
def clients(small: SmallBundle) -> Iterator[Clients]:
    service = RunningService(small.directory.parents[1], **LIMITS)
    clients = Clients(service)
    yield clients
    clients.close()
    service.close()


@pytest.fixture
def fresh(write: Callable[..., Any], serve: Callable[..., RunningService]) -> Iterator[Clients]:
    """A service that a test may break, which computes one request at a time, beside the
    event loop.
    """
    write()
    clients = Clients(serve(max_concurrent_requests=1, retry_after_s=2.5, inline_max_us=0))
    yield clients
    clients.close()


def _numbers(data: bytes, kind: str = "<f4") -> list[Any]:
    return list(np.frombuffer(data, kind).tolist())


def _ids(message: pb.Ids) -> list[Any]:
    return list(message.strings.values) or _numbers(message.int64s, "<i8")


def _attribute(message: pb.Attribute) -> list[Any]:
    kind = message.WhichOneof("values")
    values = list[Any]()
    if kind == "lists":
        values = [list(entry.values) for entry in message.lists.values]
    elif kind == "strings":
        values = list(message.strings.values)
    elif kind:
        values = _numbers(getattr(message, kind), "<i8" if kind == "int64s" else "<f8")
    for position in message.nulls:
        values[position] = None
    return values


def _results(name: str, message: Any) -> dict[str, Any]:
    """The content of a message, in the JSON form of a list of results; written apart from the
    service's writers.
    """
    head: dict[str, Any] = {"model": message.model.name, "version": message.model.version}
    if name == "lookup" or name == "embed":
        rows = [
            list(map(float, vector))
            for vector in np.frombuffer(message.vectors, "<f4").reshape(-1, message.dim)
        ]
        if name == "embed":
            return head | {"results": [{"vector": row} for row in rows]}
        return head | {
            "table": message.table,
            "vectors": rows,
            "found": [flag == 1 for flag in message.found],
        }
    if name == "rank":
        ids = _ids(message.ids) if message.HasField("ids") else None
        entries = {
            "scores": _numbers(message.scores),
            "positions": _numbers(message.positions, "<i4"),
        }
        heads = {name: _numbers(scores) for name, scores in message.heads.items()}
        return head | {
            "results": [
                {name: values[first:last] for name, values in entries.items()}
                | {"ids": None if ids is None else ids[first:last]}
                | {"heads": {name: values[first:last] for name, values in heads.items()}}
                for first, last in pairwise(_numbers(message.offsets, "<i4"))
            ]
        }
    columns = {"ids": _ids(message.ids), "scores": _numbers(message.scores)}
    if name == "retrieve":
        head["searched"] = message.searched
    else:
        head["degraded"] = message.degraded
        head["degraded_reason"] = message.degraded_reason
        columns["retrieval_scores"] = _numbers(message.retrieval_scores)
        if message.source_names:
            numbers = _numbers(message.sources, "<i4")
            columns["sources"] = [message.source_names[number] for number in numbers]
    attributes = {key: _attribute(attribute) for key, attribute in message.attributes.items()}
    return head | {
        "results": [
            {key: column[first:last] for key, column in columns.items()}
            | {"attributes": {key: column[first:last] for key, column in attributes.items()}}
            for first, last in pairwise(_numbers(message.offsets, "<i4"))
        ]
    }


_HEAD = ("model", "version", "searched", "degraded", "degraded_reason")


def _listed(name: str, value: dict[str, Any]) -> dict[str, Any]:
    if name == "lookup" or "results" in value:
        return value
    head = {key: value.pop(key) for key in _HEAD if key in value}
    return head | {"results": [value]}


def _float32(value: Any) -> Any:
    """Numbers as the float32 that they stand for."""
    if isinstance(value, list):
        return [_float32(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _float32(entry) for name, entry in value.items()}
    return float(np.float32(value)) if isinstance(value, float) else value


def _is_as_expected(actual: Any, expected: Any) -> bool:
    """Whether a result has what the reference computed, numbers to float32's precision; it may
    have more fields.
    """
    if isinstance(expected, dict):
        return all(_is_as_expected(actual[name], value) for name, value in expected.items())
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(_is_as_expected, actual, expected))
    return bool(
        actual == (pytest.approx(expected, 1e-4, 1e-4) if isinstance(expected, float) else expected)
    )


def test_table_has_every_call_and_no_case_twice() -> None:
    assert {case.call for case in CASES} == set(OPERATIONS)
    assert len({(case.call, case.name) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.call} {case.name}")
def test_transports_given_the_same_request_respond_alike(
    case: Case, clients: Clients, small: SmallBundle
) -> None:
    outcomes = clients.all(case)
    assert [code for code, _ in outcomes] == [case.code] * 3, outcomes
    (_, by_json), (_, by_protobuf), (_, by_grpc) = outcomes
    if case.code != "OK":
        assert by_json
        assert by_protobuf == by_grpc or case.name == "an oversized body"
        return
    message = RESPONSES[case.call].FromString(by_grpc)
    assert RESPONSES[case.call].FromString(by_protobuf) == message
    value = _listed(case.call, json.loads(by_json))
    assert _float32(value) == _float32(_results(case.call, message))
    assert (value["model"], value["version"]) == (MODEL, 1)
    results = [value] if case.call == "lookup" else value["results"]
    assert _is_as_expected(results, reference.responses(small, case.call, case.json)), results


def test_transports_explain_alike(clients: Clients) -> None:
    body = {
        "k": 50,
        "explain": True,
        "filter": {"year": {"ge": 2020}},
        "requests": [{"ids": [1000]}, {"ids": [1259]}],
    }
    for name, request_body in (
        ("retrieve", body),
        ("recommend", {**body, "pool_size": 50, "requests": [user(1)]}),
    ):
        (_, by_json), (_, by_protobuf), (_, by_grpc) = clients.all(
            Case(name, "explained", request_body)
        )
        explanations_by_form = [
            [result["explanation"] for result in json.loads(by_json)["results"]]
        ]
        for message in (by_protobuf, by_grpc):
            explained = RESPONSES[name].FromString(message).explanations
            explanations_by_form.append([plain_message(explanation) for explanation in explained])
        for explanations in explanations_by_form:
            assert all(explanation.pop("search_ms") > 0 for explanation in explanations)
            matches = [10, 9] if name == "retrieve" else [10]
            assert [explanation["matches"] for explanation in explanations] == matches
            assert [explanation["selectivity"] for explanation in explanations] == [
                count / 40 for count in matches
            ]
            assert {explanation["path"] for explanation in explanations} == {"exact"}
            shortfalls = [explanation["shortfall"] for explanation in explanations]
            assert all("candidates pass the filter" in shortfall for shortfall in shortfalls)
        assert explanations_by_form[1] == explanations_by_form[2]


def test_transports_past_the_deadline_fail_alike(clients: Clients) -> None:
    for protobuf in (False, True):
        code, _ = clients.by_http(SIMPLE, protobuf, **{"x-request-timeout-ms": "0"})
        assert code in {"DEADLINE", "OVERLOADED"}
    assert call(clients.channel, "Retrieve", SIMPLE.body(), timeout=-1).code == "DEADLINE_EXCEEDED"


def test_transports_describe_models_alike(clients: Clients) -> None:
    accept = {"accept": "application/x-protobuf"}
    assert (
        clients.http.get("/v1/models", headers=accept).content
        == call(clients.channel, "ListModels").response
    )
    for model, version in ((MODEL, 1), ("books", 0), (MODEL, 9)):
        response = clients.http.get(
            f"/v1/models/{model}" + (f"/versions/{version}" if version else ""), headers=accept
        )
        outcome = call(
            clients.channel,
            "GetModel",
            pb.GetModelRequest(model=pb.ModelSpec(name=model, version=version)),
        )
        if outcome.code == "OK":
            assert (response.status_code, response.content) == (200, outcome.response)
        else:
            error = pb.ErrorDetails.FromString(response.content)
            assert (
                (code_of(error), error.message)
                == (outcome.code, outcome.response)
                == ("NOT_FOUND", outcome.response)
            )


def test_transports_without_a_model_are_not_ready(serve: Callable[..., RunningService]) -> None:
    clients = Clients(serve())
    clients.expect("NOT_READY")
    clients.close()


def test_transports_of_a_draining_service_are_not_ready(fresh: Clients) -> None:
    fresh.expect("OK")
    fresh.service.dataplane.engine.drain()
    fresh.expect("NOT_READY")


def test_transports_with_a_damaged_version_report_data_loss(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(poll_interval_s=3600)  # the next scan would load the version again
    clients = Clients(service)
    problem = "tables/users: block 0 does not match its checksum"
    assert service.worker.versions.damage(service.current(MODEL), problem)
    clients.expect("DATA_LOSS")
    clients.close()


def test_transports_of_a_full_service_reject_with_when_to_retry(fresh: Clients) -> None:
    tower = fresh.service.waiting(MODEL)
    method = fresh.channel.unary_unary("/rowcast.embedding.v1.EmbeddingService/Retrieve")
    first = method.future(SIMPLE.body(), timeout=30)
    assert tower.entered.wait(30)
    try:
        fresh.expect("OVERLOADED")
        assert (
            fresh.http.post(f"/v1/models/{MODEL}:retrieve", json=SIMPLE.json).headers["retry-after"]
            == "3"
        )
        assert call(fresh.channel, "Retrieve", SIMPLE.body()).trailing["retry-after"] == "3"
    finally:
        tower.release.set()
    assert first.result()
    fresh.service.with_network("query", FailingTower(tower))
    fresh.expect("INTERNAL")


def test_transports_with_too_little_time_to_rank_all_append_the_order_of_retrieval(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(request_timeout_s=3)
    service.with_network(
        "ranking", SlowTower(service.current(MODEL).towers["ranking"].parts[0].network)
    )
    clients = Clients(service)
    assert (
        clients.by_grpc(Case("recommend", "measured", {"k": 1, "pool_size": 10, **user()}))[0]
        == "OK"
    )
    outcomes = clients.all(Case("recommend", "slow", {"k": 40, **user()}))
    clients.close()
    assert [code for code, _ in outcomes] == ["OK"] * 3, outcomes
    messages = [RESPONSES["recommend"].FromString(body) for _, body in outcomes[1:]]
    value = json.loads(outcomes[0][1])
    assert value["degraded"]
    assert all(message.degraded for message in messages)
    for reason in (
        value["degraded_reason"],
        *[message.degraded_reason for message in messages],
    ):
        assert re.match(
            r"[1-9][0-9]? of 40 candidates are ranked: .* in the order of retrieval", reason
        )
    assert len(value["ids"]) == 40
    assert service.value("rowcast_degraded_total", model=MODEL) == 3

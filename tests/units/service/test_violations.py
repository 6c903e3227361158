"""What programs read of a failed request: which field is at fault, its value, and what was
expected, on every transport.

`violations.json` has the violation of each request of the tables that fails: as JSON and, where it
differs, as a message. Over HTTP and gRPC, the same message fails alike.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rowcast_client import Client
from rowcast_client import errors as client_errors

from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import write_small_bundle
from tests.units.service import cases, reordering_cases
from tests.units.service.cases import LIMITS, MODEL, Case, rank, user
from tests.units.service.clients import Clients
from tests.units.service.running import RunningService

CASES = [case for case in (*cases.CASES, *reordering_cases.CASES) if case.code != "OK"]
TABLE: dict[str, list[list[str]]] = json.loads(
    Path(__file__).with_name("violations.json").read_text()
)
SECRET = "alice-9cf1"
SECRET_ID = 712_905_831
SECRETS: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown feature": ("retrieve", user(5, **{SECRET: 1})),
    "a value of a feature": ("retrieve", user(SECRET)),
    "a path of features": ("retrieve", {"context": {f"{SECRET}.x": [{"a": 1}]}}),
    "an unknown field": ("retrieve", {SECRET: 1, **user()}),
    "an unknown field of a request": ("retrieve", {"requests": [{SECRET: 1}]}),
    "an attribute of a filter": ("retrieve", {"filter": {SECRET: {"ge": 1}}, **user()}),
    "a bound of a filter": ("retrieve", {"filter": {SECRET: {"ge": "x"}}, **user()}),
    "a token of a filter": ("retrieve", {"filter": {"year": {"allow": [SECRET]}}, **user()}),
    "an attribute of crowding": ("retrieve", {"crowding": {SECRET: SECRET}, **user()}),
    "an index": ("retrieve", {"index": SECRET, **user()}),
    "a formula": ("retrieve", {"formula": f"'{SECRET}'", **user()}),
    "an id of a query": ("retrieve", {"ids": [SECRET_ID]}),
    "an excluded id": ("retrieve", {"exclude_ids": [SECRET], **user()}),
    "a candidate": ("rank", rank([SECRET_ID])),
    "an id of a context": ("rank", {"context_id": SECRET, "candidate_ids": [1000]}),
    "a feature to look up": ("lookup", {"feature": SECRET, "ids": [1]}),
    "an id to look up": ("lookup", {"feature": "movie", "ids": [SECRET_ID]}),
}
"""Requests that fail because of something that only their client may know."""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Clients]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, 1, parts=True, users=True)
    service = RunningService(root, **LIMITS)
    clients = Clients(service)
    yield clients
    clients.close()
    service.close()


def address_of(service: RunningService, transport: str) -> str:
    return {"http": service.http, "grpc": f"grpc://{service.grpc}"}[transport]


def violations_of(details: pb.ErrorDetails) -> list[list[str]]:
    return [
        [violation.field, violation.value, violation.expected] for violation in details.violations
    ]


def name_of(case: Case) -> str:
    return f"{case.call}: {case.name}"


def test_table_has_every_request_that_fails() -> None:
    assert sorted(TABLE) == sorted(map(name_of, CASES))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_failed_request_names_field_value_and_expectation_on_every_transport(
    case: Case, clients: Clients
) -> None:
    by_json, by_protobuf, by_grpc = clients.errors(case)
    assert by_json is not None
    assert by_protobuf is not None
    violations = [violations_of(by_json), violations_of(by_protobuf)]
    expected = TABLE[name_of(case)]
    assert violations == [[expected[0]], [expected[-1]]]
    assert by_json.violations[0].field in by_json.message
    assert by_protobuf.violations[0].field in by_protobuf.message
    # gRPC itself measures messages.
    assert by_grpc is None or by_grpc == by_protobuf
    assert (by_grpc is None) == (case.name == "an oversized body")


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_client_has_the_violations_of_an_error(clients: Clients, transport: str) -> None:
    with Client(address_of(clients.service, transport)) as client:
        with pytest.raises(client_errors.InvalidArgument) as caught:
            client.retrieve({"user": 5}, k=51)
        expected = client_errors.FieldViolation("k", "51", "1 to 50 (max_k), or 0 for 10")
        assert caught.value.violations == (expected,)
        assert caught.value.message == "k is 51; 1 to 50 (max_k), or 0 for 10 was expected"
        with pytest.raises(client_errors.NotFound) as missing:
            client.retrieve({"user": 5}, index="x")
        assert [violation.field for violation in missing.value.violations] == ["index"]
        with pytest.raises(client_errors.TooLarge) as large:
            client.rank({"user": 5}, candidate_ids=[1000] * 61)
        (violation,) = large.value.violations
        assert violation.expected == "at most 60 (max_candidates)"


def test_failure_without_a_field_at_fault_has_no_violations(clients: Clients) -> None:
    late = clients.http.post(
        f"/v1/models/{MODEL}:retrieve", json=user(), headers={"x-request-timeout-ms": "0"}
    )
    error = late.json()["error"]
    assert error["code"] in {"DEADLINE", "OVERLOADED"}
    assert "violations" not in error


def test_headers_and_parts_of_the_url_are_named_as_fields(clients: Clients) -> None:
    def violations(path: str, **headers: str) -> list[Any]:
        dashed = {name.replace("_", "-"): value for name, value in headers.items()}
        response = clients.http.post(path, content=b"{}", headers=dashed)
        return [tuple(entry.values()) for entry in response.json()["error"]["violations"]]

    call = f"/v1/models/{MODEL}:retrieve"
    assert violations(call, content_type="text/plain") == [
        ("content-type", "'text/plain'", "application/json or application/x-protobuf")
    ]
    assert violations(call, content_encoding="br") == [("content-encoding", "'br'", "gzip or none")]
    assert violations(call, x_request_timeout_ms="soon") == [
        ("x-request-timeout-ms", "'soon'", "a number of milliseconds from 0 to 3600000")
    ]
    assert violations(f"/v1/models/{MODEL}/versions/one:retrieve") == [
        ("version", "'one'", "a positive integer")
    ]
    assert violations(f"/v1/models/{MODEL}/labels/canary:retrieve")[0][:2] == (
        "label",
        "'canary'",
    )
    assert violations(f"/v1/models/{MODEL}:train")[0][:2] == ("call", "'train'")
    assert violations("/v1/nothing") == [("path", "'/v1/nothing'", "a path that /docs lists")]


@pytest.mark.parametrize(("call", "body"), SECRETS.values(), ids=SECRETS)
def test_log_of_a_failed_request_has_nothing_that_the_client_sent(
    clients: Clients, caplog: pytest.LogCaptureFixture, call: str, body: dict[str, Any]
) -> None:
    with caplog.at_level(logging.DEBUG):
        response = clients.http.post(f"/v1/models/{MODEL}:{call}", json=body)
    assert response.is_client_error
    text = response.text
    assert SECRET in text or str(SECRET_ID) in text
    logged = [str(record.__dict__) for record in caplog.records]
    assert not [line for line in logged if SECRET in line or str(SECRET_ID) in line]


@pytest.mark.parametrize("letter", ["x", "ж", "😀", "\0", "\n", "%"])
def test_names_of_any_length_and_letters_leave_the_error_readable(
    clients: Clients, letter: str
) -> None:
    name = letter * 1_200
    message = pb.RetrieveRequest(context={name: pb.Column()})
    by_json, by_protobuf, by_grpc = clients.errors(
        Case(
            "retrieve",
            "a long name",
            {"context": {name: None}},
            message=message.SerializeToString(),
        )
    )
    for details in (by_json, by_protobuf, by_grpc):
        assert details is not None
        (violation,) = details.violations
        assert violation.field == f"context.{name}"[: len(violation.field)]
        assert len(violation.field) > len("context.")
        assert details.message.startswith(violation.field)
    assert by_protobuf == by_grpc

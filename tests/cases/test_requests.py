"""Each request of the tables gets the same by every way in: JSON, messages over HTTP and gRPC, and
the four clients. What is accepted gets what the reference computes; what is refused gets a code and
the field at fault.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor

from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import SmallBundle
from tests.cases.bad_values import NO_FIELDS, bad_values, is_for_clients
from tests.cases.random_requests import random_filter, random_request, written
from tests.cases.requests import BROKEN, CASES, HINTS, RANDOM, REFUSALS, REMEDIES
from tests.cases.ways import Outcome, Ways, serving
from tests.random_cases import seeds
from tests.units.service import reference
from tests.units.service.cases import REQUESTS, Case, rank, user

ACCEPTED_SHARE = 0.8
"""Of the random requests."""
SOURCES = 1500
"""Of which one in six is a recommendation from sources."""
SECRET = "alice-9cf1"
Outcomes = list[tuple[Case, Outcome]]
SECRETS: dict[str, dict[str, Any]] = {
    "a feature and its value": user(SECRET, **{SECRET: 1}),
    "a path of features": {"context": {f"{SECRET}.x": [{"a": 1}]}},
    "a field": {SECRET: 1, **user()},
    "a field of a request": {"requests": [{SECRET: 1}]},
    "an attribute and a bound": {"filter": {SECRET: {"ge": SECRET}}, **user()},
    "a condition": {"filter": {"genres": SECRET}, **user()},
    "a token": {"filter": {"year": {"allow": [SECRET]}}, **user()},
    "crowding": {"crowding": {SECRET: SECRET}, **user()},
    "an index": {"index": SECRET, **user()},
    "a formula": {"formula": f"'{SECRET}'", **user()},
    "an id": {"exclude_ids": [SECRET], **user()},
}
"""What only the client of a retrieval may know."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> SmallBundle:
    return written(tmp_path_factory.mktemp("bundles"), small_towers)


@pytest.fixture(scope="module")
def ways(small: SmallBundle) -> Iterator[Ways]:
    with serving(small.directory.parents[1]) as ways:
        yield ways


@pytest.fixture(scope="module")
def by_json(ways: Ways, request: pytest.FixtureRequest) -> Outcomes:
    """What each case gets for its JSON body."""
    drawn = map(random_request, seeds(request, RANDOM, RANDOM))
    return [(case, ways.by_json(case)) for case in (*CASES, *drawn)]


def is_as_expected(actual: Any, expected: Any) -> bool:
    """Whether a result has what the reference computed, numbers to float32's precision; it may
    have more fields.
    """
    if isinstance(expected, dict):
        fields = [name for name in expected if expected[name] is not None]
        return all(is_as_expected(actual[name], expected[name]) for name in fields)
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(is_as_expected, actual, expected))
    if isinstance(expected, float):
        return bool(actual == pytest.approx(expected, 1e-4, 1e-4))
    return bool(actual == expected)


def test_accepted_requests_get_by_every_way_what_the_reference_computes(
    ways: Ways, small: SmallBundle, by_json: Outcomes
) -> None:
    for number, (case, outcome) in enumerate(by_json):
        problem = f"{case}: {case.json}"
        if case.message is not None:
            assert {code for code, _ in ways.by_messages(case)} == {outcome.code}, problem
            continue
        # The random ones are many: each goes by one client.
        turn = number if case.name.startswith("seed ") else None
        for way, by_way in ways.by_clients(case, turn).items():
            assert (by_way.code, by_way.value) == (outcome.code, outcome.value), f"{way}, {problem}"
        check_value(case, outcome, small)


def check_value(case: Case, outcome: Outcome, small: SmallBundle) -> None:
    """Compares what an accepted request gets with what the reference computes."""
    if outcome.code == "OK":
        assert outcome.value["version"] == 1
        results = outcome.value.get("results", [outcome.value])
        expected = reference.responses(small, case.call, case.json)
        assert is_as_expected(results, expected), f"{case}: {case.json}"


def test_sources_are_merged_ranked_and_picked_as_by_loops(
    ways: Ways, small: SmallBundle, request: pytest.FixtureRequest
) -> None:
    drawn = map(random_request, seeds(request, SOURCES, first=30_000))
    for case in [case for case in drawn if "sources" in case.json]:
        check_value(case, ways.by_json(case), small)


def test_any_filter_leaves_the_candidates_of_its_truth_table(
    ways: Ways, small: SmallBundle, request: pytest.FixtureRequest
) -> None:
    counts = set[int]()
    for seed in seeds(request, 200, first=20_000):
        draw = Random(seed)
        query = [draw.gauss(0, 1) for _ in range(8)]
        body = {"k": draw.choice([1, 3, 45]), "vectors": [query], "filter": random_filter(draw)}
        case = Case("retrieve", f"seed {seed}", body)
        outcome = ways.by_json(case)
        if outcome.code == "TOO_LARGE":
            assert outcome.field == "filter"
            continue
        assert outcome.code == "OK", (outcome, body)
        (expected,) = reference.responses(small, "retrieve", body)
        (result,) = outcome.value.get("results", [outcome.value])
        assert result["ids"] == expected["ids"], body
        message = pb.RetrieveResponse.FromString(ways.clients.by_grpc(case)[1])
        assert np.frombuffer(message.ids.int64s, "<i8").tolist() == expected["ids"], body
        counts.add(len(expected["ids"]))
    assert {0, 1, 40} <= counts


def test_messages_get_what_the_json_body_of_the_same_content_gets(ways: Ways) -> None:
    for case in [case for case in CASES if case.message is not None]:
        by_message = ways.clients.by_grpc(case)
        packed = Case(case.call, case.name, case.json)
        assert by_message == ways.clients.by_grpc(packed) == ways.clients.by_http(packed, True), (
            case
        )


def fields_in(message: Any) -> set[str]:
    """Returns the fields of the contract that a message has, at any depth."""
    names = set()
    for field, value in message.ListFields():
        names.add(field.full_name)
        values = value
        if not field.is_repeated:
            values = [value]
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            values = list(value.values())
        for element in values:
            if hasattr(element, "ListFields"):
                names |= fields_in(element)
    return names


def fields_of(message: Descriptor, seen: frozenset[str] = frozenset()) -> set[str]:
    """Returns the fields of the contract that a message may have, at any depth."""
    names = set()
    for field in message.fields:
        if not message.GetOptions().map_entry:
            names.add(field.full_name)
        if field.message_type is not None and field.message_type.full_name not in seen:
            names |= fields_of(field.message_type, seen | {message.full_name})
    return names


def test_every_field_of_every_call_was_in_a_request_that_was_accepted(
    by_json: Outcomes,
) -> None:
    declared = set[str]()
    for message in REQUESTS.values():
        declared |= fields_of(message.DESCRIPTOR)
    drawn = set[str]()
    for case, outcome in by_json:
        if outcome.code == "OK":
            drawn |= fields_in(REQUESTS[case.call].FromString(case.body()))
    # The bundle has no labels, and what does not exist is not sent by default.
    package = "rowcast.embedding.v1"
    elsewhere = {f"{package}.ModelSpec.{name}" for name in ("label", "version")}
    assert declared - drawn - elsewhere == set()


def test_most_random_requests_are_accepted(by_json: Outcomes) -> None:
    drawn = [outcome for case, outcome in by_json if case.name.startswith("seed ")]
    accepted = [outcome for outcome in drawn if outcome.code == "OK"]
    assert len(accepted) > ACCEPTED_SHARE * len(drawn)


@pytest.mark.parametrize("case", REFUSALS, ids=str)
def test_refused_request_gets_the_code_and_the_field_by_every_way(case: Case, ways: Ways) -> None:
    outcome = ways.by_json(case)
    assert (outcome.code, case.field in outcome.field) == (case.code, True), outcome
    (_, _, name) = case.field.rpartition(".")
    for way, by_way in ways.by_clients(case).items():
        assert by_way.code == case.code, (way, by_way)
        if way == "client":
            assert name in by_way.message or "feature '" in by_way.message or name == "request", (
                by_way
            )
        else:
            assert case.field in by_way.field, (way, by_way)


@pytest.mark.parametrize(("name", "call", "body"), HINTS)
def test_misspelled_name_gets_the_one_that_was_probably_meant(
    name: str, call: str, body: dict[str, Any], ways: Ways
) -> None:
    case = Case(call, "a misspelled name", body)
    assert f"'{name}'" in ways.by_json(case).message
    # The client knows the keys of conditions and sources; the service, what a model has.
    if name in {"ge", "allow", "index"}:
        for by_client in ways.by_clients(case).values():
            assert f"did you mean '{name}'?" in by_client.message


@pytest.mark.parametrize(("remedy", "call", "body"), REMEDIES)
def test_usual_mistake_gets_the_remedy(
    remedy: str, call: str, body: dict[str, Any], ways: Ways
) -> None:
    case = Case(call, "a usual mistake", body)
    outcome = ways.by_json(case)
    assert outcome.code == "INVALID_ARGUMENT"
    assert remedy in outcome.message
    # What is expected is logged, so that it never repeats what was sent.
    if '"allow"' in remedy:
        (by_client,) = ways.by_clients(case).values()
        assert "{'allow': [" in by_client.message


def test_explanation_names_the_conditions_that_no_candidate_meets(ways: Ways) -> None:
    misspelt = {"genres": {"allow": ["dramma", "drama"], "deny": ["opra"]}}
    late = {"year": {"ge": 3000}}
    body = {"filter": {**misspelt, "all": [late], "none": [late]}, "explain": True, **user()}
    for call in ("retrieve", "recommend"):
        case = Case(call, "conditions that no candidate meets", body)
        outcome = ways.by_json(case)
        named = ["filter.genres.allow: 'dramma'", "filter.all[0].year"]
        (result,) = outcome.value["results"]
        assert result["explanation"]["unmatched"] == named
        for way, by_way in ways.by_clients(case).items():
            assert by_way.value == outcome.value, way


def test_values_of_another_type_are_refused_by_json_and_the_client(ways: Ways) -> None:
    for case in bad_values():
        outcome = ways.by_json(case)
        assert outcome.code == "INVALID_ARGUMENT", (case, outcome)
        top = case.field.partition(".")[0].partition("[")[0]
        # JSON itself has no numbers that are not finite, and no half of a surrogate pair.
        assert top in outcome.field or outcome.field == "body", (case, outcome)
        if is_for_clients(case):
            for way, by_way in ways.by_clients(case).items():
                assert by_way.code == "INVALID_ARGUMENT", (case, way, by_way)
                named = (top, "feature", "unexpected keyword argument")
                assert any(words in by_way.message for words in named), (case, way, by_way)


def test_fields_that_json_does_not_have_are_in_a_message_that_is_refused() -> None:
    sent_names = {
        name for *_, fields in BROKEN.values() if isinstance(fields, dict) for name in fields
    }
    assert NO_FIELDS - sent_names == {"model"}


@pytest.mark.parametrize(("call", "code", "field", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_message_gets_the_code_and_the_field_over_http_and_grpc(
    call: str, code: str, field: str, message: Any, ways: Ways
) -> None:
    (by_http, error), (by_grpc, by_way) = ways.by_messages(
        Case(call, "broken", {}, message=message)
    )
    assert by_http == by_grpc == code
    assert error is not None
    assert [violation.field for violation in error.violations] == [field]
    assert by_way == error or field == "body"


@pytest.mark.parametrize("body", SECRETS.values(), ids=SECRETS)
def test_log_of_a_refused_request_has_nothing_that_the_client_sent(
    body: dict[str, Any], ways: Ways, caplog: pytest.LogCaptureFixture
) -> None:
    case = Case("retrieve", "a secret", body)
    with caplog.at_level(logging.DEBUG, "rowcast"):
        outcomes = [ways.by_json(case), *ways.by_clients(case).values()]
    for outcome in outcomes:
        assert outcome.code in {"INVALID_ARGUMENT", "NOT_FOUND"}
    assert SECRET in outcomes[0].message
    assert caplog.records
    assert not [record for record in caplog.records if SECRET in str(record.__dict__)]


@pytest.mark.parametrize("letter", ["x", "ж", "\0", "%"])
def test_error_with_a_long_name_fits_into_headers_and_names_its_beginning(
    letter: str, ways: Ways
) -> None:
    name = letter * 2_000
    message = pb.RankRequest(context={name: pb.Column()}).SerializeToString()
    case = Case("rank", "a long name", rank() | {"context": {name: None}}, message=message)
    errors = ways.clients.errors(case)
    for error in errors:
        assert error is not None
        (violation,) = error.violations
        assert f"context.{name}".startswith(violation.field)
        assert len(violation.field) > len("context.")
        assert error.message.startswith(violation.field)
    assert errors[1] == errors[2]

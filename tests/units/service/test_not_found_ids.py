"""Ids that do not exist: an error, or left out and listed in the response and in a metric."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rowcast_client import Client, InvalidArgument, TooLarge, results
from rowcast_client.stubs import embedding_service_pb2 as pb

from service.http.schemas import SCHEMAS
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.units.service.cases import LIMITS, MODEL, Case, column, ids
from tests.units.service.changes.making import candidate, change
from tests.units.service.clients import Clients
from tests.units.service.running import RunningService

UNPACKING: dict[str, Any] = {
    "rank": (pb.RankResponse, results.unpack_ranking),
    "retrieve": (pb.RetrieveResponse, results.unpack_retrieval),
    "lookup": (pb.LookupResponse, results.unpack_lookup),
}
METRIC = "rowcast_not_found_ids_total"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> SmallBundle:
    root = tmp_path_factory.mktemp("bundles")
    lost_rows = {"movies": 3}  # that of 1014
    return write_small_bundle(root, small_towers, MODEL, lost_rows=lost_rows, parts=True)


@pytest.fixture(scope="module")
def clients(small: SmallBundle) -> Iterator[Clients]:
    service = RunningService(small.directory.parents[1], **LIMITS)
    clients = Clients(service)
    yield clients
    clients.close()
    service.close()


def responses(clients: Clients, call: str, body: Any) -> tuple[Any, Any]:
    """Returns a response as JSON, and as the client reads it from the message that both transports
    return.
    """
    outcomes = clients.all(Case(call, "skip", body))
    assert [code for code, _ in outcomes] == ["OK"] * 3, outcomes
    schema = SCHEMAS[call][1]
    schema.model_validate_json(outcomes[0][1], strict=True, extra="forbid")
    response_class, unpack = UNPACKING[call]
    by_http, by_grpc = [response_class.FromString(content) for _, content in outcomes[1:]]
    assert by_http == by_grpc
    return json.loads(outcomes[0][1]), unpack(by_http)


def lists(not_found: tuple[Any, ...]) -> list[list[Any]]:
    return [identifiers.tolist() for identifiers in not_found]


@pytest.mark.parametrize("k", [0, 1])
def test_candidates_that_do_not_exist_are_left_out_and_listed_by_context(
    k: int, clients: Clients
) -> None:
    options = {"k": k, "heads": ["watch"]}
    contexts = [{"context": {"user": user}} for user in (1, 2, 3)]
    candidate_ids = [[1, 1000, 1007], [1, 2, 1], [1021, 3, 1028, 1035]]
    existing = [[1000, 1007], [], [1021, 1028, 1035]]

    def body(candidates: list[list[int]], **more: Any) -> dict[str, Any]:
        pairs = zip(contexts, candidates, strict=True)
        requests = [{**context, "candidate_ids": numbers} for context, numbers in pairs]
        return {**options, **more, "requests": requests}

    expected, _ = responses(clients, "rank", body(existing))
    as_json, typed = responses(clients, "rank", body(candidate_ids, not_found="skip"))
    assert lists(typed.not_found) == [[1], [1, 2, 1], [3]]
    for number, (result, alone) in enumerate(
        zip(as_json["results"], expected["results"], strict=True)
    ):
        assert result["not_found"] == typed.not_found[number].tolist()
        assert "not_found" not in alone
        for name in ("ids", "scores", "heads"):
            assert result[name] == alone[name]
        by_position = [candidate_ids[number][position] for position in result["positions"]]
        assert by_position == result["ids"]
        assert result["ids"] == typed[number].ids.tolist()
        assert result["positions"] == typed[number].positions.tolist()


def test_candidate_that_does_not_exist_is_an_error_unless_it_is_skipped(clients: Clients) -> None:
    for call, field, body in [
        (
            "rank",
            "candidate_ids[1]",
            {"context": {"user": 1}, "candidate_ids": [1000, 1]},
        ),
        ("retrieve", "ids[1]", {"not_found": "error", "ids": [1000, 1]}),
        (
            "retrieve",
            "ids",
            {"not_found": "error", "requests": [{"ids": [1000]}, {"ids": [1, 1000]}]},
        ),
    ]:
        outcomes = clients.all(Case(call, "error", body))
        assert [code for code, _ in outcomes] == ["INVALID_ARGUMENT"] * 3
        assert {message for _, message in outcomes} == {
            f"{field}: candidate 1 is not in corpus 'movies' of 40 candidates; set not_found to "
            "skip to leave such ids out"
        }


def test_response_to_one_context_lists_what_was_not_found_beside_its_ids(clients: Clients) -> None:
    body = {"not_found": "skip", "context": {"user": 1}, "candidate_ids": [1, "2"]}
    as_json, typed = responses(clients, "rank", body)
    result = {"ids": [], "scores": [], "positions": [], "heads": {}, "not_found": [1, 2]}
    assert as_json == {"model": MODEL, "version": 1, **result}
    assert lists(typed.not_found) == [[1, 2]]
    as_json, _ = responses(clients, "rank", {**body, "candidate_ids": [1000]})
    assert as_json["not_found"] == []


def test_candidate_whose_features_are_sent_needs_not_exist(clients: Clients) -> None:
    features = {"movie": [1000, 1007], "genres": [["drama"], []], "year": [0.5, 0.25]}
    body = {
        "context": {"user": 1},
        "candidate_ids": [1, 1000],
        "candidate_features": features,
        "not_found": "skip",
    }
    as_json, _ = responses(clients, "rank", body)
    assert (as_json["ids"], as_json["not_found"]) == ([1, 1000], [])
    # What is sent of some features is that of the candidates that exist.
    some_sent = {**body, "candidate_features": {"year": [0.5, 0.25]}}
    as_json, _ = responses(clients, "rank", some_sent)
    alone = {"candidate_ids": [1000], "candidate_features": {"year": [0.25]}}
    expected, _ = responses(clients, "rank", {**some_sent, **alone})
    assert (as_json["scores"], as_json["not_found"]) == (expected["scores"], [1])
    del body["candidate_ids"]
    as_json, _ = responses(clients, "rank", body)
    assert as_json["ids"] is None
    assert "not_found" not in as_json


def test_candidate_that_fails_keeps_its_position_beside_others_that_do_not_exist(
    clients: Clients,
) -> None:
    with Client(f"grpc://{clients.service.grpc}") as client:
        ranked = client.rank(
            [{"user": 1}, {"user": 2}], [[1], [2, 1000, 3, 1014, 1021]], not_found="skip"
        )
    assert [(failed.context, failed.position) for failed in ranked.failed] == [(1, 3)]
    assert ranked[1].positions.tolist() == [1, 4]
    assert lists(ranked.not_found) == [[1], [2, 3]]


def test_ids_that_do_not_exist_count_in_the_size_of_a_response(small: SmallBundle) -> None:
    service = RunningService(small.directory.parents[1], max_response_bytes=64 << 10)
    try:
        with Client(service.http) as client:
            ranked = client.rank({"user": 1}, [1] * 1000 + [1000], k=1, not_found="skip")
            assert ranked.not_found[0].size == 1000
            with pytest.raises(TooLarge, match="max_response_bytes"):
                client.rank({"user": 1}, [1] * 3000 + [1000], k=1, not_found="skip")
    finally:
        service.close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attributes": ["title"], "exact": True},
        {"diversity": 0.5, "min_score": -100.0, "pool_size": 10},
        {"crowding": {"classic": 1}, "formula": "score + rating", "pool_size": 10},
        {"offset": 2, "pool_size": 10},
    ],
)
def test_query_of_an_id_that_does_not_exist_has_no_neighbors(
    options: dict[str, Any], clients: Clients
) -> None:
    existing = [
        {"ids": [1000], "negative_ids": [1028]},
        {"ids": [1007, 1035], "exclude_ids": [1021]},
    ]
    requests = [
        {"ids": [1]},
        {**existing[0], "ids": [1000, 2]},
        {"ids": [3, 3], "exclude_ids": [1000], "negative_ids": [1000]},
        {**existing[1], "ids": [1007, 4, 1035]},
    ]
    expected, _ = responses(clients, "retrieve", {"k": 3, **options, "requests": existing})
    body = {"k": 3, **options, "not_found": "skip", "requests": requests}
    as_json, typed = responses(clients, "retrieve", body)
    assert lists(typed.not_found) == [[1], [2], [3, 3], [4]]
    assert [result.pop("not_found") for result in as_json["results"]] == [[1], [2], [3, 3], [4]]
    assert [as_json["results"][number] for number in (1, 3)] == expected["results"]
    assert [len(typed[number]) for number in range(4)] == [0, 3, 0, 3]


def test_queries_none_of_which_exists_are_checked_like_others(clients: Clients) -> None:
    body = {"not_found": "skip", "explain": True, "ids": [1], "attributes": ["title"]}
    outcomes = clients.all(Case("retrieve", "explained", body))
    assert json.loads(outcomes[0][1]) == {
        "model": MODEL,
        "version": 1,
        "searched": 40,
        "ids": [],
        "scores": [],
        "attributes": {"title": []},
        "not_found": [1],
        "explanation": {
            "path": "none",
            "matches": 0,
            "selectivity": 0.0,
            "scored": 0,
            "search_ms": 0.0,
            "shortfall": "none of the ids of the query exists",
        },
    }
    for wrong in (
        {"filter": {"no such": {"ge": 1}}},
        {"k": 51},
        {"attributes": ["no such"]},
        {"formula": "score +"},
        {"diversity": 2.0},
    ):
        assert {code for code, _ in clients.all(Case("retrieve", "wrong", {**body, **wrong}))} == {
            "INVALID_ARGUMENT"
        }


def test_retrieval_that_sends_no_ids_lists_none(clients: Clients) -> None:
    for query in ({"context": {"user": 1}}, {"vectors": [[0.5] * 8]}):
        as_json, typed = responses(clients, "retrieve", {"not_found": "skip", **query})
        assert "not_found" not in as_json
        assert lists(typed.not_found) == [[]]


@pytest.mark.parametrize(
    ("feature", "requested", "not_found", "unknown_row"),
    [
        ("movie", [1000, 1, 1007, 1], [1, 1], None),
        ("history", [1, 1000], [1], None),
        ("user", [7, 999], [999], 0),
    ],
    ids=["refuse", "zeros", "row"],
)
def test_lookup_lists_the_ids_that_the_table_does_not_have(
    feature: str,
    requested: list[int],
    not_found: list[int],
    unknown_row: int | None,
    clients: Clients,
    small: SmallBundle,
) -> None:
    body = {"feature": feature, "ids": requested, "not_found": "skip"}
    as_json, typed = responses(clients, "lookup", body)
    assert as_json["not_found"] == typed.not_found.tolist() == not_found
    is_found = [number not in not_found for number in requested]
    assert as_json["found"] == typed.found.tolist() == is_found
    unknown = np.zeros(8, np.float32)
    if unknown_row is not None:
        unknown = small.tables["users"][unknown_row]
    for vector in typed.vectors[~typed.found]:
        np.testing.assert_array_equal(vector, unknown)

    del body["not_found"]
    codes = [code for code, _ in clients.all(Case("lookup", "not skipped", body))]
    if feature == "movie":
        assert codes == ["INVALID_ARGUMENT"] * 3
    else:
        as_json, typed = responses(clients, "lookup", body)
        assert "not_found" not in as_json
        assert typed.not_found.size == 0


def test_ids_that_were_skipped_are_counted(clients: Clients) -> None:
    service = clients.service

    def counts() -> list[float]:
        calls = ("rank", "retrieve", "lookup")
        return [service.value(METRIC, model=MODEL, call=call) for call in calls]

    before = counts()
    with Client(service.http) as client:
        client.rank({"user": 1}, [1, 1, 1000], not_found="skip")
        client.retrieve(ids=[1, 1000, 2], not_found="skip")
        client.lookup("user", [999, 5], not_found="skip")
        client.lookup("user", [999, 5])
        with pytest.raises(InvalidArgument):
            client.rank({"user": 1}, [1])
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("rule", "quoted"),
    [("ignore", "'ignore'"), ("", "''"), (True, "true"), (None, "null"), (["skip"], "['skip']")],
)
def test_rule_that_is_none_is_rejected(rule: Any, quoted: str, clients: Clients) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "rank": {"context": {"user": 1}, "candidate_ids": [1000]},
        "retrieve": {"ids": [1000]},
        "lookup": {"feature": "user", "ids": [1]},
    }
    for call, body in bodies.items():
        case = Case(call, "wrong rule", {**body, "not_found": rule})
        code, message = clients.by_http(case, protobuf=False)
        assert code == "INVALID_ARGUMENT"
        assert message == f"not_found is {quoted}; 'error' or 'skip' was expected"


def test_number_of_no_rule_is_rejected(clients: Clients) -> None:
    lookup = {"feature": "user", "ids": column([1]), "not_found": 9}
    for case in (
        Case("retrieve", "wrong rule", {}, message={"ids": ids([1000]), "not_found": 9}),
        Case("lookup", "wrong rule", {}, message=lookup),
    ):
        for code, message in (clients.by_http(case, protobuf=True), clients.by_grpc(case)):
            assert code == "INVALID_ARGUMENT"
            assert message == (
                "not_found is 9; NOT_FOUND_RULE_ERROR or NOT_FOUND_RULE_SKIP was expected"
            )


def test_string_ids_and_large_ones_are_listed_as_they_were_sent(
    root: Path, small_towers: Path, serve: Callable[..., RunningService], clients: Clients
) -> None:
    write_small_bundle(root, small_towers, id_kind="string")
    with Client(f"grpc://{serve().grpc}") as client:
        ranked = client.rank({"user": 1}, ["m-0", "gone", "m-1", ""], not_found="skip")
        np.testing.assert_array_equal(ranked[0].ids, ["m-0", "m-1"])
        assert lists(ranked.not_found) == [["gone", ""]]
        retrieved = client.retrieve(ids=[["gone"], ["m-0"]], k=2, not_found="skip")
        assert [len(neighbors) for neighbors in retrieved] == [0, 2]
        assert lists(retrieved.not_found) == [["gone"], []]
        looked_up = client.lookup("movie", ["m-0", "gone"], not_found="skip")
        assert looked_up.not_found.tolist() == ["gone"]
    body = {"context": {"user": 1}, "candidate_ids": [2**53, 1000], "not_found": "skip"}
    as_json, _ = responses(clients, "rank", body)
    assert as_json["not_found"] == [str(2**53)]


def test_value_that_is_no_id_is_an_error_all_the_same(clients: Clients) -> None:
    body = {"not_found": "skip", "requests": [{"context": {"user": 1}, "candidate_ids": ["m"]}]}
    outcomes = clients.all(Case("rank", "no id", body))
    assert {code for code, _ in outcomes} == {"INVALID_ARGUMENT"}


def test_candidate_that_was_deleted_while_it_was_served_does_not_exist(
    root: Path, small_towers: Path, serve: Callable[..., RunningService]
) -> None:
    write_small_bundle(root, small_towers)
    service = serve()
    change(service, "candidates/upsert", candidate(5000))
    change(service, "candidates/delete", {"id": 1007})
    with Client(service.http) as client:
        ranked = client.rank({"user": 1}, [1000, 1007, 5000], not_found="skip")
        np.testing.assert_array_equal(ranked[0].ids, [1000, 5000])
        assert lists(ranked.not_found) == [[1007]]
        retrieved = client.retrieve(ids=[[1007], [5000, 1007]], k=2, not_found="skip")
        assert [len(neighbors) for neighbors in retrieved] == [0, 2]
        assert lists(retrieved.not_found) == [[1007], [1007]]

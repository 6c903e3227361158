"""Requests to bundles that are special: rows that are not finite, inputs that no tower reads, lists
of fixed lengths, and ids that are strings or do not exist. They get the same by every way in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bundle.format.manifest import InputLength
from tests.bundles.small import feature_entries, write_small_bundle
from tests.cases.bad_values import BODIES
from tests.cases.ways import Outcome, Ways, serving
from tests.units.service.cases import MODEL, Case

LOST = {"users": 5, "movies": 3}
"""Row 3 of the movies is that of the third candidate: row 0 is no movie."""
MOVIES = [1000, 1007, 1014, 1021]
UNREAD = {"length": 3, "words": ["a", "b"]}
LENGTHS = {
    "exact": InputLength(values=3),
    "fitted": InputLength(values=3, pad=1000, pad_side="start", keep="last"),
    "first": InputLength(values=3, keep="first"),
}
"""Of the bag `history`, which query towers read, and of the sequence `recent`, which ranking towers
read, by model.
"""


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    """A service of a model for each peculiarity."""
    root = tmp_path_factory.mktemp("bundles")
    for model, parts in (("lost", True), ("lost whole", False)):
        write_small_bundle(root, small_towers, model.replace(" ", "_"), lost_rows=LOST, parts=parts)
    write_small_bundle(root, small_towers, "unread", unread_inputs=tuple(UNREAD))
    write_small_bundle(root, small_towers, "named", id_kind="string")
    write_small_bundle(root, small_towers, MODEL)
    for model, length in LENGTHS.items():
        update = {"input_length": length, "default": None}
        names = ("history", "recent")
        entries = {name: feature_entries()[name].model_copy(update=update) for name in names}
        write_small_bundle(root, small_towers, model, features=entries)
    with serving(root) as ways:
        yield ways


def outcome(ways: Ways, call: str, body: dict[str, Any], model: str) -> Outcome:
    """Returns what a request gets, once it is known to be the same by every way."""
    case = Case(call, "", body, model=model)
    by_json = ways.by_json(case)
    for way, by_way in ways.by_clients(case).items():
        assert (by_way.code, by_way.value) == (by_json.code, by_json.value), way
        assert way == "client" or by_way.message == by_json.message
    return by_json


def of_user(user: int, **features: Any) -> dict[str, Any]:
    return {"context": {"user": user, **features}}


LOST_ROWS: list[tuple[str, dict[str, Any], str, int]] = [
    ("embed", {"tower": "query", "features": {"user": 5}}, "users", 5),
    ("retrieve", of_user(5), "users", 5),
    ("recommend", of_user(5), "users", 5),
    ("rank", of_user(5) | {"candidate_ids": MOVIES}, "users", 5),
    # One of several ids of a bag and of a sequence.
    ("retrieve", of_user(7, history=[1000, 1014]), "movies", 1014),
    ("rank", of_user(7, recent=[1007, 1014]) | {"candidate_ids": MOVIES[:2]}, "movies", 1014),
    ("lookup", {"feature": "user", "ids": [1, 5]}, "users", 5),
]


@pytest.mark.parametrize("model", ["lost", "lost_whole"])
@pytest.mark.parametrize(("call", "body", "table", "value"), LOST_ROWS)
def test_row_of_a_context_that_is_not_finite_is_the_services_error_with_table_and_id(
    call: str, body: dict[str, Any], table: str, value: int, model: str, ways: Ways
) -> None:
    refused = outcome(ways, call, body, model)
    assert refused.code == "INTERNAL"
    assert f"id {value} in table '{table}'" in refused.message


@pytest.mark.parametrize("model", ["lost", "lost_whole"])
def test_row_of_a_candidate_that_is_not_finite_fails_this_candidate_alone(
    model: str, ways: Ways
) -> None:
    def ranked(movies: list[int], **options: Any) -> Any:
        body = {"heads": ["watch"], **of_user(7), "candidate_ids": movies, **options}
        return outcome(ways, "rank", body, model).value["results"][0]

    finite = [movie for movie in MOVIES if movie != 1014]
    for options in ({}, {"k": 2}):
        alone = ranked(finite, **options)
        result = ranked(MOVIES, **options)
        for name in ("ids", "scores", "heads"):
            assert result[name] == alone[name]
        assert [MOVIES[position] for position in result["positions"]] == result["ids"]
    skipping = ranked([2, 1000, 3, 1014, 1021], not_found="skip")
    assert (skipping["positions"], skipping["not_found"]) == ([1, 4], [2, 3])
    # What is behind the end of a sequence is not read.
    cut = of_user(7, recent=[1000, 1007, 1021, 1014]) | {"candidate_ids": [1000]}
    assert outcome(ways, "rank", cut, model).code == "OK"
    failed = (
        ways.waiting["grpc"].rank([{"user": 6}, {"user": 7}], [[1000], MOVIES], model=model).failed
    )
    assert [
        (failed_candidate.context, failed_candidate.position) for failed_candidate in failed
    ] == [(1, 2)]
    assert "1014" in failed[0].message
    by_json = ways.clients.http.post(
        f"/v1/models/{model}:rank", json=of_user(7) | {"candidate_ids": MOVIES}
    )
    (failure,) = by_json.json()["failed"]
    assert failure == {"position": 2, "message": failed[0].message}
    recommended = outcome(ways, "recommend", of_user(7) | {"k": 40, "pool_size": 40}, model).value
    ids = recommended["results"][0]["ids"]
    assert (len(ids), 1014 in ids, recommended["degraded"]) == (39, False, True)
    assert "1 of 40" in recommended["degraded_reason"]


def test_inputs_that_no_tower_reads_change_no_response(ways: Ways) -> None:
    candidates = {"movie": [1000, 1007], "genres": [[], []], "year": [0.5, 0.75]}
    bodies: dict[str, dict[str, Any]] = {call: dict(BODIES[call]) for call in ("retrieve", "embed")}
    bodies |= {"recommend": {"k": 3, **of_user(7)}}
    bodies |= {"rank": of_user(7) | {"candidate_features": candidates}}
    for call, body in bodies.items():
        sent_body = dict(body)
        for field in {"context", "features", "candidate_features"} & {*body}:
            count = 2 if field == "candidate_features" else 0
            more = {name: [value] * count if count else value for name, value in UNREAD.items()}
            sent_body[field] = body[field] | more
            expected = outcome(ways, call, body, "unread")
            assert expected.code == "OK"
            assert outcome(ways, call, sent_body, "unread") == expected
            wrong = {**sent_body, field: sent_body[field] | {"lenght": [3] * count or 3}}
            assert outcome(ways, call, wrong, "unread").code == "INVALID_ARGUMENT"


def lists(values: list[int]) -> dict[str, dict[str, Any]]:
    """Returns a request of each call with a list of these values."""
    queried = {"user": 7, "history": values}
    ranked = {"user": 7, "recent": values}
    return {
        "retrieve": {"context": queried, "k": 3},
        "recommend": {"context": {**queried, **ranked}, "k": 3},
        "rank": {"context": ranked, "candidate_ids": MOVIES[:2]},
        "embed": {"tower": "query", "features": queried},
    }


@pytest.mark.parametrize(
    ("model", "values", "same"),
    [
        ("exact", [], None),
        ("exact", MOVIES, None),
        ("exact", MOVIES[:3], MOVIES[:3]),
        ("first", MOVIES[:2], None),
        ("first", MOVIES, MOVIES[:3]),
        ("fitted", MOVIES, MOVIES[1:]),
        ("fitted", [1014], [1000, 1000, 1014]),
    ],
)
def test_list_of_another_length_is_refused_or_the_list_that_the_recipe_makes_of_it(
    model: str, values: list[int], same: list[int] | None, ways: Ways
) -> None:
    for call, body in lists(values).items():
        result = outcome(ways, call, body, model)
        if same is None:
            field = {"rank": "context.recent", "embed": "features.history"}.get(call)
            assert (result.code, result.field) == ("INVALID_ARGUMENT", field or "context.history")
            assert f"{len(values)} values" in result.message
        else:
            assert result.code == "OK"
            assert result == outcome(ways, call, lists(same)[call], model)


def test_missing_list_of_a_fixed_length_is_refused(ways: Ways) -> None:
    body = {"tower": "query", "features": {"user": 7}}
    assert outcome(ways, "embed", body, "exact").field == "features.history"


def test_ids_that_do_not_exist_are_listed_as_they_were_sent_and_counted(ways: Ways) -> None:
    def not_found(call: str, body: dict[str, Any], model: str) -> Any:
        value = outcome(ways, call, {"not_found": "skip", **body}, model).value
        return value.get("not_found", value.get("results", [{}])[0].get("not_found"))

    def counts() -> list[float]:
        name = "rowcast_not_found_ids_total"
        calls = ("rank", "retrieve", "lookup")
        return [ways.service.value(name, model="named", call=call) for call in calls]

    rank = of_user(1) | {"candidate_ids": ["m-0", "gone", "m-1", ""]}
    assert not_found("rank", rank, "named") == ["gone", ""]
    assert not_found("retrieve", {"ids": ["gone", "m-0"]}, "named") == ["gone"]
    assert not_found("lookup", {"feature": "movie", "ids": ["m-0", "gone"]}, "named") == ["gone"]
    ways_in = 5
    assert counts() == [2 * ways_in, ways_in, ways_in]
    large = Case("rank", "", of_user(1) | {"candidate_ids": [2**53, 1000], "not_found": "skip"})
    assert ways.by_json(large).value["results"][0]["not_found"] == [str(2**53)]
    for call, field, body in (
        ("rank", "candidate_ids[1]", of_user(1) | {"candidate_ids": ["m-0", "gone"]}),
        ("retrieve", "ids[1]", {"ids": ["m-0", "gone"]}),
        ("rank", "candidate_ids", of_user(1) | {"candidate_ids": [5], "not_found": "skip"}),
    ):
        refused = outcome(ways, call, body, "named")
        assert (refused.code, refused.field.startswith(field)) == ("INVALID_ARGUMENT", True)


def test_ids_that_do_not_exist_count_in_the_size_of_a_response(ways: Ways) -> None:
    limits = {"max_response_bytes": 64 << 10, "max_values": 9_000, "max_candidates": 9_000}
    with serving(ways.service.settings.root, max_request_bytes=1 << 20, **limits) as large:
        for count, code in ((1000, "OK"), (3000, "TOO_LARGE")):
            body = of_user(1) | {"candidate_ids": [1] * count + [1000], "k": 1, "not_found": "skip"}
            assert outcome(large, "rank", body, MODEL).code == code

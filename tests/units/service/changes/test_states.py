"""What is served follows from the log and the version alone: whatever order numbered changes came
in, whatever the process knew when it took them, and whenever it started.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.bundles.small import SmallBundle, write_small_bundle
from tests.e2e.process import until
from tests.random_cases import seeds
from tests.units.service.changes.making import (
    TREE,
    Rejected,
    candidate,
    change,
    deletion,
    ids_of,
    operate,
    random_vectors,
    responds,
)
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
State = dict[str, Any] | None
ATTRIBUTES = ["title", "year", "rating"]
BUNDLED = [1000 + 7 * number for number in range(20)]
ADDED = [*range(5000, 5040)]
FAR_S = 4e9


def attributes_of(drawn: random.Random) -> dict[str, Any]:
    values = {
        "title": f"Title {drawn.randrange(100)}",
        "year": drawn.choice([None, drawn.randrange(1990, 2040)]),
        "rating": drawn.random(),
    }
    return {name: values[name] for name in drawn.sample(ATTRIBUTES, drawn.randint(1, 3))}


def numbered(drawn: random.Random, key: int, number: int) -> tuple[str, dict[str, Any]]:
    """Returns a change of a candidate, by its action and its item."""
    action = drawn.choice(["upsert", "upsert", "attributes", "attributes", "delete"])
    item: dict[str, Any] = {"id": key, "sequence": number}
    if action == "upsert":
        item = candidate(key, attributes=attributes_of(drawn), sequence=number)
    if action == "attributes":
        item["attributes"] = attributes_of(drawn)
    return action, item


def states_of(service: RunningService, keys: list[int]) -> dict[int, State]:
    """Returns the attributes of candidates; None: there is no such candidate."""
    body: dict[str, Any] = {
        "vectors": [[1.0] * 8],
        "k": 1000,
        "exact": True,
        "attributes": ATTRIBUTES,
    }
    content = responds(service, "retrieve", **body)
    values = zip(*[content["attributes"][name] for name in ATTRIBUTES], strict=True)
    states: dict[int, State] = dict.fromkeys(keys)
    for key, attributes in zip(content["ids"], values, strict=True):
        if key in states:
            states[key] = dict(zip(ATTRIBUTES, attributes, strict=True))
    return states


def test_numbered_changes_in_any_order_leave_the_state_of_their_numbers(
    write: Write, serve: Serve, request: pytest.FixtureRequest
) -> None:
    write(size=20)
    service = serve()
    (seed,) = seeds(request, 1, 3)[:1]
    drawn = random.Random(seed)
    keys = BUNDLED + ADDED
    expected = states_of(service, keys)
    changes = []
    for key in keys:
        for number in range(1, drawn.randint(2, 6)):
            action, item = numbered(drawn, key, number)
            changes.append((action, item))
            state = expected[key]
            if action == "delete":
                expected[key] = None
            if action == "upsert":
                expected[key] = {**dict.fromkeys(ATTRIBUTES), **item["attributes"]}
            if action == "attributes" and state is not None:
                expected[key] = {**state, **item["attributes"]}
    drawn.shuffle(changes)
    for action, item in changes:
        change(service, f"candidates/{action}", item)
        if drawn.random() < 0.1:
            change(service, f"candidates/{action}", item)
    assert states_of(service, keys) == expected
    assert states_of(serve(), keys) == expected


@pytest.fixture
def next_version(write: Write, small_towers: Any) -> Callable[..., None]:
    """Writes version 1, and returns what writes version 2 and loads it in a service."""
    first = write(size=20)

    def write_next(service: RunningService, **options: Any) -> None:
        write_small_bundle(first.directory.parents[1], small_towers, version=2, **options)
        service.scan()
        until(lambda: service.current().version == 2)

    return write_next


def test_deletion_of_an_id_that_only_a_later_version_has_is_kept(
    next_version: Callable[..., None], serve: Serve
) -> None:
    service = serve()
    later = [1000 + 7 * number for number in range(20, 30)]
    deleted = change(service, "candidates/delete", *deletion(later))
    assert (deleted["changed"], deleted["unknown"]) == (0, later)
    change(service, "candidates/attributes", {"id": 1000 + 7 * 35, "attributes": {"year": 1901}})
    next_version(service, size=40)
    assert not ids_of(service) & {*later}
    assert states_of(service, [1245])[1245]["year"] == 1901  # type: ignore[index]


def test_candidate_whose_vector_was_sent_is_embedded_by_the_next_version(
    next_version: Callable[..., None], serve: Serve
) -> None:
    service = serve()
    vector = random_vectors(1)[0].tolist()
    change(service, "candidates/delete", *deletion([1007, 1014]))
    for key in (1007, 5000):
        change(service, "candidates/upsert", candidate(key, vectors={"movies": vector}))
    change(service, "candidates/upsert", candidate(5001))
    next_version(service, size=20)
    assert {1007, 5000, 5001} <= ids_of(service)
    assert 1014 not in ids_of(service)
    # All three have the same features, of which the tower of version 2 makes the same vector.
    body: dict[str, Any] = {"vectors": [[1.0] * 8], "k": 1000, "exact": True}
    content = responds(service, "retrieve", **body)
    scores = dict(zip(content["ids"], content["scores"], strict=True))
    assert scores[1007] == scores[5000] == scores[5001]


def test_rows_and_vectors_of_the_next_training_are_no_repetition(
    next_version: Callable[..., None], serve: Serve
) -> None:
    service = serve()
    vectors = random_vectors(3).tolist()
    row = {"id": 1007, "vector": vectors[0], "sequence": 5}
    upserted = candidate(5000, vectors={"movies": vectors[1]}, sequence=5)
    stream: dict[str, Any] = {"stream": "rows", "offset": 9}
    change(service, "rows/upsert", row, feature="movie", **stream)
    change(service, "candidates/upsert", upserted)
    next_version(service, size=20)
    row["vector"] = vectors[2]
    upserted["vectors"] = {"movies": vectors[2]}
    assert change(service, "rows/upsert", row, feature="movie", **stream)["changed"] == 1
    assert change(service, "candidates/upsert", upserted)["changed"] == 1
    looked_up = responds(service, "lookup", feature="movie", ids=[1007])
    assert looked_up["vectors"] == [pytest.approx(vectors[2])]
    # Once more, both are.
    repeated = change(service, "rows/upsert", row, feature="movie", **stream)
    assert (repeated["is_repeated"], repeated["version"], repeated["stream_offset"]) == (True, 2, 9)
    assert change(service, "rows/upsert", row, feature="movie")["outdated"] == [1007]
    assert change(service, "candidates/upsert", upserted)["outdated"] == [5000]
    assert operate(service, "GET", "changes")["streams"] == {"rows": 9}


def test_what_follows_vectors_in_a_stream_follows_them_when_they_are_sent_again(
    next_version: Callable[..., None], serve: Serve
) -> None:
    service = serve()
    keys = [5000, 5001]

    def send(version: int, *offsets: int) -> list[bool]:
        """Sends changes of a stream with the vectors of a version; returns which were repeated."""
        vectors = {"movies": random_vectors(1, seed=version)[0].tolist()}
        stream: list[tuple[str, dict[str, Any]]] = [
            ("upsert", candidate(5000, vectors=vectors)),
            ("upsert", candidate(5001, vectors=vectors)),
            ("delete", {"id": 5000}),
            ("attributes", {"id": 5001, "attributes": {"title": "A later title"}}),
        ]
        repeated = []
        for offset in offsets:
            action, item = stream[offset - 1]
            options: dict[str, Any] = {"stream": "catalog", "offset": offset}
            result = change(service, f"candidates/{action}", item, **options)
            repeated.append(result.get("is_repeated", False))
        return repeated

    assert send(1, 1, 2, 3, 4) == [False] * 4
    expected = states_of(service, keys)
    next_version(service, size=20)
    assert send(2, 1, 2) == [False] * 2
    for next_offset in (3, 4, 5):
        assert operate(service, "GET", "changes")["streams"] == {"catalog": next_offset - 1}
        operate(service, "POST", "changes/compact", json={})
        service.close()
        service = serve()
        assert all(send(2, *range(1, next_offset)))
        if next_offset < 5:
            assert send(2, next_offset) == [False]
    assert expected[5000] is None
    assert states_of(service, keys) == expected


def test_rows_are_numbered_whatever_the_ids_are_called(write: Write, serve: Serve) -> None:
    """The row of a table and the id by which a feature reads it are one thing."""
    small = write(size=20)
    service = serve()
    by_row = {"id": 6, "vector": [0.5] * 8, "sequence": 3}
    change(service, "rows/upsert", by_row, table="movies")
    looked_up = responds(service, "lookup", feature="movie", ids=small.ids.tolist())
    (number,) = [n for n, vector in enumerate(looked_up["vectors"]) if vector == [0.5] * 8]
    by_id = {"id": int(small.ids[number]), "vector": [0.25] * 8, "sequence": 2}
    result = change(service, "rows/upsert", by_id, feature="movie")
    assert result["outdated"] == [by_id["id"]]


def test_numbers_count_though_the_log_is_compacted(write: Write, serve: Serve) -> None:
    write(size=20)
    service = serve()

    def set_title(number: int, title: str) -> list[int]:
        """Returns the ids that were outdated."""
        item = {"id": 1007, "attributes": {"title": title}, "sequence": number}
        outdated: list[int] = change(service, "candidates/attributes", item).get("outdated", [])
        return outdated

    assert set_title(7, "A later title") == []
    upserted = candidate(1007, attributes={"title": "Another"})
    for _ in range(2):
        change(service, "candidates/upsert", upserted)
    change(service, "candidates/delete", {"id": 1014, "sequence": 3})
    change(service, "candidates/upsert", candidate(1014))
    expected = states_of(service, [1007, 1014])
    assert operate(service, "POST", "changes/compact", json={})["dropped"] == 1
    service.close()
    service = serve()
    assert states_of(service, [1007, 1014]) == expected
    assert set_title(6, "An earlier title") == [1007]
    deleted = change(service, "candidates/delete", {"id": 1014, "sequence": 2})
    assert deleted["outdated"] == [1014]
    assert states_of(service, [1007, 1014]) == expected


@pytest.mark.parametrize("options", [{}, {**TREE, "keep": 10}])
def test_nothing_is_found_where_all_candidates_are_deleted(
    write: Write, serve: Serve, options: dict[str, Any]
) -> None:
    small = write(size=60, **options)
    service = serve()
    change(service, "candidates/delete", *deletion(small.ids.tolist()))
    context: dict[str, Any] = {"context": {"user": 7, "hour": 9.0}}
    selections: list[dict[str, Any]] = [{}, {"diversity": 0.5}, {"crowding": {"studio": 1}}]
    for running in (service, serve()):
        for selection in selections:
            for call in ("retrieve", "recommend"):
                response = responds(running, call, **context, **selection)
                assert response["ids"] == []
                assert not response.get("degraded")


def test_expired_candidate_is_in_no_response_from_that_time_on(write: Write, serve: Serve) -> None:
    write(lists=True)
    service = serve(max_changed_candidates=4)
    # Late enough for the changes before it on a busy machine.
    soon_s = time.time() + 5
    items = [candidate(key, expires_s=soon_s) for key in (5000, 1000, 1007)]
    change(service, "candidates/upsert", *items, candidate(5001, expires_s=FAR_S))
    renewed = candidate(1007, expires_s=None)
    change(service, "candidates/upsert", renewed)
    assert {5000, 1000, 1007, 5001} <= ids_of(service)
    until(lambda: time.time() > soon_s)
    gone = {5000, 1000}
    for running in (service, serve()):
        assert not ids_of(running) & gone
        assert {1007, 5001} <= ids_of(running)
        context = {"user": 7, "hour": 9.0}
        sources: list[Any] = [{"ids": [1000, 5000, 5001, 1007]}]
        recommended = responds(running, "recommend", context=context, k=4, sources=sources)
        assert {*recommended["ids"]} == {5001, 1007}
        skipped: dict[str, Any] = {"candidate_ids": [1000, 5001], "not_found": "skip"}
        ranked = responds(running, "rank", context=context, **skipped)
        assert ranked["not_found"] == [1000]
    # Nor does it count any more.
    (version,) = operate(service, "GET", "changes")["versions"]
    assert version["changed"] == {"candidates movies": 2}
    # It is there no more, and may come again.
    deleted = change(service, "candidates/delete", {"id": 5000})
    assert (deleted["changed"], deleted["unknown"]) == (0, [5000])
    change(service, "candidates/upsert", candidate(1000), candidate(5002))
    assert {1000, 5002} <= ids_of(service)
    with pytest.raises(Rejected, match="would have 5 changed entries"):
        change(service, "candidates/upsert", candidate(5003))

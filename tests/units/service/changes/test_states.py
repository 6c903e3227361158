"""What is served follows from the changes file and the version alone, whatever the process knew
when it took the changes, and whenever it started.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.bundles.small import SmallBundle, write_small_bundle
from tests.e2e.process import until
from tests.units.service.changes.making import (
    TREE,
    Rejected,
    candidate,
    change,
    deletion,
    ids_of,
    nearest,
    random_vectors,
    responds,
    status,
)
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
FAR_S = 4e9


def values_of(service: RunningService, attribute: str) -> dict[int, Any]:
    """Returns an attribute of all candidates, by their ids."""
    vectors = [[1.0] * 8]
    content = responds(
        service, "retrieve", vectors=vectors, k=1000, exact=True, attributes=[attribute]
    )
    return dict(zip(content["ids"], content["attributes"][attribute], strict=True))


@pytest.fixture
def next_version(write: Write, small_towers: Any) -> Callable[..., None]:
    """Writes version 1, and returns what writes version 2 and loads it in a service."""
    first = write(size=20)

    def write_next(service: RunningService, **options: Any) -> None:
        write_small_bundle(first.directory.parents[1], small_towers, version=2, **options)
        service.scan()
        until(lambda: service.current().version == 2)

    return write_next


def test_next_version_has_what_was_said_of_its_candidates_and_embeds_those_with_vectors(
    next_version: Callable[..., None], serve: Serve
) -> None:
    service = serve()
    later = [1000 + 7 * number for number in range(20, 30)]
    deleted = change(service, "candidates/delete", *deletion(later))
    assert (deleted["changed"], deleted["unknown"]) == (0, later)
    change(service, "candidates/attributes", {"id": 1245, "attributes": {"year": 1901}})
    change(service, "candidates/delete", *deletion([1007, 1014]))
    vectors = {"movies": random_vectors(1)[0].tolist()}
    for key in (1007, 5000):
        change(service, "candidates/upsert", candidate(key, vectors=vectors))
    change(service, "candidates/upsert", candidate(5001))
    next_version(service, size=40)
    # All three have the same features, of which the tower of version 2 makes the same vector.
    ((ids, scores),) = nearest(service, [1.0] * 8, k=1000, exact=True)
    score_of = dict(zip(ids, scores, strict=True))
    assert score_of[1007] == score_of[5000] == score_of[5001]
    assert not score_of.keys() & {1014, *later}
    assert values_of(service, "year")[1245] == 1901


def test_vectors_of_the_next_training_are_no_repetition(
    next_version: Callable[..., None], serve: Serve
) -> None:
    service = serve()
    vectors = random_vectors(2).tolist()
    upserted = candidate(5000, vectors={"movies": vectors[0]}, sequence=5)
    stream: dict[str, Any] = {"stream": "vectors", "offset": 9}
    change(service, "candidates/upsert", upserted, **stream)
    next_version(service, size=20)
    upserted["vectors"] = {"movies": vectors[1]}
    assert change(service, "candidates/upsert", upserted, **stream)["changed"] == 1
    ((ids, scores),) = nearest(service, vectors[1], k=1000, exact=True)
    score_of = dict(zip(ids, scores, strict=True))
    assert score_of[5000] == pytest.approx(np.dot(vectors[1], vectors[1]))
    # Once more, they are.
    repeated = change(service, "candidates/upsert", upserted, **stream)
    assert (repeated["is_repeated"], repeated["version"], repeated["stream_offset"]) == (True, 2, 9)
    assert change(service, "candidates/upsert", upserted)["outdated"] == [5000]
    assert status(service)["streams"] == {"vectors": 9}


def test_what_follows_vectors_in_a_stream_follows_them_when_they_are_sent_again(
    next_version: Callable[..., None], serve: Serve
) -> None:
    service = serve()

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
    next_version(service, size=20)
    assert send(2, 1, 2) == [False] * 2
    for next_offset in (3, 4, 5):
        assert status(service)["streams"] == {"catalog": next_offset - 1}
        service.close()
        service = serve()
        assert all(send(2, *range(1, next_offset)))
        if next_offset < 5:
            assert send(2, next_offset) == [False]
    titles = values_of(service, "title")
    assert 5000 not in titles
    assert titles[5001] == "A later title"


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
                response = responds(running, call, **context, **selection, explain=True)
                assert response["ids"] == []
                assert response["explanation"]["selectivity"] == 0
                assert not response.get("degraded")


def test_expired_candidate_is_in_no_response_from_that_time_on(write: Write, serve: Serve) -> None:
    small = write(lists=True)
    service = serve(max_changed_candidates=4)
    soon_s = time.time() + 2
    items = [candidate(key, expires_s=soon_s) for key in (5000, 1000, 1007)]
    change(service, "candidates/upsert", *items, candidate(5001, expires_s=FAR_S))
    change(service, "candidates/upsert", candidate(1007, expires_s=None))
    old = {"attributes": {"year": 1901}, "expires_s": soon_s}
    change(service, "candidates/upsert", candidate(5000, **old))
    before = ids_of(service)
    is_late = time.time() > soon_s
    assert is_late or {5000, 1000, 1007, 5001} <= before
    until(lambda: time.time() > soon_s)
    gone = {5000, 1000}
    for running in (service, serve()):
        assert not ids_of(running) & gone
        assert {1007, 5001} <= ids_of(running)
        whole: dict[str, Any] = {"vectors": [[1.0] * 8], "k": 1000, "explain": True}
        found = responds(running, "retrieve", **whole)
        # The bundle's, without 1000 and with 5001.
        assert found["searched"] == found["explanation"]["matches"] == len(small.ids)
        assert found["explanation"]["selectivity"] == 1
        found = responds(running, "retrieve", **whole, filter={"year": {"le": 1901}})
        assert found["explanation"]["matches"] == 0
        assert found["explanation"]["shortfall"].startswith("no candidates pass the filter")
        context = {"user": 7, "hour": 9.0}
        sources: list[Any] = [{"ids": [1000, 5000, 5001, 1007]}]
        recommended = responds(running, "recommend", context=context, k=4, sources=sources)
        assert {*recommended["ids"]} == {5001, 1007}
        skipped: dict[str, Any] = {"candidate_ids": [1000, 5001], "not_found": "skip"}
        ranked = responds(running, "rank", context=context, **skipped)
        assert ranked["not_found"] == [1000]
    # Nor does it count any more.
    (version,) = status(service)["versions"]
    assert version["changed"] == {"candidates movies": 2}
    # It is there no more, and may come again.
    deleted = change(service, "candidates/delete", {"id": 5000})
    assert (deleted["changed"], deleted["unknown"]) == (0, [5000])
    change(service, "candidates/upsert", candidate(1000), candidate(5002))
    assert {1000, 5002} <= ids_of(service)
    with pytest.raises(Rejected, match="corpus 'movies' would have 5 changed entries"):
        change(service, "candidates/upsert", candidate(5003))

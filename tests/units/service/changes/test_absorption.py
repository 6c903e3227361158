"""Changed candidates that are absorbed into segments: what is served of them, by whom, and what
happens where a segment cannot be made or used. test_changes_equal_a_rebuild.py absorbs some at
random moments of a history.
"""

from __future__ import annotations

import gc
import subprocess
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.changes.segments import write_candidates
from service.changes import absorption, segments
from service.engine.calls import Condition, Filter, IdLists, RankingRequest, RetrievalRequest
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.making import (
    TARGET,
    TREE,
    absorb,
    add,
    candidate,
    change,
    deletion,
    listed,
    nearest,
    random_vectors,
    segments_of,
)
from tests.units.service.running import RunningService, column, flip

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absorption, "_PRELOAD_S", 0.0)


def test_absorbed_candidates_are_served_as_before_by_every_call(
    write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write(**TREE)
    services = [serve(), serve()]
    service = services[0]
    vector = small.vectors[:1]
    for running in services:
        with running.worker.versions.acquire("movies") as version:
            version.deny(("5004", "1005"))
    add(service, random_vectors(20, vector.shape[1]))
    change(service, "candidates/upsert", candidate(1003), candidate(1004, expires_s=4e9))
    change(service, "candidates/delete", {"id": 1000}, {"id": 5001})
    change(service, "candidates/attributes", {"id": 5002, "attributes": {"year": 2031}})
    later = Filter({"year": Condition(ge=2030)})
    calls: list[dict[str, Any]] = [
        {"k": 100},
        {"k": 5, "exact": True, "attributes": ("title", "year")},
        {"k": 5, "filter": later},
        {"k": 10, "exclude_ids": IdLists(np.array([5003, 1003, 7]))},
        {"k": 10, "negative_ids": IdLists(np.array([5002]))},
        {"k": 3, "explain": True, "exact": True},
        {"k": 10, "crowding": {"year": 1}, "pool_size": 30},
    ]
    ranking = RankingRequest(
        TARGET, {"user": column(3)}, candidate_ids=np.array([5002, 1003, 1007])
    )

    def responses(service: RunningService) -> list[Any]:
        lists = [listed(service, vector, **options) for options in calls]
        by_id = RetrievalRequest(TARGET, ids=np.array([5002, 1003]), k=7)
        neighbors = service.execute(by_id, "retrieve")
        ranked = service.execute(ranking)
        return [*lists, neighbors.ids.tolist(), neighbors.scores.tolist(), ranked.scores.tolist()]

    expected = responses(service)
    assert not {5001, 5004, 1000, 1005} & {*expected[0][0]}
    absorb(service)
    assert service.current().indexes["movies"].added is None
    until(lambda: segments_of(services[1]) == 1)
    restarted = serve()
    assert segments_of(restarted) == 1
    with restarted.worker.versions.acquire("movies") as version:
        version.deny(("5004", "1005"))
    for running in (*services, restarted):
        assert responses(running) == expected

    change(service, "candidates/upsert", candidate(5002), candidate(5100))
    change(service, "candidates/delete", {"id": 5003})
    assert nearest(service, vector, filter=later).ids.size == 0
    expected = responses(service)
    assert 5003 not in expected[0][0]
    for running in (services[1], restarted):
        until(lambda: running.current().changes == service.current().changes)  # noqa: B023
        assert responses(running) == expected
    absorb(service)
    assert responses(service) == expected
    assert responses(serve()) != expected  # which denies nothing


def test_segments_are_merged_while_they_are_few_or_worn(write: Write, serve: Serve) -> None:
    small = write()
    service = serve()
    dim = small.vectors.shape[1]
    sizes = []
    for round_ in range(5):
        add(service, random_vectors(10, dim, round_), 5000 + 10 * round_)
        absorb(service)
        segments = service.current().indexes["movies"].segments
        sizes.append([len(segment.vectors) for segment in segments])
    assert sizes == [[10], [20], [20, 10], [40], [40, 10]]
    change(service, "candidates/delete", *deletion(range(5000, 5030)))
    absorb(service)
    assert [len(running.vectors) for running in service.current().indexes["movies"].segments] == [
        20
    ]
    change(service, "candidates/delete", *deletion(range(5000, 5050)))
    absorb(service)
    assert segments_of(service) == 0
    assert nearest(service, small.vectors[:1], k=100).ids.size == 40
    assert nearest(serve(), small.vectors[:1], k=100).ids.size == 40
    directory = service.worker.changes.path_of("movies").with_name("changes.segments")
    assert len([*directory.iterdir()]) <= 2


def test_every_process_frees_segments_that_were_merged(write: Write, serve: Serve) -> None:
    small = write()
    services = [serve(), serve()]
    add(services[0], random_vectors(5, small.vectors.shape[1]))
    absorb(services[0])
    until(lambda: segments_of(services[1]) == 1)
    merged = [weakref.ref(running.current().indexes["movies"].segments[0]) for running in services]
    early = Filter({"year": Condition(is_null=True)})
    for running in services:
        assert nearest(running, small.vectors[:1], filter=early).ids.size == 5
    add(services[0], random_vectors(10, small.vectors.shape[1]), 6000)
    absorb(services[0])
    until(lambda: gc.collect() >= 0 and [reference() for reference in merged] == [None, None])
    assert segments_of(services[0]) == segments_of(services[1]) == 1


def test_lists_of_a_tree_over_absorbed_candidates_reach_the_recall_and_k(
    write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_TREE_MIN", 100)
    small = write(size=200, **TREE)
    service = serve()
    dim = small.vectors.shape[1]
    add(service, random_vectors(1500, dim))
    absorb(service)
    (segment,) = service.current().indexes["movies"].segments
    assert segment.approximate is not None
    change(service, "candidates/delete", *deletion(range(5000, 5700)))
    queries = random_vectors(50, dim, 7)
    exact = nearest(service, queries, k=10, exact=True).ids.reshape(50, 10)
    neighbors = nearest(service, queries, k=10).ids.reshape(50, 10)
    hits = sum(len({*row} & {*exact_row}) for row, exact_row in zip(neighbors, exact, strict=True))
    assert hits >= 0.95 * exact.size
    for k in (600, 1000):
        assert np.diff(nearest(service, queries, k=k).offsets).tolist() == [min(k, 1000)] * 50
    excluded = IdLists(np.arange(5700, 6490))
    assert nearest(service, queries[:1], k=1000, exclude_ids=excluded).ids.size == 210


def test_candidates_that_expire_and_vectors_that_were_sent_are_known_after_a_restart(
    write: Write, serve: Serve
) -> None:
    small = write()
    service = serve()
    vector = random_vectors(1, small.vectors.shape[1])
    soon_s = time.time() + 2
    own_vector = {"vectors": {"movies": vector[0].tolist()}}
    change(service, "candidates/upsert", candidate(5000, expires_s=soon_s, **own_vector))
    change(service, "candidates/upsert", candidate(5001, **own_vector))
    change(service, "candidates/upsert", candidate(5002, movie=1007))
    absorb(service)
    restarted = serve()
    assert segments_of(restarted) == 1
    row = {"id": 1007, "vector": [2.0] * 8}
    change(restarted, "rows/upsert", row, feature="movie")
    until(lambda: service.current().changes == restarted.current().changes)
    until(lambda: time.time() > soon_s)
    for running in (service, restarted):
        until(lambda: 5000 not in nearest(running, vector, k=100).ids)  # noqa: B023
    lists = [listed(running, vector, k=100) for running in (service, restarted, serve())]
    assert lists[0] == lists[1] == lists[2]
    by_id = RetrievalRequest(TARGET, ids=np.array([5001]), k=100, exact=True)
    assert service.execute(by_id, "retrieve").scores.max() > 0


def test_a_new_version_has_segments_of_its_own(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    change(service, "candidates/upsert", *[candidate(key) for key in range(5000, 5020)])
    absorb(service)
    small = write(version=2)
    service.scan()
    assert service.current().version == 2
    assert segments_of(service) == 0
    expected = listed(service, small.vectors[:3], k=60)
    while service.worker.changes.absorb(1):
        pass
    assert segments_of(service) == 1
    assert listed(service, small.vectors[:3], k=60) == expected
    assert listed(serve(), small.vectors[:3], k=60) == expected


@pytest.mark.parametrize("file", ["segment.json", "candidates.arrow", "ended.bin", "vectors.bin"])
def test_a_damaged_segment_is_not_used_and_reported(write: Write, serve: Serve, file: str) -> None:
    small = write()
    service = serve()
    add(service, random_vectors(20, small.vectors.shape[1]))
    change(service, "candidates/delete", {"id": 1000})
    absorb(service)
    expected = listed(service, small.vectors[:3], k=60)
    directory = service.worker.changes.path_of("movies").with_name("changes.segments")
    (path,) = directory.rglob(file)
    flip(path, 0)
    restarted = serve()
    assert segments_of(restarted) == 0
    assert listed(restarted, small.vectors[:3], k=60) == expected
    assert restarted.value("rowcast_segments_unusable", model="movies") == 1
    assert restarted.value("rowcast_change_sequence", model="movies") == 3

    absorb(restarted)  # which makes another one
    assert restarted.value("rowcast_segments_unusable", model="movies") == 0
    until(lambda: service.current().changes == restarted.current().changes)
    for running in (service, restarted, serve()):
        assert segments_of(running) == 1
        assert listed(running, small.vectors[:3], k=60) == expected


def test_a_process_that_dies_while_it_makes_a_segment_leaves_nothing_in_effect(
    write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write()
    service = serve()
    change(service, "candidates/upsert", candidate(5000))
    expected = listed(service, small.vectors[:1], k=60)
    directory = service.worker.changes.path_of("movies").with_name("changes.segments")
    started = []

    class Killed(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.kill()
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Killed)
    assert service.worker.changes.absorb(1) == 0
    assert len(started) == 1
    assert [path.name[:11] for path in directory.iterdir()] == [".temporary-"]
    assert service.value("rowcast_absorptions_total", model="movies", outcome="failed") == 1
    assert (segments_of(service), service.current().changes) == (0, 1)
    assert listed(service, small.vectors[:1], k=60) == expected
    monkeypatch.undo()
    monkeypatch.setattr(absorption, "_PRELOAD_S", 0.0)
    absorb(service)
    assert len([*directory.iterdir()]) == 1
    assert listed(service, small.vectors[:1], k=60) == expected


def test_candidates_are_searched_exactly_where_no_segment_can_be_written(
    write: Write, serve: Serve
) -> None:
    small = write()
    service = serve()
    change(service, "candidates/upsert", candidate(5000))
    directory = service.worker.changes.path_of("movies").with_name("changes.segments")
    directory.touch()  # no directory can be made there
    assert service.worker.changes.absorb(1) == 0
    assert service.value("rowcast_absorptions_total", model="movies", outcome="failed") == 1
    assert 5000 in nearest(service, small.vectors[:1], k=100).ids
    directory.unlink()
    absorb(service)
    assert 5000 in nearest(service, small.vectors[:1], k=100).ids


def test_changes_that_come_while_a_segment_is_made_are_not_lost(
    write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write()
    services = [serve(), serve()]
    service = services[0]
    change(service, "candidates/upsert", *[candidate(key) for key in range(5000, 5040)])
    change(service, "candidates/delete", {"id": 1007})
    change(service, "candidates/upsert", candidate(5039))

    def write_and_change(*arguments: Any) -> None:
        write_candidates(*arguments)
        change(services[1], "candidates/upsert", candidate(5001), candidate(6000), candidate(1007))
        change(services[1], "candidates/delete", {"id": 5002}, {"id": 1014})
        change(services[1], "candidates/attributes", {"id": 5003, "attributes": {"year": 1}})
        change(services[1], "candidates/delete", {"id": 5001})
        # It applies upserts together, some of which the segment holds.
        services.append(serve())

    monkeypatch.setattr(absorption, "write_candidates", write_and_change)
    absorb(service)
    monkeypatch.undo()
    for worker in services[1:]:
        until(lambda: worker.current().changes == service.current().changes)  # noqa: B023
        assert segments_of(worker) == 1
    assert service.current().changes == 8
    lists = [listed(running, small.vectors[:2], k=100) for running in (*services, serve())]
    assert all(running == lists[0] for running in lists)
    ids = {*lists[0][0]}
    assert {5003, 6000, 1007, 5039} <= ids
    assert not {5001, 5002, 1014} & ids
    assert segments_of(service) == segments_of(services[1]) == 1

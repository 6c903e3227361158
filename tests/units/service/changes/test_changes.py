"""Rows, candidates and contexts that change while they are served, in one process and in several;
test_changes_equal_a_rebuild.py compares what is served with a bundle that is exported anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from bundle.changes.log import recover
from service.changes import store_changes
from service.engine.calls import Condition, Filter, IdLists, LookupRequest, RankingRequest
from service.errors import NotReady, TooLarge, Unimplemented
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.making import TARGET, candidate, change, deletion, nearest
from tests.units.service.running import RunningService, column, flip

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
KINDS = [
    {},
    {
        "index_kind": "tree_ah",
        "parameters": {
            "num_leaves": 4,
            "leaves_to_search": 4,
            "dimensions_per_block": 2,
            "reorder": 40,
        },
    },
]


@pytest.mark.parametrize("index", KINDS, ids=["brute_force", "tree_ah"])
def test_a_candidate_is_found_ranked_and_filtered_until_it_is_deleted(
    write: Write, serve: Serve, index: dict[str, object]
) -> None:
    small = write(**index)
    service = serve()
    vector = small.vectors[:1]
    own_vector = {"vectors": {"movies": (10 * vector[0]).tolist()}}
    change(service, "candidates/upsert", candidate(5000, **own_vector))

    neighbors = nearest(service, vector, attributes=("title", "year"))
    assert neighbors.ids[0] == 5000
    assert neighbors.attributes["title"][0] == "New 5000"
    assert neighbors.attributes["year"][0] is None
    change(service, "candidates/attributes", {"id": 5000, "attributes": {"year": 2031}})
    later = Filter({"year": Condition(ge=2030)})
    assert nearest(service, vector, filter=later).ids.tolist() == [5000]
    assert 5000 not in nearest(service, vector, exclude_ids=IdLists(np.array([5000]))).ids
    ranking = RankingRequest(TARGET, {"user": column(3)}, candidate_ids=np.array([5000, 1007]))
    scores = service.execute(ranking).scores
    change(service, "candidates/upsert", candidate(1014, movie=1007, **own_vector))
    of_copy = RankingRequest(TARGET, {"user": column(3)}, candidate_ids=np.array([1014]))
    assert service.execute(of_copy).scores.tolist() == scores[:1].tolist()

    change(service, "candidates/delete", {"id": 5000}, {"id": 1000})
    ids = nearest(service, vector, k=100).ids
    assert ids.size == 39
    assert not {5000, 1000} & {*ids.tolist()}
    assert ids[0] == 1014
    assert nearest(service, vector, filter=later).ids.size == 0


def test_k_candidates_are_found_wherever_k_are_left(write: Write, serve: Serve) -> None:
    small = write(size=200, **KINDS[1])
    service = serve()
    keys = small.ids.tolist()
    change(service, "candidates/delete", *deletion(keys[:150]))
    assert {*nearest(service, small.vectors[:3], k=100).ids.tolist()} == {*keys[150:]}
    change(service, "candidates/upsert", *[candidate(key) for key in range(20)])
    for k in (5, 60, 70, 100):
        neighbors = nearest(service, small.vectors[:3], k=k)
        assert np.diff(neighbors.offsets).tolist() == [min(k, 70)] * 3
        exact = nearest(service, small.vectors[:3], k=k, exact=True)
        assert {*exact.ids.tolist()} <= {*keys[150:], *range(20)}


def test_rows_are_read_by_every_call(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    before = service.execute(RankingRequest(TARGET, {"user": column(3)}, column(1007).values))
    result = change(service, "rows/upsert", {"id": 3, "vector": [1.0] * 8}, table="users")
    assert (result.sequence, result.changed) == (1, 1)
    rows = service.execute(LookupRequest(TARGET, "user", column(3)), "lookup").vectors
    assert rows.tolist() == [[1.0] * 8]
    after = service.execute(RankingRequest(TARGET, {"user": column(3)}, column(1007).values))
    assert before.scores.tolist() != after.scores.tolist()

    change(service, "rows/upsert", {"id": 1007, "vector": [2.0] * 8}, feature="movie")
    rows = service.execute(LookupRequest(TARGET, "movie", column(1007)), "lookup").vectors
    assert rows.tolist() == [[2.0] * 8]


def test_a_row_of_many_candidates_changes_again_and_again_within_the_limit(
    write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_changes, "_COMPACTED_MIN", 4)
    small = write()
    reading = [number for number in range(40) if "comedy" in small.genres[number]]
    service = serve(max_changed_candidates=len(reading) + 2)
    every = []
    for number in (1, 2, 3, 4, 1):  # by then, positions were given anew
        row = {"id": 0, "vector": [float(number)] * 4}
        change(service, "rows/upsert", row, table="genres")
        change(service, "candidates/upsert", candidate(1007))
        index = service.current().indexes["movies"].added
        assert index is not None
        live = nearest(service, small.vectors[:1], k=100, exact=True)
        every.append(dict(zip(live.ids.tolist(), live.scores.tolist(), strict=True)))
    assert every[0] == every[4]
    changed = {key for key in every[0] if every[0][key] != every[1][key]}
    assert changed == {small.ids[number] for number in reading if small.ids[number] != 1007}
    with pytest.raises(TooLarge, match="whose vectors depend on these rows"):
        change(service, "rows/upsert", {"id": 1, "vector": [1.0] * 4}, table="genres")


def test_contexts_are_stored_replaced_and_deleted(write: Write, serve: Serve) -> None:
    write(users=True)
    service = serve()
    context = {
        "id": 99,
        "features": {
            "user": 3,
            "liked": {"ids": [1007], "weights": [2.0]},
            "mood": [0.5, 0.25],
        },
    }
    change(service, "contexts/upsert", context)
    features = {
        "user": column(3),
        "liked": column(1007, offsets=[0, 1], weights=[2.0]),
        "mood": column(0.5, 0.25),
    }
    candidates = column(1000, 1007).values
    stored = service.execute(RankingRequest(TARGET, {}, candidates, context_ids=column(99).values))
    expected = service.execute(RankingRequest(TARGET, features, candidates))
    assert stored.scores.tolist() == expected.scores.tolist()
    assert change(service, "contexts/delete", {"id": 99}, {"id": 98}).unknown == (98,)


def test_states_that_come_late_and_streams_that_are_repeated_are_left_alone(
    write: Write, serve: Serve
) -> None:
    write()
    service = serve()
    newer = {"id": 3, "vector": [2.0] * 8, "sequence": 7}
    older = {"id": 3, "vector": [1.0] * 8, "sequence": 7}
    assert change(service, "rows/upsert", newer, table="users").outdated == ()
    result = change(service, "rows/upsert", older, {**newer, "id": 4}, table="users")
    assert (result.outdated, result.changed, result.sequence) == ((3,), 1, 2)
    assert change(service, "rows/upsert", older, table="users").sequence == 0
    rows = service.execute(LookupRequest(TARGET, "user", column(3, 4)), "lookup").vectors
    assert rows[:, 0].tolist() == [2.0, 2.0]

    batch = {"id": 5, "vector": [5.0] * 8}
    change(service, "rows/upsert", batch, table="users", stream="users-0", offset=12)
    repeated = {"id": 5, "vector": [6.0] * 8}
    result = change(service, "rows/upsert", repeated, table="users", stream="users-0", offset=12)
    assert (result.is_repeated, result.sequence) == (True, 0)
    rows = service.execute(LookupRequest(TARGET, "user", column(5)), "lookup").vectors
    assert rows[0, 0] == 5.0

    restarted = serve()
    assert restarted.worker.changes.status("movies")["streams"] == {"users-0": 12}
    result = change(restarted, "rows/upsert", older, table="users")
    assert result.outdated == (3,)
    result = change(restarted, "rows/upsert", repeated, table="users", stream="users-0", offset=11)
    assert result.is_repeated


def test_candidates_expire_in_every_process(write: Write, serve: Serve) -> None:
    small = write()
    services = [serve(), serve()]
    soon_s = time.time() + 0.3
    change(services[0], "candidates/upsert", candidate(5000, expires_s=soon_s), candidate(5001))
    until(lambda: all(service.current().changes for service in services))
    until(lambda: time.time() > soon_s)
    for service in services:
        until(lambda: 5000 not in nearest(service, small.vectors[:1], k=100).ids)  # noqa: B023
        assert 5001 in nearest(service, small.vectors[:1], k=100).ids


def test_other_processes_serve_a_change_and_may_make_the_next(write: Write, serve: Serve) -> None:
    small = write()
    services = [serve(), serve()]
    for number in range(20):
        change(services[number % 2], "candidates/upsert", candidate(5000 + number))
    until(lambda: [service.current().changes for service in services] == [20, 20])
    first, second = (nearest(service, small.vectors[:4], k=60) for service in services)
    assert first.ids.tolist() == second.ids.tolist()
    assert first.scores.tolist() == second.scores.tolist()


def test_denied_candidates_stay_denied_when_they_are_added_or_replaced(
    write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_changes, "_COMPACTED_MIN", 4)
    small = write()
    service = serve()

    def candidate_ids() -> set[int]:
        return {*nearest(service, small.vectors[:1], k=100).ids.tolist()}

    with service.worker.versions.acquire("movies") as version:
        version.deny(("1000", "5000"))
    assert 1000 not in candidate_ids()
    for _ in range(6):  # by then, positions were given anew
        change(service, "candidates/upsert", candidate(1000), candidate(5000), candidate(5001))
        assert candidate_ids() == {*small.ids.tolist()[1:], 5001}
    version.deny(("5001",))
    assert candidate_ids() == {*small.ids.tolist(), 5000}
    version.deny(())
    assert candidate_ids() == {*small.ids.tolist(), 5000, 5001}


def test_a_request_sees_the_state_in_which_it_began(write: Write, serve: Serve) -> None:
    small = write()
    service = serve()
    with service.worker.versions.acquire("movies") as before:
        change(service, "candidates/upsert", candidate(5000), candidate(1000))
        change(service, "rows/upsert", {"id": 3, "vector": [1.0] * 8}, table="users")
        assert before.changes == 0
        assert before.corpora["movies"].store.positions(np.array([5000])).tolist() == [-1]
        row = before.reader.take("users", np.array([3]))
        assert row.tolist() == small.tables["users"][3:4].tolist()
    assert service.current().changes == 2


def test_a_new_version_takes_the_log_with_it(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    vector = [1.0] * 8
    change(service, "candidates/upsert", candidate(5000), candidate(1007))
    change(service, "candidates/upsert", candidate(5001, vectors={"movies": vector}))
    change(service, "rows/upsert", {"id": 3, "vector": vector}, table="users")
    change(service, "candidates/delete", {"id": 1000})
    small = write(version=2)
    service.scan()
    current = service.current()
    assert (current.version, current.changes) == (2, 4)

    store = current.corpora["movies"].store
    positions = store.positions(np.array([5000, 1007, 5001, 1000]))
    assert (positions >= 0).tolist() == [True, True, False, False]
    row = current.reader.take("users", np.array([3]))
    assert row.tolist() == small.tables["users"][3:4].tolist()
    versions = service.worker.changes.status("movies")["versions"]
    dropped = {entry["version"]: entry["dropped"] for entry in versions}
    assert dropped[2] == {"the vectors belong to another version": 2}

    added = current.indexes["movies"].added
    assert added is not None
    live = nearest(service, small.vectors[1:2], k=100, exact=True)
    by_its_own_features = change(service, "candidates/upsert", candidate(7, movie=1007))
    assert by_its_own_features.version == 2
    after = nearest(service, small.vectors[1:2], k=100, exact=True)
    score = dict(zip(live.ids.tolist(), live.scores.tolist(), strict=True))[5000]
    assert dict(zip(after.ids.tolist(), after.scores.tolist(), strict=True))[7] == score


def test_a_version_with_a_damaged_log_is_served_once_the_log_is_recovered(
    write: Write, serve: Serve
) -> None:
    small = write()
    running = serve()
    path = running.worker.changes.path_of("movies")
    change(running, "candidates/upsert", candidate(5000))
    position = path.stat().st_size
    change(running, "candidates/upsert", candidate(5001))
    change(running, "candidates/upsert", candidate(5002))
    flip(path, position + 40)

    restarted = serve()
    assert restarted.states() == {1: "failed"}
    assert f"the record at byte {position} of change log" in restarted.problem(1)
    assert recover(path, "movies").lost == ((2, 2),)
    restarted.worker.poller.look_again()
    until(lambda: restarted.states() == {1: "available"})
    recovered = {*nearest(restarted, small.vectors[:1], k=100).ids.tolist()}
    assert recovered == {*small.ids.tolist(), 5000, 5002}

    change(restarted, "candidates/upsert", candidate(5003))
    until(lambda: running.current().changes > 3)
    served = {*nearest(running, small.vectors[:1], k=100).ids.tolist()}
    assert served == recovered | {5001, 5003}


def test_a_log_that_cannot_be_written_changes_nothing(write: Write, serve: Serve) -> None:
    small = write()
    service = serve()
    change(service, "candidates/upsert", candidate(5000))
    path = service.worker.changes.path_of("movies")
    lock = path.with_name("changes.log.lock")
    lock.unlink()
    lock.mkdir()
    with pytest.raises(NotReady, match=r"changes\.log cannot be written: Is a directory"):
        change(service, "candidates/upsert", candidate(5001))
    assert nearest(service, small.vectors[:1], k=100).ids.size == 41
    lock.rmdir()
    assert change(service, "candidates/upsert", candidate(5001)).sequence == 2
    assert nearest(service, small.vectors[:1], k=100).ids.size == 42


def test_shards_reject_changes(write: Write, serve: Serve) -> None:
    write()
    service = serve(shard="1/2")
    with pytest.raises(Unimplemented, match="do not change on a shard"):
        change(service, "candidates/upsert", candidate(5000))

"""Services that copy the change log of another one, over real sockets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from service.changes import absorption
from service.errors import InvalidArgument, Unimplemented
from tests.e2e.process import until
from tests.units.service.changes.making import (
    absorb,
    candidate,
    change,
    listed,
    nearest,
    segments_of,
)
from tests.units.service.changes.wire import wire_to
from tests.units.service.running import RunningService


def problem_of(service: RunningService) -> str:
    return service.worker.changes.problem


def sequence_of(service: RunningService) -> int:
    return service.current().changes


def all_have(followers: list[RunningService], writer: RunningService) -> bool:
    """Returns whether services have all changes of the writer."""
    return all(sequence_of(follower) == sequence_of(writer) for follower in followers)


def test_a_follower_has_all_changes_before_it_is_ready_and_serves_those_that_come(
    start: Callable[..., RunningService],
) -> None:
    writer = start("writer")
    for number in range(20):
        change(writer, "candidates/upsert", candidate(5000 + number))
    change(writer, "candidates/upsert", candidate(6000, expires_s=1.0))
    change(writer, "rows/upsert", {"id": 1007, "vector": [2.0] * 8}, feature="movie")
    follower = start("follower", writer)
    until(lambda: not problem_of(follower))
    assert follower.current().changes >= 22
    change(writer, "candidates/delete", {"id": 1000})

    def is_equal() -> bool:
        return follower.current().changes == writer.current().changes

    until(is_equal)
    vector = np.full((1, 8), 0.5, np.float32)
    ours = nearest(follower, vector, k=100)
    theirs = nearest(writer, vector, k=100)
    assert ours.ids.tolist() == theirs.ids.tolist()
    assert ours.scores.tolist() == theirs.scores.tolist()
    status = follower.worker.changes.status("movies")
    assert (status["follows"], status["lag"], status["problem"]) == (writer.http, 0, "")
    paths = [service.worker.changes.path_of("movies") for service in (writer, follower)]
    assert paths[0] != paths[1]
    until(lambda: paths[0].read_bytes() == paths[1].read_bytes())


def test_a_follower_rejects_changes_and_names_the_writer(
    start: Callable[..., RunningService],
) -> None:
    writer = start("writer")
    follower = start("follower", writer)
    with pytest.raises(Unimplemented, match=f"follows the changes of {writer.http}, which alone"):
        change(follower, "candidates/upsert", candidate(5000))


def test_a_log_that_another_writer_began_is_not_followed(
    start: Callable[..., RunningService],
) -> None:
    writer = start("writer")
    second_writer = start("other")
    change(writer, "candidates/upsert", candidate(5000))
    change(second_writer, "candidates/upsert", candidate(5001))
    follower = start("other", writer)
    until(lambda: "the copy is of another log" in problem_of(follower))
    assert follower.worker.changes.status("movies")["sequence"] == 1
    with pytest.raises(InvalidArgument, match="no such record 2"):
        writer.worker.changes.after("movies", 2, 0)


def test_a_follower_that_restarts_is_not_ready_before_the_writer_responds(
    start: Callable[..., RunningService],
) -> None:
    writer = start("writer")
    change(writer, "candidates/upsert", candidate(5000))
    follower = start("follower", writer)
    until(lambda: not problem_of(follower))
    follower.close()
    writer.close()

    restarted = start("follower", writer)
    until(lambda: writer.http in problem_of(restarted))
    assert restarted.current().changes == 1, "what it had copied is served"


def test_workers_of_a_follower_share_one_copy(start: Callable[..., RunningService]) -> None:
    writer = start("writer")
    workers = [start("follower", writer) for _ in range(3)]
    for number in range(30):
        change(writer, "candidates/upsert", candidate(5000 + number))
    until(lambda: {worker.current().changes for worker in workers} == {30})
    paths = [service.worker.changes.path_of("movies") for service in (writer, workers[0])]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_follower_with_the_highest_sequence_becomes_the_writer(
    start: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absorption, "_PRELOAD_S", 0.0)
    writer = start("writer")
    with wire_to(writer.http) as first_wire, wire_to(writer.http) as second_wire:
        follower = start("first", first_wire)
        late_follower = start("second", second_wire)
        # Each change is known to fewer services: the last one to the writer alone.
        change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5010)])
        until(lambda: all_have([follower, late_follower], writer))
        second_wire.passing = lambda _, content: None
        change(writer, "candidates/upsert", candidate(5010, movie=1014))
        until(lambda: all_have([follower], writer))
        first_wire.passing = lambda _, content: None
        change(writer, "candidates/upsert", candidate(5011))
        services = [late_follower, follower, writer]
        assert [sequence_of(service) for service in services] == [1, 2, 3]
        for service in services:
            service.close()

    new_writer = start("first")
    late_follower = start("second", new_writer)
    change(new_writer, "candidates/upsert", candidate(5012))
    absorb(new_writer)
    change(new_writer, "candidates/delete", {"id": 5000})
    until(lambda: all_have([late_follower], new_writer))

    former_writer = start("writer", new_writer)
    until(lambda: "the copy is of another log" in problem_of(former_writer))
    assert sequence_of(former_writer) == 3
    former_writer.close()
    log = former_writer.worker.changes.path_of("movies")
    log.rename(log.with_name("changes.log.of-the-former-writer"))
    former_writer = start("writer", new_writer)
    until(lambda: not problem_of(former_writer))

    services = [new_writer, late_follower, former_writer]
    until(lambda: all_have(services, new_writer))
    vectors = np.eye(8, dtype=np.float32)
    lists = [listed(service, vectors, k=60) for service in services]
    assert lists[0] == lists[1] == lists[2]
    ids = {*lists[0][0]}
    assert {5001, 5010, 5012} <= ids
    assert not {5000, 5011} & ids
    assert [segments_of(service) for service in services] == [1, 1, 1]
    logs = [service.worker.changes.path_of("movies").read_bytes() for service in services]
    assert logs[0] == logs[1] == logs[2]

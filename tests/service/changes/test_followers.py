"""Services that copy the change log of another one, over real sockets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from service.errors import InvalidArgument, Unimplemented
from tests.e2e.process import until
from tests.service.changes.making import candidate, change, nearest
from tests.service.running import RunningService


def problem_of(service: RunningService) -> str:
    return service.worker.changes.problem


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

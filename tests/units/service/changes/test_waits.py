"""Locks and disks that do not respond: no caller waits beyond its deadline, and a change whose
deadline has passed is made or not, as the response to a repeated request says.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from service.changes.requests import ChangeResult
from service.errors import DeadlineExceeded, InvalidArgument, TooLarge
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.making import (
    TARGET,
    absorb,
    candidate,
    change,
    deletion,
    request_of,
)
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]


@contextmanager
def locked(service: RunningService) -> Iterator[None]:
    """Holds the lock of the log, as another process of the host would."""
    path = service.worker.changes.path_of("movies")
    with path.with_name("changes.log.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def soon() -> float:
    return time.monotonic() + 0.3


def submit(service: RunningService, deadline: float, *items: Any, **options: Any) -> ChangeResult:
    """Adds candidates by a deadline."""
    request = request_of("candidates/upsert", *items, **options)
    return service.worker.changes.change(TARGET, request, deadline)


def test_changes_that_waited_for_a_held_lock_are_never_made(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    changes = service.worker.changes
    change(service, "candidates/upsert", candidate(5000))
    with locked(service), ThreadPoolExecutor(20) as pool:
        waiting = [
            pool.submit(submit, service, soon(), candidate(6000 + number)) for number in range(20)
        ]
        for result in waiting:
            with pytest.raises(DeadlineExceeded, match=r"changes\.log\.lock; the change was not"):
                result.result()
        # Whatever needs no news of the log responds from what was applied.
        assert changes.applied("movies", soon()).sequence == 1
        assert changes.status("movies", soon())["sequence"] == 1
        assert changes.after("movies", 0, 0, soon())[1] == 1
        changes.follow()
    deleted = change(service, "candidates/delete", *deletion(range(6000, 6020)))
    assert (deleted.sequence, deleted.changed, deleted.unknown_count) == (0, 0, 20)


@pytest.fixture
def hanging_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, Any]]:
    """Lets every write hang from the first event on, until the second one."""
    hangs = threading.Event()
    responds = threading.Event()
    sync = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        if hangs.is_set():
            assert responds.wait(60)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    yield hangs, responds
    responds.set()


@pytest.mark.parametrize(
    ("item", "options", "expected"),
    [
        ({"sequence": 7}, {}, {"outdated": (5000,)}),
        ({}, {"stream": "events", "offset": 9}, {"is_repeated": True}),
        ({}, {}, {"changed": 1}),
    ],
)
def test_a_change_that_a_disk_holds_up_is_made_once_however_often_it_is_sent(
    write: Write,
    serve: Serve,
    hanging_disk: tuple[threading.Event, threading.Event],
    item: dict[str, Any],
    options: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    hangs, responds = hanging_disk
    write()
    service = serve()
    hangs.set()
    with pytest.raises(DeadlineExceeded, match="may have been made, and it is safe to send it"):
        submit(service, soon(), candidate(5000, **item), **options)
    # Nobody waits for the disk: what comes behind is withdrawn, and readers get an error.
    with pytest.raises(DeadlineExceeded, match="earlier changes were being written; the change"):
        submit(service, soon(), candidate(5001))
    with pytest.raises(DeadlineExceeded):
        service.worker.changes.applied("movies", soon())
    service.worker.changes.follow()

    responds.set()
    repeated = change(service, "candidates/upsert", candidate(5000, **item), **options)
    assert {name: getattr(repeated, name) for name in expected} == expected
    deleted = change(service, "candidates/delete", *deletion([5000, 5001]))
    assert (deleted.changed, deleted.unknown) == (1, (5001,))


def test_one_hostile_change_leaves_those_beside_it_alone(write: Write, serve: Serve) -> None:
    write()
    service = serve(max_streams=2)
    with ThreadPoolExecutor(16) as pool, locked(service):
        results = [
            pool.submit(change, service, "candidates/upsert", candidate(5000 + n), **options)
            for n in range(8)
            for options in ({}, {"stream": "s" * 200 + str(n), "offset": 5})
        ]
        time.sleep(0.3)
    problems = [result.exception() for result in results]
    assert [type(problem) for problem in problems if problem is not None] == [TooLarge] * 6
    assert all(result.result().changed == 1 for result in results[::2])
    with pytest.raises(InvalidArgument, match="stream has 300 characters; a name of at most 256"):
        change(service, "candidates/upsert", candidate(5000), stream="s" * 300, offset=5)


def test_a_full_log_rejects_changes_and_still_loses_what_has_expired(
    write: Write, serve: Serve
) -> None:
    write()
    service = serve(max_log_bytes=1 << 20)
    soon_s = time.time() + 1
    change(service, "candidates/upsert", candidate(5000, expires_s=soon_s))
    large = candidate(6000, attributes={"title": "x" * 300_000})
    for _ in range(3):
        change(service, "candidates/upsert", large)
    with pytest.raises(TooLarge, match=r"at most 1048576 are accepted \(max_log_bytes\): export"):
        change(service, "candidates/upsert", large)
    assert service.worker.changes.path_of("movies").stat().st_size <= 1 << 20
    until(lambda: not change_counts(service, 5000))


def test_a_candidate_that_is_renewed_while_its_deletion_waits_stays(
    write: Write, serve: Serve
) -> None:
    write()
    service = serve()
    soon_s = time.time() + 0.5
    change(service, "candidates/upsert", candidate(5000, expires_s=soon_s))
    with ThreadPoolExecutor(1) as pool, locked(service):
        # The deletion waits for the lock by now, and the renewal is written with it.
        time.sleep(2.0)
        renewed = pool.submit(change, service, "candidates/upsert", candidate(5000))
        time.sleep(0.3)
    assert renewed.result().changed == 1
    assert change_counts(service, 5000) == 1


def change_counts(service: RunningService, key: int) -> int:
    """Returns the number of candidates of an id."""
    store = service.current().corpora["movies"].store
    return int(np.count_nonzero(store.positions(np.array([key])) >= 0))


def test_files_of_changes_are_private_and_become_so(write: Write, serve: Serve) -> None:
    write()
    path = serve().worker.changes.path_of("movies")
    change(serve(), "candidates/upsert", candidate(5000))
    for file in (path, path.with_name("changes.log.lock")):
        assert file.stat().st_mode & 0o777 == 0o600
        file.chmod(0o644)
    root_mode = path.parent.stat().st_mode
    service = serve(absorb_changed_at=1)
    absorb(service)
    files = [file for file in path.parent.rglob("changes.*") if file.is_file()]
    segments = path.with_name("changes.segments")
    files += [file for file in segments.rglob("*") if file.is_file()]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert segments.stat().st_mode & 0o777 == 0o700
    assert path.parent.stat().st_mode == root_mode

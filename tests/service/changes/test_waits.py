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

import pytest

from service.changes.requests import ChangeResult
from service.errors import DeadlineExceeded
from tests.bundles.small import SmallBundle
from tests.service.changes.making import TARGET, candidate, change, deletion, request_of
from tests.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]


@contextmanager
def locked(service: RunningService) -> Iterator[None]:
    """Holds the lock of the log, as another process of the host would."""
    path = service.worker.changes.path_of("movies")
    with path.with_name("changes.log.lock").open() as lock:
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

"""The workers of a service respond from the same version: one that is new, gone, failed or
labelled.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.coordinator import Coordinator
from tests.units.service.versions.driven import Driven, Write

Drive = Callable[..., Driven]


@pytest.fixture
def coordinator() -> Coordinator:
    """A coordinator whose clock stands still, so that no worker is late on a busy machine."""
    return Coordinator(lambda: 1000.0)


@pytest.fixture
def two(write: Write, drive: Drive, coordinator: Coordinator) -> tuple[Driven, Driven]:
    """Two workers that serve version 1."""
    write(version=1)
    return drive(coordinator=coordinator, worker=1), drive(coordinator=coordinator, worker=2)


def turn(*workers: Driven, scan: bool = True) -> list[int]:
    """Lets each worker look at the others until nothing changes; returns what they serve."""
    for _ in range(3):
        for worker in workers:
            if scan:
                worker.scan()
            worker.report()
        for worker in workers:
            worker.poller.follow()
    return [worker.serving() for worker in workers]


def test_new_version_is_current_once_every_worker_has_loaded_it(
    two: tuple[Driven, Driven], write: Write
) -> None:
    first, second = two
    assert turn(*two) == [1, 1]
    write(version=2)
    first.scan()
    assert turn(*two, scan=False) == [1, 1]
    assert first.serving(version=2) == 2
    second.scan()
    assert turn(*two, scan=False) == [2, 2]


def test_version_that_one_worker_cannot_load_is_current_in_none(
    two: tuple[Driven, Driven], write: Write
) -> None:
    first, second = two

    def fail(*_: object) -> None:
        raise OSError("the disk cannot be read")

    second.warm_up = fail
    write(version=2)
    assert turn(*two) == [1, 1]
    assert second.states()[2] == "failed"
    assert 2 not in first.states()  # which would keep its memory for nothing
    second.warm_up = lambda *_: None
    second.poller.look_again()
    assert turn(*two) == [2, 2]


def test_worker_that_cannot_load_what_the_others_serve_waits_for_them_to_move(
    two: tuple[Driven, Driven],
    write: Write,
    drive: Drive,
    coordinator: Coordinator,
    root: Path,
) -> None:
    first, _ = two
    write(version=2)
    assert turn(*two) == [2, 2]
    shutil.rmtree(root / "movies" / "2")
    assert turn(*two) == [2, 2]  # served from memory
    coordinator.worker_ended(2, "SIGKILL")
    replacement = drive(coordinator=coordinator, worker=3, listens=False)
    assert "version 2 of model 'movies' is current in the other workers" in (
        replacement.poller.disagreement()
    )
    assert turn(first, replacement) == [1, 1]
    assert replacement.poller.disagreement() == ""
    assert 2 not in first.states()


@pytest.mark.parametrize("wanted", [{}, {"labels": {"live": 1}}, {"unloaded": (3,)}])
def test_worker_that_starts_beside_a_newer_version_responds_from_that_of_the_others(
    wanted: dict[str, Any],
    two: tuple[Driven, Driven],
    write: Write,
    drive: Drive,
    coordinator: Coordinator,
) -> None:
    first, _ = two
    first.want(**wanted)
    write(version=2)
    coordinator.worker_ended(2, "SIGKILL")
    replacements = [
        drive(coordinator=coordinator, worker=worker, listens=False) for worker in (3, 4)
    ]
    for replacement in replacements:
        assert replacement.poller.disagreement() == ""
        assert replacement.serving() == 1
        replacement.listens = True
    assert turn(first, *replacements) == [2, 2, 2]

"""What the supervisor concludes from heartbeats."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.workers.health import Health
from service.workers.run_directory import read_heartbeat, write_heartbeat

PID = os.getpid()
OTHER = 1


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def beat(directory: Path, pid: int, problem: str = "") -> None:
    """Writes a heartbeat as another worker."""
    own = directory / "own"
    own.mkdir(exist_ok=True)
    write_heartbeat(own, problem)
    (own / f"heartbeat-{PID}.json").rename(directory / f"heartbeat-{pid}.json")


def test_health_worker_without_heartbeats_is_not_ready_and_then_hung(directory: Path) -> None:
    health = Health(directory, workers=1, timeout_s=20)
    assert health.observe([PID], 1) == []
    assert not health.started
    assert "starting" in health.problem
    beat(directory, PID)
    assert health.observe([PID], 1) == []
    assert (health.started, health.problem) == (True, "")

    seconds = 0
    while not (hung := health.observe([PID], 1)):
        seconds += 1
    assert hung == [PID]
    assert seconds == 19
    assert health.problem == "no worker responds"

    beat(directory, PID)
    assert health.observe([PID], 1) == []
    assert health.problem == ""


def test_health_worker_that_never_reports_is_hung_after_five_minutes(directory: Path) -> None:
    health = Health(directory, workers=1, timeout_s=20)
    assert health.observe([PID], 1) == []
    assert health.observe([PID], 299) == []
    assert health.observe([PID], 1) == [PID]


def test_health_after_a_pause_of_the_machine_no_worker_is_hung(directory: Path) -> None:
    health = Health(directory, workers=1, timeout_s=20)
    beat(directory, PID)
    health.observe([PID], 0.25)
    os.utime(directory / f"heartbeat-{PID}.json", ns=(0, 1))  # an hour ago, by the clock
    assert health.observe([PID], 0.25) == []
    assert health.observe([PID], 0.25) == []
    assert health.problem == ""


def test_health_waits_for_every_worker_once_and_then_for_any(directory: Path) -> None:
    health = Health(directory, workers=2, timeout_s=20)
    beat(directory, PID)
    health.observe([PID, OTHER], 1)
    assert "starting" in health.problem
    beat(directory, OTHER, "the models are still being loaded")
    health.observe([PID, OTHER], 1)
    assert health.problem == "the models are still being loaded"
    beat(directory, OTHER)
    health.observe([PID, OTHER], 1)
    assert health.problem == ""
    beat(directory, OTHER, "the models are still being loaded")  # it was replaced
    health.observe([PID, OTHER], 1)
    assert health.problem == ""
    beat(directory, PID, "drained by an operator")
    health.observe([PID, OTHER], 1)
    assert health.problem


def test_health_forgets_workers_that_have_ended(directory: Path) -> None:
    health = Health(directory, workers=1, timeout_s=20)
    beat(directory, PID)
    health.observe([PID], 1)
    health.observe([OTHER], 1)
    assert read_heartbeat(directory, PID) is None
    assert health.problem == "no worker responds"

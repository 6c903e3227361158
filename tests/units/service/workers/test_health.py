"""What the supervisor concludes from the reports of workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.coordinator import Coordinator, Report
from service.workers.health import Health
from service.workers.supervisor_metrics import SupervisorMetrics

PID = 11
OTHER = 12


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def metrics() -> Iterator[SupervisorMetrics]:
    metrics = SupervisorMetrics()
    yield metrics
    metrics.close()


def test_health_worker_without_reports_is_not_ready_and_then_hung(
    coordinator: Coordinator, metrics: SupervisorMetrics
) -> None:
    health = Health(coordinator, metrics, workers=1, timeout_s=20)
    assert health.observe([PID], 1) == []
    assert not health.started
    assert "starting" in health.problem
    coordinator.report(PID, Report(""))
    assert health.observe([PID], 1) == []
    assert (health.started, health.problem) == (True, "")

    seconds = 0
    while not (hung := health.observe([PID], 1)):
        seconds += 1
    assert hung == [PID]
    assert seconds == 19
    assert health.problem == "no worker responds"

    coordinator.report(PID, Report(""))
    assert health.observe([PID], 1) == []
    assert health.problem == ""


def test_health_worker_that_never_reports_is_hung_after_five_minutes(
    coordinator: Coordinator, metrics: SupervisorMetrics
) -> None:
    health = Health(coordinator, metrics, workers=1, timeout_s=20)
    assert health.observe([PID], 1) == []
    assert health.observe([PID], 299) == []
    assert health.observe([PID], 1) == [PID]


def test_health_after_a_pause_of_the_machine_no_worker_is_hung(
    coordinator: Coordinator, metrics: SupervisorMetrics
) -> None:
    health = Health(coordinator, metrics, workers=1, timeout_s=20)
    coordinator.report(PID, Report(""))
    health.observe([PID], 0.25)
    assert health.observe([PID], 0.25) == []
    assert health.observe([PID], 0.25) == []
    assert health.problem == ""


def test_health_waits_for_every_worker_once_and_then_for_any(
    coordinator: Coordinator, metrics: SupervisorMetrics
) -> None:
    health = Health(coordinator, metrics, workers=2, timeout_s=20)
    coordinator.report(PID, Report(""))
    health.observe([PID, OTHER], 1)
    assert "starting" in health.problem
    coordinator.report(OTHER, Report("the models are still being loaded"))
    health.observe([PID, OTHER], 1)
    assert health.problem == "the models are still being loaded"
    coordinator.report(OTHER, Report(""))
    health.observe([PID, OTHER], 1)
    assert health.problem == ""
    coordinator.report(OTHER, Report("the models are still being loaded"))  # it was replaced
    health.observe([PID, OTHER], 1)
    assert health.problem == ""
    coordinator.report(PID, Report("drained by an operator"))
    health.observe([PID, OTHER], 1)
    assert health.problem


def test_health_forgets_workers_that_have_ended(
    coordinator: Coordinator, metrics: SupervisorMetrics
) -> None:
    health = Health(coordinator, metrics, workers=1, timeout_s=20)
    coordinator.report(PID, Report(""))
    health.observe([PID], 1)
    health.observe([OTHER], 1)
    assert health.problem == "no worker responds"


def test_run_directory_that_was_removed_comes_back_until_the_service_ends(
    metrics: SupervisorMetrics,
) -> None:
    metrics.directory.rmdir()
    metrics.restore_directory()
    assert metrics.directory.is_dir()

    metrics.close()
    metrics.restore_directory()
    assert not metrics.directory.exists()

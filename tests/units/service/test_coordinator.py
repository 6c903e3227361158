"""What the coordinator remembers of workers, and whom it lets load."""

from __future__ import annotations

import math
import multiprocessing
import signal

import pytest

from service import coordinator
from service.coordinator import LATE_S, Coordinator, Report

MODEL = "movies"
FILES = "digest of the files"


class Clock:
    """A clock that stands still unless a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(clock: Clock) -> Coordinator:
    return Coordinator(clock)


def report(
    *loaded: int,
    root_versions: tuple[int, ...] = (1, 2, 3),
    failed: tuple[int, ...] = (),
    starved: tuple[int, ...] = (),
    listens: bool = True,
    settled: bool = True,
) -> Report:
    return Report(
        problem="",
        listens=listens,
        settled=settled,
        root_versions={MODEL: root_versions},
        loaded={MODEL: loaded},
        failed={MODEL: failed},
        starved={MODEL: starved},
    )


def shared(service: Coordinator, pid: int) -> set[int] | None:
    versions = service.peers(pid).shared.get(MODEL)
    return None if versions is None else set(versions)


def lacking(service: Coordinator, pid: int) -> set[int]:
    return set(service.peers(pid).lacking.get(MODEL, ()))


def test_shared_versions_are_those_that_every_other_serving_worker_has_loaded(
    service: Coordinator, clock: Clock
) -> None:
    assert shared(service, 1) is None
    service.report(1, report(1, 2))
    assert shared(service, 1) is None  # there is no other
    assert shared(service, 9) == {1, 2}  # of a worker that has not reported yet
    service.report(2, report(2, 3))
    service.report(3, report(1, 3, listens=False))
    service.report(4, report(1, settled=False))
    assert (shared(service, 1), shared(service, 2), shared(service, 3)) == ({2, 3}, {1, 2}, {2})
    clock.seconds += LATE_S
    service.report(1, report(1, 2))
    assert shared(service, 3) == {1, 2}  # 2 is late
    service.report(2, report(2, 3))
    service.worker_ended(1, "SIGKILL")
    assert shared(service, 3) == {2, 3}
    service.forget(2)
    assert shared(service, 3) is None


def test_version_for_which_memory_is_missing_elsewhere_may_become_current(
    service: Coordinator,
) -> None:
    service.report(1, report(2, 3))
    service.report(2, report(2, failed=(3,), starved=(3,)))
    assert (shared(service, 1), lacking(service, 1)) == ({2, 3}, set())


def test_version_that_ended_a_process_is_loaded_again_after_growing_pauses_a_few_times(
    service: Coordinator, clock: Clock
) -> None:
    pauses = []
    for pid in range(1, 5):
        assert service.begin_load(pid, MODEL, 2, FILES).granted
        assert service.worker_ended(pid, "SIGSEGV") == {"model": MODEL, "version": 2}
        rejection = service.begin_load(9, MODEL, 2, FILES)
        assert not rejection.granted
        assert f"process {pid} ended (SIGSEGV) while it loaded this version" in rejection.problem
        pauses.append(rejection.retry_s)
        assert service.begin_load(9, MODEL, 1, FILES).granted
        service.end_load(9, loaded=True)
        clock.seconds += min(rejection.retry_s, 1e6)
    assert pauses == [60, 120, 240, math.inf]
    assert service.begin_load(9, MODEL, 2, "digest of other files").granted
    service.end_load(9, loaded=True)
    assert service.begin_load(9, MODEL, 2, FILES).granted


def test_starts_pause_longer_as_long_as_workers_end_before_they_serve(
    service: Coordinator,
) -> None:
    service.report(99, report(1))
    pauses = []
    for pid in range(1, 11):
        pauses.append(service.begin_start().pause_s)
        service.report(pid, report(settled=False))
        service.worker_ended(pid, "exit status 1")
        service.report(99, report(1))  # of a worker that is well
    assert pauses == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    service.report(11, report(1))
    service.worker_ended(11, "SIGKILL")
    assert service.begin_start().pause_s == 0


def report_and_load(address: str) -> None:
    """What a worker does, and then dies."""
    service = coordinator.connect(address)
    service.report(7, Report("", True, True, {}, {MODEL: (1,)}, status=b"{}"))
    assert service.begin_load(7, MODEL, 2, FILES).granted
    signal.raise_signal(signal.SIGKILL)


def test_processes_reach_the_coordinator_and_their_facts_outlive_them() -> None:
    service = Coordinator()
    address = coordinator.serve(service)
    process = multiprocessing.get_context("spawn").Process(target=report_and_load, args=(address,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert service.statuses() == [b"{}"]
    service.worker_ended(7, "SIGKILL")
    assert "SIGKILL" in coordinator.connect(address).begin_load(8, MODEL, 2, FILES).problem


def test_stranger_without_the_key_of_the_service_is_turned_away() -> None:
    address = coordinator.serve(Coordinator())
    current = multiprocessing.current_process()
    key = current.authkey
    current.authkey = b"another key"
    try:
        with pytest.raises(multiprocessing.AuthenticationError):
            coordinator.connect(address)
    finally:
        current.authkey = key
    assert coordinator.connect(address).statuses() == []

"""What the coordinator remembers of workers, and whom it lets load."""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

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


def report(*loaded: int, listens: bool = True, settled: bool = True) -> Report:
    return Report("", listens, settled, {MODEL: loaded}, {MODEL: loaded}, {}, {})


def test_shared_versions_are_those_that_every_other_serving_worker_has_loaded(
    service: Coordinator, clock: Clock
) -> None:
    def shared(pid: int) -> set[int]:
        return {*service.peers(pid).shared.get(MODEL, ())}

    service.report(1, report(1, 2))
    service.report(2, report(2, 3))
    service.report(3, report(1, 3, listens=False))
    service.report(4, report(1, settled=False))
    assert [shared(pid) for pid in (1, 2, 3, 9)] == [{2, 3}, {1, 2}, {2}, {2}]
    clock.seconds += LATE_S
    service.report(1, report(1, 2))
    assert shared(3) == {1, 2}, "the others are late"
    service.worker_ended(1, "SIGKILL")
    assert shared(3) == set()


def test_worker_that_waits_for_news_of_the_others_has_them_at_once(service: Coordinator) -> None:
    service.report(1, report(1))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(service.await_peers, 1, service.peers(1))
        service.report(2, report(1, 2))
        assert waiting.result()
    peers = service.peers(1)
    assert peers.shared == {MODEL: {1, 2}}
    assert not service.await_peers(1, peers), "nothing has changed for a while"


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


def test_workers_load_side_by_side_until_one_could_respond(
    service: Coordinator, clock: Clock
) -> None:
    for pid in (1, 2):
        service.report(pid, Report("", listens=True, settled=True, root_versions={MODEL: (1,)}))
        assert service.begin_load(pid, MODEL, 1, FILES).granted
    # What ends both of them is one attempt.
    for pid in (1, 2):
        service.worker_ended(pid, "SIGSEGV")
    assert service.begin_load(3, MODEL, 1, FILES).retry_s == 60
    clock.seconds += 60
    assert service.begin_load(3, MODEL, 1, FILES).granted
    service.end_load(3, loaded=True)
    service.report(3, report(1))
    assert service.begin_load(4, MODEL, 2, FILES).granted
    assert not service.begin_load(5, MODEL, 2, FILES).granted
    service.forget(4)
    assert service.begin_load(5, MODEL, 2, FILES).granted


def test_one_worker_compares_a_version_with_its_signature_and_the_others_rely_on_it(
    service: Coordinator,
) -> None:
    assert service.begin_verification(1, MODEL, 1, FILES) == "verify"
    assert service.begin_verification(2, MODEL, 1, FILES) == "wait"
    # One that failed, or ended, has shown nothing.
    service.end_verification(1, verified=False)
    assert service.begin_verification(2, MODEL, 1, FILES) == "verify"
    service.worker_ended(2, "SIGKILL")
    assert service.begin_verification(3, MODEL, 1, FILES) == "verify"
    service.forget(3)
    assert service.begin_verification(4, MODEL, 1, FILES) == "verify"
    service.end_verification(4, verified=True)
    assert service.begin_verification(5, MODEL, 1, FILES) == "verified"
    # Other files are another version.
    assert service.begin_verification(5, MODEL, 1, "changed") == "verify"
    assert service.begin_verification(6, MODEL, 2, FILES) == "wait"


def test_starts_pause_longer_as_long_as_workers_end_before_they_serve(
    service: Coordinator,
) -> None:
    service.report(99, report(1))
    pauses = []
    for pid in range(1, 11):
        pauses.append(service.begin_start().pause_s)
        service.report(pid, report(1, settled=False))
        service.worker_ended(pid, "exit status 1")
        service.report(99, report(1))  # of a worker that is well
    assert pauses == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    service.report(11, report(1))
    service.worker_ended(11, "SIGKILL")
    assert service.begin_start().pause_s == 0


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

"""Which failures of a task are tried again, and after how long."""

from __future__ import annotations

import errno

import pytest

from export.errors import DestinationError
from export.jobs.attempts import ATTEMPTS_MAX, attempt
from tests.units.object_store.memory_stores import SleepingClock


class Failing:
    """A task whose first tries fail."""

    def __init__(self, failures: int, cause: Exception | None) -> None:
        self.failures = failures
        self.cause = cause
        self.tries = 0

    def run(self, task: str) -> str:
        self.tries += 1
        if self.tries <= self.failures:
            raise DestinationError("cannot be written") from self.cause
        return task + " done"


@pytest.mark.parametrize("cause", [OSError(errno.ESTALE, "stale"), TimeoutError("late")])
def test_attempt_that_may_pass_is_made_again(
    monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    task = Failing(ATTEMPTS_MAX - 1, cause)
    clock = SleepingClock(monkeypatch)
    assert attempt(task.run, "copy") == "copy done"
    assert task.tries == ATTEMPTS_MAX == 4
    assert 0.5 + 2 + 8 <= clock.passed_s <= 1 + 4 + 16


def test_last_attempt_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Failing(ATTEMPTS_MAX, OSError(errno.EIO, "broken"))
    clock = SleepingClock(monkeypatch)
    with pytest.raises(DestinationError, match="cannot be written"):
        attempt(task.run, "copy")
    assert task.tries == ATTEMPTS_MAX
    assert clock.passed_s <= 21


@pytest.mark.parametrize("cause", [None, OSError(errno.ENOSPC, "full"), ValueError("other")])
def test_attempt_that_no_further_try_can_help_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, cause: Exception | None
) -> None:
    task = Failing(1, cause)
    clock = SleepingClock(monkeypatch)
    with pytest.raises(DestinationError):
        attempt(task.run, "copy")
    assert (task.tries, clock.passed_s) == (1, 0)


def test_attempt_without_failures_never_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SleepingClock(monkeypatch)
    assert attempt(Failing(0, None).run, "copy") == "copy done"
    assert clock.passed_s == 0

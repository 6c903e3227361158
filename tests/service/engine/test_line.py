"""How long the line is believed to take."""

from __future__ import annotations

from typing import Any

import pytest

from service.engine.jobs import Job
from service.engine.line import Line

USUAL_S = 0.002


class Clock:
    """Tells what it is set to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def job() -> Job[Any, Any]:
    nothing: list[Any] = [None] * 12
    made: Job[Any, Any] = Job(*nothing)
    made.candidates = 1
    made.expected_s = USUAL_S
    return made


def work_off(line: Line, clock: Clock, jobs: int, each_s: float) -> None:
    """Computes the first jobs, one after the other."""
    for _ in range(jobs):
        taken = line.take()
        clock.now_s += each_s
        line.ended(taken)


@pytest.mark.parametrize("threads", [1, 2])
def test_line_takes_as_long_as_its_jobs_usually_do(threads: int) -> None:
    line = Line(threads, Clock())
    for _ in range(10):
        line.add(job())
    assert line.wait_s == pytest.approx(10 * USUAL_S / threads)
    line.take()
    assert line.wait_s == pytest.approx(9.5 * USUAL_S / threads)  # one is half done
    line.add(left := job())
    assert line.drop(left)
    assert line.wait_s == pytest.approx(9.5 * USUAL_S / threads)


@pytest.mark.parametrize(("each_s", "slow"), [(1.5 * USUAL_S, 1.5), (0.5 * USUAL_S, 1.0), (1.0, 4.0)])
def test_line_that_takes_longer_than_its_jobs_is_believed_to_go_on_so(each_s: float, slow: float) -> None:
    clock = Clock()
    line = Line(1, clock)
    for _ in range(30):
        line.add(job())
    work_off(line, clock, 20, each_s)
    assert line.wait_s == pytest.approx(slow * 10 * USUAL_S)
    work_off(line, clock, 10, each_s)
    assert line.wait_s == 0


def test_time_in_which_nothing_waited_tells_nothing() -> None:
    clock = Clock()
    line = Line(1, clock)
    for _ in range(5):
        line.add(job())
        work_off(line, clock, 1, USUAL_S)
        clock.now_s += 60
    for _ in range(3):
        line.add(job())
    assert line.wait_s == pytest.approx(3 * USUAL_S)


def test_slowness_of_a_moment_is_forgotten() -> None:
    clock = Clock()
    line = Line(1, clock)
    for _ in range(300):
        line.add(job())
    work_off(line, clock, 20, 2 * USUAL_S)
    work_off(line, clock, 200, USUAL_S)
    assert line.wait_s == pytest.approx(80 * USUAL_S, rel=0.01)

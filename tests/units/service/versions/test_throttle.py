"""Pauses of a load: long enough while requests are served, none without."""

from __future__ import annotations

import time

import pytest

from service.versions.throttle import PAUSE_S_MAX, SHARE, WORK_S_MIN, LoadThrottle


def work(seconds: float) -> float:
    """Keeps this thread computing; returns the CPU time it took."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass
    return time.thread_time() - began


@pytest.mark.parametrize("inflight", [0, 1])
def test_throttle_pauses_in_proportion_to_the_work_while_there_are_requests(inflight: int) -> None:
    slept: list[float] = []
    throttle = LoadThrottle(lambda: inflight, slept.append)
    began = time.thread_time()
    throttle.begin()
    worked = work(4 * WORK_S_MIN)
    throttle()
    spent = time.thread_time() - began
    assert len(slept) == inflight
    pauses = 1 / SHARE - 1
    assert inflight * worked * pauses <= sum(slept) <= inflight * spent * pauses


def test_pause_after_much_work_is_bounded() -> None:
    slept: list[float] = []
    throttle = LoadThrottle(lambda: 1, slept.append)
    throttle.begin()
    work(2 * PAUSE_S_MAX * SHARE)
    throttle()
    assert slept == [PAUSE_S_MAX]

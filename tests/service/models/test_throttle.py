"""Pauses of a load: long enough while requests are served, none without."""

from __future__ import annotations

import time

from service.models.throttle import SHARE, WORK_S_MIN, LoadThrottle


def work(seconds: float) -> float:
    """Keeps this thread computing; returns the CPU time it took."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass
    return time.thread_time() - began


def test_throttle_with_requests_pauses_in_proportion_to_the_work() -> None:
    slept: list[float] = []
    throttle = LoadThrottle(lambda: 1, slept.append)
    throttle.begin()
    worked = work(4 * WORK_S_MIN)
    throttle()
    assert len(slept) == 1
    assert slept[0] >= worked * (1 / SHARE - 1)


def test_throttle_without_requests_never_pauses() -> None:
    slept: list[float] = []
    throttle = LoadThrottle(lambda: 0, slept.append)
    throttle.begin()
    work(4 * WORK_S_MIN)
    throttle()
    assert slept == []

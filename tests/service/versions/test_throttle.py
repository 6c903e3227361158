"""Pauses of a load: long enough while requests are served, none without."""

from __future__ import annotations

import time

import pytest

from service.versions.throttle import SHARE, WORK_S_MIN, LoadThrottle


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
    throttle.begin()
    worked = work(4 * WORK_S_MIN)
    throttle()
    assert len(slept) == inflight
    assert sum(slept) >= inflight * worked * (1 / SHARE - 1)

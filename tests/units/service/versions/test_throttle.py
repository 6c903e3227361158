"""Pauses of a load: long while requests are served, none without."""

from __future__ import annotations

import time

import pytest

from service.versions.throttle import PAUSE_S_MAX, SHARE, WORK_S_MIN, LoadThrottle


@pytest.mark.parametrize("inflight", [0, 1])
@pytest.mark.parametrize("work_s", [4 * WORK_S_MIN, 2 * PAUSE_S_MAX * SHARE])
def test_load_pauses_in_proportion_to_its_work_up_to_a_limit_while_there_are_requests(
    work_s: float, inflight: int
) -> None:
    pauses: list[float] = []
    throttle = LoadThrottle(lambda: inflight, pauses.append)
    began = time.thread_time()
    throttle.begin()
    while time.thread_time() - began < work_s:
        pass
    throttle()
    spent_s = time.thread_time() - began
    assert len(pauses) == inflight
    longest, shortest = (min(PAUSE_S_MAX, work * (1 / SHARE - 1)) for work in (spent_s, work_s))
    assert all(shortest * 0.9 <= pause <= longest for pause in pauses)

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
import pytest

from tests.bench.queueing import CALLS, tail


def test_tail_is_that_of_a_line_whose_events_are_played_one_by_one() -> None:
    due = np.cumsum(np.random.default_rng(0).exponential(1 / 1.4, CALLS))
    free, seen = [0.0, 0.0], deque[float]()
    for at in due.tolist():
        end = max(at, heapq.heappop(free)) + 1
        heapq.heappush(free, end)
        seen.append(end - at)
    assert tail(1, 2, 0.7) == pytest.approx(np.percentile(seen, 99), rel=1e-9)


def test_tail_of_a_line_of_its_own_for_each_core_is_longer() -> None:
    assert tail(2, 2, 0.7) > 1.5 * tail(1, 2, 0.7)
    assert tail(1, 2, 0.01) == pytest.approx(1, abs=0.05)

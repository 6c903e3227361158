"""What queueing alone makes of tails: calls that take equally long, at random instants, nothing else on the cores."""

from __future__ import annotations

from functools import cache

import numpy as np

CALLS = 400_000


@cache
def tail(lines: int, cores: int, share: float) -> float:
    """Simulates Poisson arrivals at a share of the capacity; first come, first served.

    Args:
      lines: how many there are; callers are dealt among them evenly and at random.
      cores: that take calls, as many of each line.
      share: of the time that the cores are at work; below 1.
    Returns:
      The p99 of waiting and service, in service times.
    """
    random = np.random.default_rng(0)
    each = cores // lines
    seen = []
    for _ in range(lines):
        due = np.cumsum(random.exponential(1 / (share * each), CALLS // lines))
        for core in range(each):  # as all take as long, cores take calls in turn
            own = due[core::each]
            turns = np.arange(len(own))
            seen.append(np.maximum.accumulate(own - turns) + turns + 1 - own)
    return float(np.percentile(np.concatenate(seen), 99))

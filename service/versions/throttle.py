"""Slows a load down while requests are served, so that it takes a small share of a core.

Loading is mostly interpreted Python, and whatever else needs the GIL waits for it. The loader calls
the throttle after each chunk of work: a file or a table, some 0.1 to 1 ms. Without requests, as at
a start, it does not slow it down.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 1 / 64
"""Maximum share of a core that a load takes while requests are served. Measured (ADR 20): with 1/8
of a core, p99 was 4.1 times the p99 without a load; with 1/64, it was the same.
"""
PAUSE_S_MAX = 1.0
"""The longest pause: after an index of a million vectors, 0.8 s in one chunk, it would be 50 s."""
RECENT_S = 0.5
"""How long after a request was seen others are expected: short ones end between two chunks."""
WORK_S_MIN = 0.0005
"""CPU time from which on a pause is worth it; shorter chunks are counted together."""


class LoadThrottle:
    """Called after each chunk of work by the thread that loads."""

    def __init__(
        self, inflight: Callable[[], int] = lambda: 0, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        """Creates a throttle.

        Args:
          inflight: Returns the number of requests being served.
          sleep: Waits for a number of seconds.
        """
        self._inflight = inflight
        self._sleep = sleep
        self._busy_until = 0.0
        self._since_s = 0.0

    def begin(self) -> None:
        """Starts to measure the CPU time of the calling thread, which begins to load."""
        self._since_s = time.thread_time()

    def __call__(self) -> None:
        """Pauses in proportion to the work since the last pause, if requests are served."""
        now_s = time.monotonic()
        if self._inflight():
            self._busy_until = now_s + RECENT_S
        spent_s = time.thread_time() - self._since_s
        if spent_s < WORK_S_MIN:
            return
        if now_s < self._busy_until:
            self._sleep(min(spent_s * (1 / SHARE - 1), PAUSE_S_MAX))
        self.begin()

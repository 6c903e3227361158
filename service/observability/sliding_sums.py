"""Sums of numbers over the last hour, for gauges of a sliding window."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

WINDOW_S = 3600.0
"""Length of the window: long enough that a small share of the requests is a usable sample."""
_STEP_S = 60.0
"""Step by which the window slides: smaller steps take more memory and time to add up."""


class SlidingSums:
    """Sums of several numbers over the last WINDOW_S, to the minute. Its owner has a lock."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Creates sums of nothing.

        Args:
          size: The number of sums.
          clock: Returns the current monotonic time in seconds.
        """
        self._size = size
        self._clock = clock
        self._steps: deque[tuple[int, list[float]]] = deque()

    def add(self, values: Sequence[float]) -> None:
        """Adds one value to each of the sums."""
        step = int(self._clock() / _STEP_S)
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append((step, [0.0] * self._size))
        sums = self._steps[-1][1]
        for position, value in enumerate(values):
            sums[position] += value

    def totals(self) -> list[float]:
        """Returns the sums over the window."""
        oldest = int((self._clock() - WINDOW_S) / _STEP_S)
        while self._steps and self._steps[0][0] <= oldest:
            self._steps.popleft()
        totals = [0.0] * self._size
        for _, sums in self._steps:
            for position, value in enumerate(sums):
                totals[position] += value
        return totals

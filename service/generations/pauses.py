"""A load's pauses: while calls are answered it takes a small share of a core, a piece at a time.

A load is mostly interpreted Python, and whoever wants the interpreter's lock waits for it: a piece is a file or a
table, some 0.1 to 1 ms. Without calls, as at a start, it goes on at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 1 / 64
"""Of a core, at most, while calls are answered: with more, their p99 rises; figures in docs/adr/0020."""
REST_S = 1.0
"""The longest rest: an index of a million vectors, 0.8 s in one piece, would ask for 50 s."""
CALLED_S = 0.5
"""So long after a call was last seen they may go on coming: of short ones most pieces see none."""
PIECE_S = 0.0005
"""CPU that is not worth a pause yet."""


class Pauses:
    """Called after each piece of work by the thread that loads."""

    def __init__(self, in_flight: Callable[[], int] = lambda: 0, sleep: Callable[[float], object] = time.sleep) -> None:
        """Begins with no work done.

        Args:
          in_flight: tells how many calls are being answered.
          sleep: waits so many seconds.
        """
        self._in_flight, self._sleep = in_flight, sleep
        self._called_until = self._since_s = 0.0

    def begin(self) -> None:
        """Tells that the calling thread begins to load."""
        self._since_s = time.thread_time()

    def __call__(self) -> None:
        """Waits as long as the work since the last pause asks for, if calls are answered."""
        now_s = time.monotonic()
        if self._in_flight():
            self._called_until = now_s + CALLED_S
        spent_s = time.thread_time() - self._since_s
        if spent_s < PIECE_S:
            return
        if now_s < self._called_until:
            self._sleep(min(spent_s * (1 / SHARE - 1), REST_S))
        self.begin()

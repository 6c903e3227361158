"""Outlier detection, which ejects replicas that fail, and retry budgets, which bound what failures
cost.

Sources: Envoy, "Outlier detection" (consecutive errors, failure percentage, ejection time); gRPC
proposal A50, "Outlier Detection Support"; Finagle's and Linkerd's `RetryBudget` (a share of the
calls, and a minimum per second).
"""

from __future__ import annotations

import math
from collections import deque

INTERVAL_S = 10.0
"""Time for which the outcome of a call counts: Envoy's default interval."""
RECENT_CALLS = 20
"""Largest number of outcomes of a replica that count: a replica that begins to fail is ejected
after equally few failures, however busy it was before.
"""
CONSECUTIVE_FAILURES = 5
"""Number of failures in a row that ejects a replica: Envoy's default."""
REQUEST_VOLUME = 10
"""Smallest number of recent calls by which FAILURE_SHARE is judged."""
FAILURE_SHARE = 0.5
"""Share of failures among the recent calls that ejects a replica."""
BASE_EJECTION_S = 1.0
"""Time of the first ejection. Each ejection that follows at once takes twice as long."""
MAX_EJECTION_S = 10.0
"""Longest time of an ejection: how late a replica that is well again is noticed."""
RETRY_SHARE = 0.2
"""Retries of a shard's calls, as a share of the calls: Finagle's default."""
MIN_RETRIES_PER_S = 1.0
"""Number of retries per second that is permitted however few calls there are."""
_RESERVE = 10.0
"""Number of retries that the first calls of a shard may need."""
_RETRIES_MAX = 100.0
"""Largest number of retries in a burst: the budget from longer ago is forgotten."""


class OutlierDetection:
    """The recent outcomes of one replica's calls, and its ejection. Times are of one monotonic
    clock, in seconds.

    Attributes:
      ejected_until: When the replica is called again; 0: it is not ejected.
      problem: Why it is ejected; empty: it is not.
      on_probation: Whether its next failure ejects it again: it was ejected and has not yet
        proved well.
    """

    def __init__(self) -> None:
        """Begins without any outcome."""
        self.ejected_until = 0.0
        self.problem = ""
        self.on_probation = False
        self._outcomes = deque[tuple[float, bool]](maxlen=RECENT_CALLS)
        self._ejections = 0

    def record(self, now: float, succeeded: bool) -> None:
        """Records the outcome of a call."""
        self._outcomes.append((now, succeeded))
        if succeeded and self.on_probation and self._successes_in_a_row() >= CONSECUTIVE_FAILURES:
            # Proved well: the next ejection begins with the shortest time again.
            self.on_probation = False
            self._ejections = 0

    def failure_share(self, now: float) -> float:
        """Returns the share of failures among the recent calls; 0 if there were none."""
        recent = self._recent(now)
        if not recent:
            return 0.0
        return recent.count(False) / len(recent)

    def fails(self, now: float) -> bool:
        """Returns whether its recent failures are enough to eject it."""
        recent = self._recent(now)
        # A success that came after the failures shows a replica that has recovered.
        if not recent or recent[-1]:
            return False
        if self.on_probation:
            return True

        consecutive = recent[-CONSECUTIVE_FAILURES:]
        if len(consecutive) == CONSECUTIVE_FAILURES and not any(consecutive):
            return True
        return len(recent) >= REQUEST_VOLUME and self.failure_share(now) >= FAILURE_SHARE

    def eject(self, now: float, last_failure: str) -> float:
        """Ejects the replica; returns for how long, in seconds."""
        recent = self._recent(now)
        seconds = min(MAX_EJECTION_S, math.ldexp(BASE_EJECTION_S, self._ejections))
        self._ejections += 1
        self.ejected_until = now + seconds
        self.problem = (
            f"ejected for {seconds:g} s: {recent.count(False)} of {len(recent)} recent calls "
            f"failed, the last one with {last_failure}"
        )
        return seconds

    def readmit(self) -> None:
        """Ends the ejection; the replica is on probation."""
        self.ejected_until = 0.0
        self.problem = ""
        self.on_probation = True
        # Outcomes from before the ejection would count as new failures.
        self._outcomes.clear()

    def _recent(self, now: float) -> list[bool]:
        begin_s = now - INTERVAL_S
        return [succeeded for recorded_s, succeeded in self._outcomes if recorded_s > begin_s]

    def _successes_in_a_row(self) -> int:
        count = 0
        for _, succeeded in reversed(self._outcomes):
            if not succeeded:
                break
            count += 1
        return count


class RetryBudget:
    """How many retries the calls of one shard may cause."""

    def __init__(self, now: float) -> None:
        """Begins with a reserve; `now` is the time of a monotonic clock, in seconds."""
        self._balance = _RESERVE
        self._refilled = now

    def deposit(self) -> None:
        """Counts a call."""
        self._balance = min(_RETRIES_MAX, self._balance + RETRY_SHARE)

    def permits(self, now: float) -> bool:
        """Returns whether one more retry is permitted."""
        # Time alone fills the budget up to the reserve; only calls fill it beyond that.
        if self._balance < _RESERVE:
            added = MIN_RETRIES_PER_S * (now - self._refilled)
            self._balance = min(_RESERVE, self._balance + added)
        self._refilled = now
        return self._balance >= 1

    def withdraw(self, now: float) -> bool:
        """Counts a retry; returns whether it is permitted."""
        if not self.permits(now):
            return False
        self._balance -= 1
        return True

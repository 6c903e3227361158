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
"""How long the outcome of a call says something about a replica."""
RECENT_CALLS = 20
"""How many outcomes of a replica count at most: a replica that begins to fail is ejected after as
few failures, however busy it was before.
"""
CONSECUTIVE_FAILURES = 5
"""So many failures in a row eject a replica."""
REQUEST_VOLUME = 10
FAILURE_SHARE = 0.5
"""Of at least REQUEST_VOLUME recent calls, so large a share of failures ejects a replica."""
BASE_EJECTION_S = 1.0
"""Time of the first ejection; each that follows at once takes twice as long."""
MAX_EJECTION_S = 10.0
RETRY_SHARE = 0.2
"""Retries and hedges of a shard's calls, as a share of the calls."""
MIN_RETRIES_PER_S = 1.0
"""So many retries are permitted however few calls there are."""
_RESERVE = 10.0
"""Retries that a shard's first calls may need."""
_RETRIES_MAX = 100.0
"""Of a burst: the budget of longer ago is forgotten."""


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
            self.on_probation = False
            self._ejections = 0

    def failure_share(self, now: float) -> float:
        """Returns the share of failures among the recent calls; 0 if there were none."""
        recent = self._recent(now)
        return recent.count(False) / len(recent) if recent else 0.0

    def fails(self, now: float) -> bool:
        """Returns whether its recent failures are enough to eject it."""
        recent = self._recent(now)
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
        self._outcomes.clear()

    def _recent(self, now: float) -> list[bool]:
        return [succeeded for at, succeeded in self._outcomes if at > now - INTERVAL_S]

    def _successes_in_a_row(self) -> int:
        count = 0
        for _, succeeded in reversed(self._outcomes):
            if not succeeded:
                break
            count += 1
        return count


class RetryBudget:
    """How many further calls the calls of one shard may cause: retries, and hedges."""

    def __init__(self, now: float) -> None:
        """Begins with a reserve; `now`: of a monotonic clock, in seconds."""
        self._balance = _RESERVE
        self._refilled = now

    def deposit(self) -> None:
        """Counts a call."""
        self._balance = min(_RETRIES_MAX, self._balance + RETRY_SHARE)

    def permits(self, now: float) -> bool:
        """Returns whether one more retry is permitted."""
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

"""Exponentially weighted averages of what computations of one kind take."""

from __future__ import annotations

from collections.abc import Hashable

_EWMA = 0.1
_KINDS_MAX = 4096


class LatencyEstimates:
    """Exponentially weighted averages of how long a job takes, by kind."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def expected_s(self, kind: Hashable) -> float | None:
        """Returns the estimate; None: no job of the kind was computed yet."""
        return self._seconds.get(kind)

    def observe(self, kind: Hashable, seconds: float, times: int = 1) -> None:
        """Takes a measurement into account, as often as it was made."""
        before = self._seconds.pop(kind, None)
        if before is None and len(self._seconds) >= _KINDS_MAX:
            # The one that was not observed for the longest time makes room.
            del self._seconds[next(iter(self._seconds))]
        share = 1 - (1 - _EWMA) ** times
        self._seconds[kind] = seconds if before is None else before + share * (seconds - before)

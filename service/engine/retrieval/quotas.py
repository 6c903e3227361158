"""How many recommendations each source may have, and must have if it has the candidates.

A maximum is one more limit of crowding: the candidates of the source are those with one value. For
a minimum, room is kept: once the places that are free are as many as the candidates that sources
still need, only their candidates are picked. What a source cannot fill goes to the best others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engine.calls import Source


@dataclass(frozen=True)
class Quotas:
    """The quotas of m candidates.

    Attributes:
      entries: The sources of the request.
      sources: [m] int32, the number of the source of each candidate.
    """

    entries: Sequence[Source]
    sources: NDArray[np.int32]

    @property
    def maxima(self) -> list[int]:
        """Returns the maximum of each source that has one."""
        return [source.max_count for source in self.entries if source.max_count]

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """Returns 0 for the candidates of each source with a maximum, -1 for others: [m, number of
        such sources].
        """
        limited = [number for number, source in enumerate(self.entries) if source.max_count]
        is_limited = self.sources[:, np.newaxis] == np.array(limited, np.int32)
        codes: NDArray[np.int64] = is_limited.astype(np.int64) - 1
        return codes

    def minima(self, candidates: NDArray[np.int64], k: int) -> Minima | None:
        """Returns what keeps room while k of some candidates are picked; None: no source has a
        minimum.
        """
        if not any(source.min_count for source in self.entries):
            return None
        sources = self.sources[candidates]
        counts = np.bincount(sources, minlength=len(self.entries)).tolist()
        pairs = zip(self.entries, counts, strict=True)
        return Minima(sources, [min(source.min_count, count, k) for source, count in pairs])


class Minima:
    """How many candidates sources still need, while the list of one query is picked."""

    def __init__(self, sources: NDArray[np.int32], needed: list[int]) -> None:
        """Begins a list.

        Args:
          sources: [c] int32, the source of each candidate of the query.
          needed: The minimum of each source, which has that many candidates at least.
        """
        self._sources = sources
        self._numbers: list[int] = sources.tolist()
        self._needed = needed

    def permits(self, candidate: int, free: int) -> bool:
        """Returns whether a candidate may be picked for a free place; if so, counts it."""
        # Candidates that no minimum needs must leave the last free positions to the others.
        if not self._needed[self._numbers[candidate]] and free <= sum(self._needed):
            return False
        self.count(candidate)
        return True

    def permitted_gains(self, gains: NDArray[Any], free: int) -> NDArray[Any]:
        """Returns the gains of candidates, -inf for those that must leave their place to others."""
        if free > sum(self._needed):
            return gains
        # As many positions are free as sources still need: only their candidates may take them.
        is_needed = np.array(self._needed)[self._sources] > 0
        permitted = np.where(is_needed, gains, -np.inf)
        if permitted.max(initial=-np.inf) > -np.inf:
            return permitted
        self.give_up()
        return gains

    def count(self, candidate: int) -> None:
        """Notes that a candidate was picked."""
        number = self._numbers[candidate]
        self._needed[number] = max(0, self._needed[number] - 1)

    def give_up(self) -> None:
        """Keeps no more room: no candidate can fill it."""
        self._needed = [0] * len(self._needed)

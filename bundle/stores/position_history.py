"""Which position each id has after each change of a store."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Corpus
from bundle.stores.columns import Positions
from bundle.stores.reader import CandidateStore
from bundle.tables.id_values import integers, strings

_NEVER = (1 << 32) - 1
"""The number of the change that ends a live position."""


class PositionHistory:
    """The positions of a store's candidates and of the slots behind them. It is only appended to,
    so that snapshots share it: any number of threads may read it while one appends.
    """

    def __init__(self, base: CandidateStore, corpus: Corpus) -> None:
        """Begins without changes.

        Args:
          base: The store.
          corpus: Its entry in the manifest.
        """
        self._base = base
        self._keys = integers if corpus.id_dtype == "int64" else strings
        # Of each position of the store, the number of the change that ended it. Behind them stands
        # one that was ended before all changes, which the position of an unknown id, -1, leads to.
        self._base_ends = np.full(base.size + 1, _NEVER, np.uint32)
        self._base_ends[-1] = 0
        self._slot_ends: list[int] = []
        self._slots: dict[int | str, list[int]] = {}
        """The slots of each id that has some, ascending."""

    def positions(self, ids: NDArray[Any], what: str, number: int, slot_count: int) -> Positions:
        """Returns [m] int64 positions of ids after a change, -1 where there is no such candidate.

        Args:
          ids: [m] int64, or [m] object holding str.
          what: What the ids are of, for the error.
          number: The number of the change.
          slot_count: How many slots there were after it.

        Raises:
          UnknownCandidate: A value is no id of the store's kind.
        """
        positions = self._base.positions(ids, what)
        ended = self._base_ends.take(positions, mode="wrap") <= number
        if np.count_nonzero(ended):
            keys = self._keys("id", ids)[ended].tolist()
            positions[ended] = [self._slot_position(key, number, slot_count) for key in keys]
        return positions

    def append(self, ids: Sequence[int | str]) -> None:
        """Gives ids the next slots."""
        for key in ids:
            self._slots.setdefault(key, []).append(len(self._slot_ends))
            self._slot_ends.append(_NEVER)

    def end(self, positions: Positions, number: int) -> None:
        """Ends live positions by a change."""
        in_base = positions < self._base.size
        self._base_ends[positions[in_base]] = number
        for slot in (positions[~in_base] - self._base.size).tolist():
            self._slot_ends[slot] = number

    def _slot_position(self, key: int | str, number: int, slot_count: int) -> int:
        slots = self._slots.get(key)
        if slots is None:
            return -1
        # The last slot of then: those before it were ended by it at the latest.
        count = bisect_left(slots, slot_count)
        if not count or self._slot_ends[slots[count - 1]] <= number:
            return -1
        return self._base.size + slots[count - 1]

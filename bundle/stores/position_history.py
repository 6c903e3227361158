"""The position of each id after each change of a store."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Corpus
from bundle.stores.columns import Positions
from bundle.stores.reader import CandidateStore
from bundle.tables.id_values import ids_of

_NEVER = (1 << 32) - 1
"""The end of a live position: a number that no change has."""
_FIRST_CAPACITY = 1024
"""The number of slots for which there is memory at first."""


class PositionHistory:
    """The positions of the candidates of a store, and of the slots behind them. It is only appended
    to, so that snapshots share it: any number of threads may read it while one appends.

    Attributes:
      base: The store of the bundle.
    """

    def __init__(self, base: CandidateStore, corpus: Corpus) -> None:
        """Begins without slots.

        Args:
          base: The store of the bundle.
          corpus: The entry of the store in the manifest.
        """
        self.base = base
        self._id_dtype = corpus.id_dtype
        # The number of the change that ended each position. Behind those of the bundle stands one
        # that was ended before all changes, which the position of an unknown id, -1, leads to.
        self._base_ends = np.full(base.size + 1, _NEVER, np.uint32)
        self._base_ends[-1] = 0
        self._slot_ends = np.full(_FIRST_CAPACITY, _NEVER, np.uint32)
        self._slot_expires_s = np.full(_FIRST_CAPACITY, np.nan)
        self._slot_count = 0
        self._slots_by_id: dict[int | str, list[int]] = {}
        """The slots of each id that has some, ascending."""

    def positions(self, ids: NDArray[Any], field: str, number: int, slot_count: int) -> Positions:
        """Returns [m] int64 positions of ids after a change, -1 where there is no such candidate.

        Args:
          ids: [m] int64, or [m] object holding str.
          field: What the ids are called where they were sent, for the error.
          number: The number of the change.
          slot_count: The number of slots after it.

        Raises:
          UnknownCandidate: A value is no id of the store's kind.
        """
        positions = self.base.positions(ids, field)
        # The position -1 of an unknown id wraps around to the last end, which is always over.
        positions[self._base_ends.take(positions, mode="wrap") <= number] = -1
        missing = (positions < 0).nonzero()[0]
        if missing.size and slot_count:
            keys = ids_of(self._id_dtype, "id", ids[missing]).tolist()
            positions[missing] = [self._slot_position(key, number, slot_count) for key in keys]
        return positions

    def append(
        self, ids: Sequence[int | str], number: int, expires_s: NDArray[np.float64] | None
    ) -> Positions:
        """Gives ids the next slots by a change. Of an id that comes several times, the last slot
        alone is live.

        Args:
          ids: The m ids.
          number: The number of the change.
          expires_s: The times when they expire, [m] Unix seconds, NaN: never; None: none does.

        Returns:
          The positions of slots that are ended already, since their ids come again.
        """
        first = self._slot_count
        end = first + len(ids)
        # The capacity doubles: each slot is copied a few times at most, however many follow.
        if end > self._slot_ends.size:
            capacity = max(end, 2 * self._slot_ends.size)
            # A thread that reads a former array misses only what came after its own change.
            self._slot_ends = _grown(self._slot_ends, capacity, _NEVER)
            self._slot_expires_s = _grown(self._slot_expires_s, capacity, np.nan)
        if expires_s is not None:
            self._slot_expires_s[first:end] = expires_s
        repeated = []
        for slot, key in enumerate(ids, first):
            slots = self._slots_by_id.setdefault(key, [])
            if slots and slots[-1] >= first:
                repeated.append(slots[-1])
            slots.append(slot)
        self._slot_ends[repeated] = number
        self._slot_count = end
        return np.array(repeated, np.int64) + self.base.size

    def end(self, positions: Positions, number: int) -> None:
        """Ends live positions by a change."""
        is_base = positions < self.base.size
        self._base_ends[positions[is_base]] = number
        self._slot_ends[positions[~is_base] - self.base.size] = number

    def is_live(self, slot_count: int) -> NDArray[np.bool_]:
        """Returns which of the first slots are live now, [slot_count]."""
        live: NDArray[np.bool_] = self._slot_ends[:slot_count] == _NEVER
        return live

    def is_expired(self, slot_count: int, now_s: float) -> NDArray[np.bool_]:
        """Returns which of the first slots have expired, [slot_count]; `now_s`: Unix seconds."""
        expired: NDArray[np.bool_] = self._slot_expires_s[:slot_count] <= now_s
        return expired

    def expires_s(self, positions: Positions) -> NDArray[np.float64]:
        """Returns when candidates expire, [m] Unix seconds, NaN: never.

        Args:
          positions: [m] int64; negative ones never expire.
        """
        slots = positions - self.base.size
        is_slot = slots >= 0
        times_s = np.full(positions.size, np.nan)
        times_s[is_slot] = self._slot_expires_s[slots[is_slot]]
        return times_s

    def ended_in_base(self) -> Positions:
        """Returns the positions of the bundle's candidates that were ended, ascending."""
        positions: Positions = (self._base_ends[:-1] != _NEVER).nonzero()[0]
        return positions

    def _slot_position(self, key: int | str, number: int, slot_count: int) -> int:
        """Returns the position of the live slot of an id after a change; -1: it has none."""
        slots = self._slots_by_id.get(key)
        if slots is None:
            return -1
        # The last slot of that state: the ones before were ended by it at the latest.
        count = bisect_left(slots, slot_count)
        if not count or self._slot_ends[slots[count - 1]] <= number:
            return -1
        return self.base.size + slots[count - 1]


def _grown(array: NDArray[Any], capacity: int, filler: float) -> NDArray[Any]:
    """Returns a longer array that begins with the same values."""
    grown = np.full(capacity, filler, array.dtype)
    grown[: array.size] = array
    return grown

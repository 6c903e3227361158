"""The position of each id after each change of a store."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Corpus
from bundle.stores.columns import Positions
from bundle.stores.reader import CandidateStore
from bundle.tables.id_values import integers, strings

_NEVER = (1 << 32) - 1
"""The end of a live position: a number that no change has."""
_FIRST_CAPACITY = 1024
"""The number of slots for which there is memory at first."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A store whose candidates have positions that follow those of the layers before.

    Attributes:
      store: The candidates: those of the bundle, or those of a segment.
      ends: [size + 1] uint32, the number of the change that ended each position. Behind them stands
        one that was ended before all changes, which the position of an unknown id, -1, leads to.
    """

    store: CandidateStore
    ends: NDArray[np.uint32]

    @staticmethod
    def of(store: CandidateStore) -> Layer:
        """Returns a layer of which all candidates are live."""
        ends = np.full(store.size + 1, _NEVER, np.uint32)
        ends[-1] = 0
        return Layer(store, ends)

    @property
    def size(self) -> int:
        """The number of positions."""
        return self.store.size

    def positions(self, ids: NDArray[Any], field: str, number: int) -> Positions:
        """Returns [m] int64 positions in the layer that are live after a change, else -1."""
        positions = self.store.positions(ids, field)
        # The position -1 of an unknown id wraps around to the last end, which is always over.
        positions[self.ends.take(positions, mode="wrap") <= number] = -1
        return positions

    def is_live(self, number: int) -> NDArray[np.bool_]:
        """Returns which positions are live after a change, [size]."""
        live: NDArray[np.bool_] = self.ends[:-1] > number
        return live


@dataclass(frozen=True, eq=False)
class _Slots:
    """The slots behind the layers.

    Attributes:
      ends: [capacity] uint32, the number of the change that ended each of them.
      by_id: The slots of each id that has some, ascending.
    """

    ends: NDArray[np.uint32]
    by_id: dict[int | str, list[int]] = field(default_factory=dict)


class PositionHistory:
    """The positions of the candidates of layers, and of the slots behind them. It is only appended
    to, so that snapshots share it: any number of threads may read it while one appends.

    Attributes:
      layers: The store of the bundle, then segments.
      size: The number of positions of all layers, where the slots begin.
    """

    def __init__(self, layers: Sequence[Layer], corpus: Corpus) -> None:
        """Begins without slots.

        Args:
          layers: One or more. Histories may share them.
          corpus: The entry of the store in the manifest.
        """
        self.layers = tuple(layers)
        self.size = sum(layer.size for layer in layers)
        self._checked_keys = strings
        if corpus.id_dtype == "int64":
            self._checked_keys = integers
        self._slots = _Slots(np.full(_FIRST_CAPACITY, _NEVER, np.uint32))
        self._slot_count = 0

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
        positions = self.layers[0].positions(ids, field, number)
        missing = (positions < 0).nonzero()[0]
        if not missing.size:
            return positions

        # An id is live in one layer or slot at most, so that each layer is searched for the rest.
        first = self.layers[0].size
        for layer in self.layers[1:]:
            in_layer = layer.positions(ids[missing], field, number)
            is_live = in_layer >= 0
            positions[missing[is_live]] = in_layer[is_live] + first
            missing = missing[~is_live]
            first += layer.size
        if missing.size and slot_count:
            keys = self._checked_keys("id", ids[missing]).tolist()
            positions[missing] = [self._slot_position(key, number, slot_count) for key in keys]
        return positions

    def append(self, ids: Sequence[int | str]) -> None:
        """Gives ids the next slots."""
        slots = self._slots
        first = self._slot_count
        end = first + len(ids)
        # The capacity doubles: each slot is copied a few times at most, however many follow.
        if end > slots.ends.size:
            ends = np.full(max(end, 2 * slots.ends.size), _NEVER, np.uint32)
            ends[:first] = slots.ends[:first]
            # A thread that reads the former array misses only ends by changes after its own.
            slots = self._slots = _Slots(ends, slots.by_id)
        by_id = slots.by_id
        for slot, key in enumerate(ids, first):
            by_id.setdefault(key, []).append(slot)
        self._slot_count = end

    def end(self, positions: Positions, number: int) -> None:
        """Ends live positions by a change."""
        first = 0
        for layer in self.layers:
            in_layer = positions[(positions >= first) & (positions < first + layer.size)]
            layer.ends[in_layer - first] = number
            first += layer.size
        slots = positions[positions >= first] - first
        self._slots.ends[slots] = number

    def is_live(self, number: int, slot_count: int) -> NDArray[np.bool_]:
        """Returns which of the first slots are live after a change, [slot_count]."""
        live: NDArray[np.bool_] = self._slots.ends[:slot_count] > number
        return live

    def _slot_position(self, key: int | str, number: int, slot_count: int) -> int:
        """Returns the position of the live slot of an id after a change; -1: it has none."""
        slots = self._slots
        key_slots = slots.by_id.get(key)
        if key_slots is None:
            return -1
        # The last slot of that state: the ones before were ended by it at the latest.
        count = bisect_left(key_slots, slot_count)
        if not count or slots.ends[key_slots[count - 1]] <= number:
            return -1
        return self.size + key_slots[count - 1]

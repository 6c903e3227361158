"""Keys that a table of dynamic keys has got beside those of its key index: immutable states, each
made of the one before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bundle.tables.id_values import Rows

Keys = NDArray[np.int64]

_RECENT_MAX = 16_384
"""Keys that are sorted apart from the others. A change of some keys copies these alone: 0.02 ms, in
place of 4 ms for a million keys.
"""


class NewKeys:
    """The rows of some keys in one state. Immutable; safe for any number of threads.

    Rows follow one another in the order in which the keys came, from the first one that the table
    does not have.

    Attributes:
      first_row: The number of rows of the table's files.
      count: The number of keys.
    """

    def __init__(self, first_row: int, settled: tuple[Keys, Rows], recent: tuple[Keys, Rows]):
        """Begins a state; callers use `none` and `with_keys`.

        Args:
          first_row: The number of rows of the table's files.
          settled: Distinct keys in ascending order, and the row of each.
          recent: Likewise, of the keys that came last.
        """
        self.first_row = first_row
        self._settled = settled
        self._recent = recent
        self.count = settled[0].size + recent[0].size

    @classmethod
    def none(cls, first_row: int) -> NewKeys:
        """Returns the state of a table without further keys.

        Args:
          first_row: The number of rows of its files.
        """
        empty = np.empty(0, np.int64)
        return cls(first_row, (empty, empty), (empty, empty))

    @property
    def end_row(self) -> int:
        """The row behind those of all keys."""
        return self.first_row + self.count

    def find(self, keys: Keys) -> Rows:
        """Returns the row of each key; -1 for keys that the state does not have.

        Args:
          keys: [m] int64, in any order.

        Returns:
          [m] int64.
        """
        rows = np.full(keys.size, -1, np.int64)
        for known_keys, known_rows in (self._settled, self._recent):
            if known_keys.size:
                positions = known_keys.searchsorted(keys)
                is_known = known_keys.take(positions, mode="clip") == keys
                rows[is_known] = known_rows[positions[is_known]]
        return rows

    def with_keys(self, keys: Keys) -> NewKeys:
        """Returns a state with further keys, which get the next rows in their order; this one stays
        as it is.

        Args:
          keys: [m] int64, distinct. None of them is here.
        """
        rows = np.arange(self.end_row, self.end_row + keys.size)
        recent = _merge(self._recent, keys, rows)
        settled = self._settled
        if recent[0].size > _RECENT_MAX:
            settled = _merge(settled, *recent)
            recent = (recent[0][:0], recent[1][:0])
        return NewKeys(self.first_row, settled, recent)


def _merge(before: tuple[Keys, Rows], keys: Keys, rows: Rows) -> tuple[Keys, Rows]:
    """Returns ascending keys and their rows, with further ones between them."""
    order = keys.argsort()
    keys = keys[order]
    keys_before, rows_before = before
    positions = keys_before.searchsorted(keys)
    all_keys = np.insert(keys_before, positions, keys)
    return all_keys, np.insert(rows_before, positions, rows[order])

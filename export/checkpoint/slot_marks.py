"""Which stored rows training changed, as the slot variables of an optimizer show.

An optimizer initializes all values of a slot variable alike: to 0, or to an initial accumulator. A
row that keeps this value was never trained. Accumulators of squared gradients grow with the number
of updates, so they also show which rows were trained often.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.checkpoint.reader import Checkpoint

BYTES_MAX = 256 << 20
"""The maximum number of bytes that are read of all slot variables of one table or stack."""
ROWS_MAX = 1 << 22
"""The maximum number of rows of a variable whose rows are all read, because all of them are sorted.
"""
_BLOCK_BYTES = 8 << 20
"""The approximate number of bytes that are read and computed at a time, which bounds the memory."""
_GAP_ROWS = 8
"""The maximum gap in rows between two requested rows that is read with them rather than skipped: a
read of its own costs more than these rows.
"""
_ALIKE_ROWS_MIN = 2
"""The minimum number of equal rows of two columns or more that were never trained. Trained rows
never coincide.
"""
_ALIKE_SCALARS_MIN = 8
"""The minimum number of equal rows of one column that were never trained. Trained values coincide
by chance.
"""


@dataclass(frozen=True)
class SlotMarks:
    """What training left in the slot variables of one stored variable.

    Attributes:
      rows: [n] int64 ascending, the stored rows that were read; None: all of them.
      touched: [n] bool, whether training changed the row.
      growth: [n] float64, the scores (`scores_of_ranks`) of what the accumulators of the row grew
        by; None: the optimizer keeps no accumulators.
      slots: Names of the slot variables.
    """

    rows: NDArray[np.int64] | None
    touched: NDArray[np.bool_]
    growth: NDArray[np.float64] | None
    slots: tuple[str, ...]

    @property
    def touched_share(self) -> float:
        """Share of the rows that training changed."""
        return float(self.touched.mean())

    def positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns where stored rows, all of which were read, are in `touched` and `growth`."""
        if self.rows is None:
            return rows
        return np.searchsorted(self.rows, rows)


@dataclass(frozen=True)
class SlotReader:
    """Reads the slot variables of one stored variable.

    Attributes:
      checkpoint: The open checkpoint.
      slots: Names of the slot variables, and their keys. Each variable has a row for each stored
        row.
      rows: Number of stored rows.
      columns: The number of columns that tables use; the columns after them are padding.
    """

    checkpoint: Checkpoint
    slots: Sequence[tuple[str, str]]
    rows: int
    columns: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of all slot variables."""
        sizes = (self.checkpoint.entries[key] for _, key in self.slots)
        return sum(entry.bytes // max(1, self.rows) for entry in sizes)

    @property
    def reads_all(self) -> bool:
        """Whether all rows are read."""
        return self.rows <= ROWS_MAX and self.row_bytes * self.rows <= BYTES_MAX

    def read_all(self) -> SlotMarks:
        """Reads all rows.

        Raises:
          CheckpointError: A data file is gone, changed, ends early or cannot be read.
        """
        return self._marks(None)

    def read(self, rows: NDArray[np.int64]) -> SlotMarks:
        """Reads [n] int64 stored rows in one pass, from the first to the last; otherwise the same
        as `read_all`.
        """
        return self._marks(np.unique(rows))

    def _marks(self, rows: NDArray[np.int64] | None) -> SlotMarks:
        count = self.rows
        if rows is not None:
            count = len(rows)
        touched = np.zeros(count, bool)
        growth: NDArray[np.float64] | None = None
        is_marked = False
        for _, key in self.slots:
            state = self._read_slot(key, rows, count)
            initial = state.initial
            if initial is None:
                changed = np.ones(count, bool)
            else:
                changed = ~(state.uniform & (state.first == initial))
            if state.accumulates:
                # Slot variables have scales of their own, so scores are added, not values.
                scores = scores_of_ranks(state.sums)
                if growth is None:
                    growth = scores
                else:
                    growth = growth + scores
            if initial is None:
                continue
            is_marked = True
            touched |= changed
        if not is_marked:
            # No row was left as it was initialized, or nothing distinguishes such rows.
            touched[:] = True
        return SlotMarks(rows, touched, growth, tuple(name for name, _ in self.slots))

    def _read_slot(self, key: str, rows: NDArray[np.int64] | None, count: int) -> _SlotState:
        uniform = np.empty(count, bool)
        first = np.empty(count, np.float32)
        sums = np.empty(count, np.float64)
        lowest = np.inf
        start = 0
        for values in self._blocks(key, rows):
            used = values.reshape(len(values), -1)[:, : self.columns].astype(np.float32)
            used = np.nan_to_num(used + np.float32(0))  # -0 equals 0, and NaN equals NaN
            end = start + len(used)
            uniform[start:end] = (used == used[:, :1]).all(axis=1)
            first[start:end] = used[:, 0]
            sums[start:end] = used.sum(axis=1, dtype=np.float64)
            lowest = min(lowest, float(used.min(initial=np.inf)))
            start = end
        return _SlotState(uniform, first, sums, lowest, self._columns_of(key))

    def _columns_of(self, key: str) -> int:
        shape = self.checkpoint.entries[key].shape
        if len(shape) != 2:
            return 1
        return min(self.columns, shape[1])

    def _blocks(self, key: str, rows: NDArray[np.int64] | None) -> Iterator[NDArray[Any]]:
        """Yields the values of the requested rows, in their order."""
        entry = self.checkpoint.entries[key]
        step = max(1, _BLOCK_BYTES // max(1, entry.bytes // max(1, self.rows)))
        if rows is None:
            ranges = [(first, min(step, self.rows - first)) for first in range(0, self.rows, step)]
            yield from self.checkpoint.read_each(key, ranges)
            return
        ranges = list(_ranges(rows, step))
        values_of = self.checkpoint.read_each(key, ranges)
        for (first, count), values in zip(ranges, values_of, strict=True):
            # A range also holds rows between the requested ones, which are left out.
            low = np.searchsorted(rows, first)
            high = np.searchsorted(rows, first + count)
            yield values[rows[low:high] - first]


@dataclass(frozen=True)
class _SlotState:
    """What was read of one slot variable.

    Attributes:
      uniform: [n] bool, whether all values of a row are equal.
      first: [n] float32, the first value of each row.
      sums: [n] float64, the sum of each row.
      lowest: The lowest value of all rows.
      columns: The number of columns of the tables.
    """

    uniform: NDArray[np.bool_]
    first: NDArray[np.float32]
    sums: NDArray[np.float64]
    lowest: float
    columns: int

    @property
    def initial(self) -> np.float32 | None:
        """The value that all rows began with: the most frequent one of uniform rows. None: no two
        rows have the same.
        """
        values, counts = np.unique(self.first[self.uniform], return_counts=True)
        alike_min = _ALIKE_ROWS_MIN if self.columns > 1 else _ALIKE_SCALARS_MIN
        if not len(values) or counts.max() < alike_min:
            return None
        return np.float32(values[counts.argmax()])

    @property
    def accumulates(self) -> bool:
        """Whether the slot variable may hold sums of squares: no value is negative."""
        # Equal sums would rank no row above another.
        return self.lowest >= 0 and bool(np.ptp(self.sums) > 0)


def _ranges(rows: NDArray[np.int64], step: int) -> Iterable[tuple[int, int]]:
    """Yields ranges that hold ascending rows, and few others: first row and how many."""
    if not len(rows):
        return
    breaks = np.flatnonzero(np.diff(rows) > _GAP_ROWS) + 1
    for group in np.split(rows, breaks):
        first = int(group[0])
        end = int(group[-1]) + 1
        while first < end:
            count = min(step, end - first)
            yield first, count
            first += count


def scores_of_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [n] float64, the exponential scores of the ranks of [n] values: equal values have
    equal scores, and differences among the largest values count most.

    Source: I. R. Savage, Contributions to the theory of rank order statistics, 1956.
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    # The middle rank of equal values is less than the number of values: no logarithm is infinite.
    middles = np.cumsum(counts) - counts / 2
    scores: NDArray[np.float64] = -np.log1p(-middles / len(values))[inverse]
    return scores

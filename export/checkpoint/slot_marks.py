"""Which stored rows training changed, as the slot variables of an optimizer show.

An optimizer initializes all values of a slot variable alike: to 0, or to an initial accumulator. A
row that keeps this value was never trained.
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
      slots: Names of the slot variables.
    """

    rows: NDArray[np.int64] | None
    touched: NDArray[np.bool_]
    slots: tuple[str, ...]

    @property
    def touched_share(self) -> float:
        """Share of the rows that training changed."""
        return float(self.touched.mean())

    def positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns where stored rows, all of which were read, are in `touched`."""
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
        is_marked = False
        for _, key in self.slots:
            uniform, first = self._read_slot(key, rows, count)
            initial = self._initial(key, first[uniform])
            if initial is not None:
                is_marked = True
                touched |= ~(uniform & (first == initial))
        if not is_marked:
            # No row was left as it was initialized, or nothing distinguishes such rows.
            touched[:] = True
        return SlotMarks(rows, touched, tuple(name for name, _ in self.slots))

    def _read_slot(
        self, key: str, rows: NDArray[np.int64] | None, count: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Returns [n] bool, whether all values of a row are equal, and [n] float32, the first value
        of each row.
        """
        uniform = np.empty(count, bool)
        first = np.empty(count, np.float32)
        start = 0
        for values in self._blocks(key, rows):
            used = values.reshape(len(values), -1)[:, : self.columns].astype(np.float32)
            used = np.nan_to_num(used + np.float32(0))  # -0 equals 0, and NaN equals NaN
            end = start + len(used)
            uniform[start:end] = (used == used[:, :1]).all(axis=1)
            first[start:end] = used[:, 0]
            start = end
        return uniform, first

    def _initial(self, key: str, uniform_values: NDArray[np.float32]) -> np.float32 | None:
        """Returns the value that all rows began with, the most frequent one of [n] float32 values
        of uniform rows; None: too few rows have the same.
        """
        values, counts = np.unique(uniform_values, return_counts=True)
        alike_min = _ALIKE_SCALARS_MIN
        shape = self.checkpoint.entries[key].shape
        if len(shape) == 2 and min(self.columns, shape[1]) > 1:
            alike_min = _ALIKE_ROWS_MIN
        if not len(values) or counts.max() < alike_min:
            return None
        return np.float32(values[counts.argmax()])

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

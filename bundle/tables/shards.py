"""Row -> (shard, row in it) and back, and row ranges; pure arithmetic. Training layouts are no business of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of

SHARD_BYTES = 4 << 30


class RowRange(NamedTuple):
    """Rows `first` up to, not including, `first + rows`."""

    first: int
    rows: int

    @property
    def end(self) -> int:
        """The first row behind the range."""
        return self.first + self.rows


def shard_rows(row_bytes: int, shard_bytes: int = SHARD_BYTES) -> int:
    """Returns how many whole rows fit `shard_bytes`, at least one."""
    return max(1, shard_bytes // row_bytes)


def cut(rows: int, rows_max: int) -> tuple[RowRange, ...]:
    """Cuts rows 0 to `rows` into ranges of `rows_max`; the last may be shorter."""
    if rows < 0 or rows_max < 1:
        raise ValueError(
            f"cannot cut {rows} rows into ranges of {rows_max}; rows must be >= 0 and a range >= 1"
        )
    return tuple(RowRange(first, min(rows_max, rows - first)) for first in range(0, rows, rows_max))


def overlap(one: RowRange, other: RowRange) -> RowRange:
    """Returns the rows that both ranges hold; 0 rows if none."""
    first = max(one.first, other.first)
    return RowRange(first, max(0, min(one.end, other.end) - first))


class RowMap:
    """Where each row of a table lies, for shards that follow one another from row 0."""

    def __init__(self, rows_of_shards: Sequence[int]) -> None:
        self.starts = offsets_of(rows_of_shards)
        """[shards + 1]: first row of each shard, then the number of rows in all."""

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Finds rows.

        Args:
          rows: [n] int64, each in [0, rows in all).
        Returns:
          [n] int64 shard and [n] int64 row within that shard.
        """
        shard = np.searchsorted(self.starts, rows, side="right") - 1
        return shard, rows - self.starts[shard]

    def ranges(self, wanted: RowRange) -> list[tuple[int, RowRange]]:
        """Returns the shards that hold a range of rows, each with the part of it there, counted within the shard."""
        first, last = np.searchsorted(self.starts, [wanted.first, wanted.end - 1], side="right") - 1
        found = []
        for shard in range(max(0, int(first)), min(len(self.starts) - 1, int(last) + 1)):
            start = int(self.starts[shard])
            part = overlap(wanted, RowRange(start, int(self.starts[shard + 1]) - start))
            if part.rows:
                found.append((shard, RowRange(part.first - start, part.rows)))
        return found

"""The segment of each row, and ranges of rows: pure arithmetic, which knows nothing of training
layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of

SEGMENT_BYTES = 4 << 30


class RowRange(NamedTuple):
    """Rows `first` up to, not including, `first + rows`."""

    first: int
    rows: int

    @property
    def end(self) -> int:
        """The first row behind the range."""
        return self.first + self.rows


def segment_rows(row_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> int:
    """Returns how many whole rows fit `segment_bytes`, at least one."""
    return max(1, segment_bytes // row_bytes)


def cut(rows: int, rows_max: int) -> tuple[RowRange, ...]:
    """Cuts rows 0 to `rows` into ranges of `rows_max`; the last may be shorter."""
    if rows < 0 or rows_max < 1:
        raise ValueError(
            f"cannot cut {rows} rows into ranges of {rows_max}; rows must be >= 0 and a range >= 1"
        )
    return tuple(RowRange(first, min(rows_max, rows - first)) for first in range(0, rows, rows_max))


def overlap(range_a: RowRange, range_b: RowRange) -> RowRange:
    """Returns the rows that both ranges hold; 0 rows if none."""
    first = max(range_a.first, range_b.first)
    end = min(range_a.end, range_b.end)
    return RowRange(first, max(0, end - first))


class RowMap:
    """Where each row of a table lies, for segments that follow one another from row 0."""

    def __init__(self, rows_of_segments: Sequence[int]) -> None:
        self.starts = offsets_of(rows_of_segments)
        """[segments + 1]: first row of each segment, then the number of rows in all."""

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Finds rows.

        Args:
          rows: [n] int64, each in [0, rows in all).
        Returns:
          [n] int64 segment and [n] int64 row within that segment.
        """
        segment = np.searchsorted(self.starts, rows, side="right") - 1
        return segment, rows - self.starts[segment]

    def ranges(self, wanted: RowRange) -> list[tuple[int, RowRange]]:
        """Returns the segments that hold a range of rows, each with its rows of the range, counted
        within the segment.
        """
        first, last = np.searchsorted(self.starts, [wanted.first, wanted.end - 1], side="right") - 1
        ranges = []
        # A range that begins or ends outside all segments has rows in none of them.
        segments = range(max(0, int(first)), min(len(self.starts) - 1, int(last) + 1))
        for segment in segments:
            start = int(self.starts[segment])
            shared = overlap(wanted, RowRange(start, int(self.starts[segment + 1]) - start))
            if shared.rows:
                ranges.append((segment, RowRange(shared.first - start, shared.rows)))
        return ranges

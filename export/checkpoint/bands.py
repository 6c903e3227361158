"""Where the rows of a stored variable lie in its slices; pure arithmetic, no I/O.

The variable may be one slice, row ranges of any length in any order (one per host, one per
partition, or cut by a size limit), or a grid of rows and columns. Its rows fall into bands: row
ranges over which the same slices lie side by side.

    columns   0 ......... D          bands
    rows 0    [ a        ]           a
         10   [ b  ][ c  ]           b c
         20   [ b  ][ d  ]           b d
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from export.checkpoint.variables import Slice

_SPANS_SHOWN = 8
"""The maximum number of slices that an error message lists."""


class SlicesOverlap(Exception):
    """The slices of a variable overlap, or leave a gap."""


class Band(NamedTuple):
    """Rows `first` up to, not including, `first + rows`, and the slices that hold their columns,
    from left to right.
    """

    first: int
    rows: int
    slices: tuple[Slice, ...]

    @property
    def end(self) -> int:
        """The first row after the band."""
        return self.first + self.rows


class SourceRange(NamedTuple):
    """A range of bytes in one slice, counted from its first byte."""

    slice: Slice
    offset: int
    bytes: int


def bands(slices: Sequence[Slice], dim: int, first: int, rows: int) -> list[Band]:
    """Returns the bands that make up rows [first, first + rows) of a table.

    Args:
      slices: The slices of a variable [rows, dim], in any order; there may be more than are needed.
      dim: The number of columns of the table.
    Raises:
      SlicesOverlap: The slices overlap in these rows, or leave a gap.
    """
    end = first + rows
    overlapping = []
    for part in slices:
        is_empty = math.prod(part.shape) == 0
        if not is_empty and part.starts[0] < end and _end(part) > first:
            overlapping.append(part)
    overlapping.sort(key=lambda part: part.starts[0])

    # Bands can begin and end only where some slice does.
    cuts = {first, end}
    for part in overlapping:
        cuts.add(max(first, part.starts[0]))
        cuts.add(min(end, _end(part)))

    result: list[Band] = []
    # Slices of the current band: first column, a number that breaks ties (slices have no order of
    # their own), slice.
    active: list[tuple[int, int, Slice]] = []
    begun = 0
    for low, high in pairwise(sorted(cuts)):
        active = [(column, number, part) for column, number, part in active if _end(part) > low]
        # The slices are sorted: each begins once, however many bands there are.
        while begun < len(overlapping) and overlapping[begun].starts[0] <= low:
            insort(active, (overlapping[begun].starts[1], begun, overlapping[begun]))
            begun += 1

        parts = tuple(part for _, _, part in active)
        _check_columns(parts, dim, low)
        result.append(Band(low, high - low, parts))
    return result


def within(all_bands: Sequence[Band], first: int, rows: int) -> list[Band]:
    """Returns the parts of consecutive bands that lie in rows [first, first + rows)."""
    end = first + rows
    start = max(0, bisect_right(all_bands, first, key=lambda band: band.first) - 1)
    result = []
    for band in all_bands[start:]:
        if band.first >= end:
            break
        low = max(first, band.first)
        high = min(end, band.end)
        if high > low:
            result.append(Band(low, high - low, band.slices))
    return result


def source_range(part: Slice, first: int, rows: int) -> SourceRange:
    """Returns where rows [first, first + rows) of the table lie in a slice: side by side, as the
    slice is row-major.
    """
    row_bytes = part.bytes // part.shape[0]
    return SourceRange(part, (first - part.starts[0]) * row_bytes, rows * row_bytes)


def _end(part: Slice) -> int:
    return part.starts[0] + part.shape[0]


def _check_columns(parts: Sequence[Slice], dim: int, row: int) -> None:
    """Checks that slices, sorted by their first column, cover columns [0, dim) exactly once."""
    column = 0
    for part in parts:
        if part.starts[1] != column:
            break
        column += part.shape[1]
    else:
        if column == dim:
            return

    spans = [
        f"columns {part.starts[1]} to {part.starts[1] + part.shape[1]}"
        for part in parts[:_SPANS_SHOWN]
    ]
    raise SlicesOverlap(
        f"at row {row} its slices hold {', '.join(spans) or 'nothing'}, where columns 0 to {dim} "
        "are needed"
    )

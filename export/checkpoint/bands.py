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
    waiting = sorted(
        (
            part
            for part in slices
            if math.prod(part.shape) and part.starts[0] < end and _end(part) > first
        ),
        key=lambda part: part.starts[0],
    )
    cuts = sorted(
        {
            first,
            end,
            *(max(first, part.starts[0]) for part in waiting),
            *(min(end, _end(part)) for part in waiting),
        }
    )
    result: list[Band] = []
    here: list[tuple[int, int, Slice]] = []  # first column, a number that breaks ties, slice
    taken = 0
    for low, high in pairwise(cuts):
        here = [each for each in here if _end(each[2]) > low]
        while taken < len(waiting) and waiting[taken].starts[0] <= low:
            insort(here, (waiting[taken].starts[1], taken, waiting[taken]))
            taken += 1
        _check_columns([part for _, _, part in here], dim, low)
        result.append(Band(low, high - low, tuple(part for _, _, part in here)))
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
    column = 0
    for part in parts:
        if part.starts[1] != column:
            break
        column += part.shape[1]
    else:
        if column == dim:
            return
    spans = (
        ", ".join(
            f"columns {part.starts[1]} to {part.starts[1] + part.shape[1]}" for part in parts[:8]
        )
        or "nothing"
    )
    raise SlicesOverlap(
        f"at row {row} its slices hold {spans}, where columns 0 to {dim} are needed"
    )

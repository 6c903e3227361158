"""Bands of slices: against a table that is painted slice by slice."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.bands import bands
from export.checkpoint.variables import Slice

DIM = 6


def part(row: int, rows: int, column: int = 0, columns: int = DIM, offset: int = 0) -> Slice:
    return Slice("data", offset, 4 * rows * columns, 0, (row, column), (rows, columns))


@st.composite
def cut_tables(draw: st.DrawFn) -> tuple[int, list[Slice]]:
    """A table of up to 40 rows whose column stripes are each cut at rows of their own; slices in any order."""
    rows = draw(st.integers(1, 40))
    columns = sorted({0, DIM, *draw(st.lists(st.integers(1, DIM - 1), max_size=3))})
    slices = []
    for left, right in pairwise(columns):
        cuts = sorted({0, rows, *draw(st.lists(st.integers(0, rows), max_size=4))})
        slices += [part(low, high - low, left, right - left) for low, high in pairwise(cuts)]
    return rows, draw(st.permutations(slices))


@given(cut_tables(), st.data())
def test_bands_any_cut_paints_every_cell_once(cut: tuple[int, list[Slice]], data: st.DataObject) -> None:
    rows, slices = cut
    first = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - first))
    painted = np.zeros((rows, DIM), int)
    for band in bands(slices, DIM, first, count):
        for each in band.slices:
            assert each.starts[0] <= band.first < band.end <= each.starts[0] + each.shape[0]
            painted[band.first : band.end, each.starts[1] : each.starts[1] + each.shape[1]] += 1
    assert (painted[first : first + count] == 1).all()
    assert painted.sum() == count * DIM

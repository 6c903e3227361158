"""Bands of slices: against a table that is painted slice by slice."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.bands import SlicesOverlap, bands, within
from export.checkpoint.variables import Slice

DIM = 6


def part(row: int, rows: int, column: int = 0, columns: int = DIM, offset: int = 0) -> Slice:
    return Slice("data", offset, 4 * rows * columns, 0, (row, column), (rows, columns))


@pytest.mark.parametrize(
    "slices",
    [
        [],
        [part(0, 9)],
        [part(1, 9)],
        [part(0, 5), part(6, 4)],
        [part(0, 6), part(5, 5)],
        [part(0, 10, 0, 5)],
        [part(0, 10, 0, 4), part(0, 10, 3, 3)],
        [part(0, 10), part(0, 10)],
        [part(0, 10, 0, 3), part(0, 9, 3, 3)],
    ],
)
def test_bands_gap_or_overlap_is_refused(slices: list[Slice]) -> None:
    with pytest.raises(SlicesOverlap, match="at row"):
        bands(slices, DIM, 0, 10)


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


@given(cut_tables(), st.data())
def test_within_part_of_all_bands_is_the_bands_of_the_part(cut: tuple[int, list[Slice]], data: st.DataObject) -> None:
    rows, slices = cut
    first = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - first))
    of_all = within(bands(slices, DIM, 0, rows), first, count)
    held = {each for band in of_all for each in band.slices}
    assert of_all == bands([each for each in slices if each in held], DIM, first, count)

"""Bands of slices: against a table that is painted slice by slice."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.bands import SlicesOverlap, bands, source_range, within
from export.checkpoint.variables import Slice

DIM = 6


def part(row: int, rows: int, column: int = 0, columns: int = DIM, offset: int = 0) -> Slice:
    return Slice("data", offset, 4 * rows * columns, 0, (row, column), (rows, columns))


def test_bands_one_slice_is_one_band() -> None:
    whole = part(0, 10)
    assert bands([whole], DIM, 2, 5) == [(2, 5, (whole,))]


def test_bands_bricks_change_where_any_slice_begins_or_ends() -> None:
    a, b, c, d = part(0, 10), part(10, 20, 0, 2), part(10, 10, 2, 4), part(20, 10, 2, 4)
    assert bands([d, b, c, a], DIM, 0, 30) == [(0, 10, (a,)), (10, 10, (b, c)), (20, 10, (b, d))]
    assert bands([d, b, c, a], DIM, 5, 7) == [(5, 5, (a,)), (10, 2, (b, c))]


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


def test_bands_slice_without_rows_is_passed_over() -> None:
    assert len(bands([part(0, 10), part(4, 0)], DIM, 0, 10)) == 1


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


@given(cut_tables(), st.data())
def test_source_range_holds_the_rows_that_were_asked_for(cut: tuple[int, list[Slice]], data: st.DataObject) -> None:
    each = data.draw(st.sampled_from(cut[1]))
    first = data.draw(st.integers(each.starts[0], each.starts[0] + each.shape[0] - 1))
    count = data.draw(st.integers(1, each.starts[0] + each.shape[0] - first))
    source = source_range(each, first, count)
    assert 0 <= source.offset <= source.offset + source.bytes <= each.bytes
    values = np.arange(each.shape[0] * each.shape[1], dtype=np.int32).reshape(each.shape)
    stored = values.tobytes()[source.offset : source.offset + source.bytes]
    assert stored == values[first - each.starts[0] : first - each.starts[0] + count].tobytes()

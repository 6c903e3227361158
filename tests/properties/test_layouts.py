"""Every layout, forward and inverse, against the definitions written out row by row."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.layouts import Layout, Mod, Plain, SparseCore, lane_ranges, occupied, stored_rows, table_rows


@st.composite
def tables(draw: st.DrawFn) -> tuple[Layout, int]:
    kind = draw(st.sampled_from(["plain", "mod", "sparse_core"]))
    if kind == "plain":
        return Plain(), draw(st.integers(1, 60))
    lanes = draw(st.integers(1, 12))
    if kind == "mod":
        rows = draw(st.integers(lanes, 60))
        held = [len(range(lane, rows, lanes)) for lane in range(lanes)]
        return Mod(tuple(int(start) for start in np.cumsum([0, *held[:-1]]))), rows
    rows, offset = draw(st.integers(1, 60)), draw(st.integers(0, 5))
    return SparseCore(lanes, offset + 60 + draw(st.integers(0, 5)), offset, draw(st.integers(0, lanes - 1))), rows


def by_definition(layout: Layout, row: int) -> int:
    if isinstance(layout, Plain):
        return row
    if isinstance(layout, Mod):
        return layout.starts[row % len(layout.starts)] + row // len(layout.starts)
    return (row + layout.rotation) % layout.cores * layout.core_rows + layout.offset + row // layout.cores


@given(tables())
def test_stored_rows_are_those_of_the_definition_and_table_rows_inverts_them(table: tuple[Layout, int]) -> None:
    layout, rows = table
    everyone = np.arange(rows, dtype=np.int64)
    stored = stored_rows(layout, everyone)
    assert stored.tolist() == [by_definition(layout, row) for row in range(rows)]
    assert table_rows(layout, stored, rows).tolist() == everyone.tolist()
    others = np.setdiff1d(np.arange(stored.max() + 10), stored)
    assert (table_rows(layout, others, rows) == -1).all()


@given(tables(), st.data())
def test_lane_ranges_fill_a_block_with_its_rows(table: tuple[Layout, int], data: st.DataObject) -> None:
    layout, rows = table
    first = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - first))
    block = np.full(count, -1, np.int64)
    for lane in lane_ranges(layout, first, count):
        assert len(block[lane.place :: layout.lanes]) == lane.rows
        block[lane.place :: layout.lanes] = np.arange(lane.first, lane.first + lane.rows)
    assert block.tolist() == [by_definition(layout, first + row) for row in range(count)]


@given(tables())
def test_occupied_ranges_are_the_stored_rows_in_order(table: tuple[Layout, int]) -> None:
    layout, rows = table
    ranges = occupied(layout, rows)
    told = [row for first, end in ranges for row in range(first, end)]
    assert told == sorted(by_definition(layout, row) for row in range(rows))
    assert all(end < following for (_, end), (following, _) in pairwise(ranges))

"""Where the rows of a table lie in a variable, and which tables a variable can hold."""

from __future__ import annotations

import numpy as np
import pytest

from export.checkpoint.layouts import (
    Layout,
    Mod,
    Plain,
    SparseCore,
    StoredOrder,
    fits,
    lane_ranges,
    occupied,
    stored_rows,
)

CORES = SparseCore(cores=4, core_rows=10, offset=2, rotation=1)
LAYOUTS: list[tuple[Layout, int, list[int]]] = [
    (Plain(), 5, [0, 1, 2, 3, 4]),
    (Mod((0, 3, 5)), 7, [0, 3, 5, 1, 4, 6, 2]),
    (CORES, 6, [12, 22, 32, 2, 13, 23]),
    (CORES, 3, [12, 22, 32]),
    (SparseCore(cores=2, core_rows=4, offset=0, rotation=0), 8, [0, 4, 1, 5, 2, 6, 3, 7]),
]
"""Layouts, the rows of a table, and the stored row of each, by hand."""


@pytest.mark.parametrize(
    ("layout", "bases"),
    [(Plain(), [0]), (Mod((0, 3, 5)), [0, 3, 5]), (CORES, [12, 22, 32, 2])],
)
def test_each_lane_begins_at_its_base(layout: Layout, bases: list[int]) -> None:
    assert layout.bases().tolist() == bases
    assert layout.lanes == len(bases)


@pytest.mark.parametrize(("layout", "rows", "stored"), LAYOUTS)
def test_each_row_has_its_stored_row(layout: Layout, rows: int, stored: list[int]) -> None:
    assert stored_rows(layout, np.arange(rows)).tolist() == stored
    assert stored_rows(layout, np.array([rows - 1, 0])).tolist() == [stored[-1], stored[0]]


@pytest.mark.parametrize(("layout", "rows", "stored"), LAYOUTS)
def test_ranges_of_lanes_hold_the_rows_of_a_part(
    layout: Layout, rows: int, stored: list[int]
) -> None:
    for first in range(rows):
        for count in range(1, rows - first + 1):
            ranges = list(lane_ranges(layout, first, count))
            contents = sorted(row for start, end in ranges for row in range(start, end))
            assert contents == sorted(stored[first : first + count])
            assert len(ranges) == min(layout.lanes, count)


@pytest.mark.parametrize(("layout", "rows", "stored"), LAYOUTS)
@pytest.mark.parametrize("descending", [False, True])
def test_rows_come_in_the_order_in_which_they_are_stored(
    layout: Layout, rows: int, stored: list[int], descending: bool
) -> None:
    order = StoredOrder(layout, rows, descending=descending)
    ordered = sorted(range(rows), key=stored.__getitem__, reverse=descending)
    assert order.rows_at(np.arange(rows)).tolist() == ordered
    assert order.ranks_of(np.array(ordered)).tolist() == list(range(rows))


@pytest.mark.parametrize(
    ("layout", "rows", "occupied_rows"),
    [
        (Plain(), 5, [(0, 5)]),
        (Mod((0, 3, 5)), 7, [(0, 7)]),
        (CORES, 6, [(2, 3), (12, 14), (22, 24), (32, 33)]),
        (SparseCore(cores=2, core_rows=4, offset=0, rotation=1), 8, [(0, 8)]),
    ],
)
def test_ranges_that_touch_are_one(
    layout: Layout, rows: int, occupied_rows: list[tuple[int, int]]
) -> None:
    assert occupied(layout, rows) == occupied_rows


def test_lanes_that_overlap_are_no_layout() -> None:
    with pytest.raises(ValueError, match="two lanes hold stored row 1"):
        occupied(Mod((0, 1)), 4)


@pytest.mark.parametrize(
    ("layout", "rows", "dim", "stored", "right"),
    [
        (Plain(), 5, 3, (5, 3), True),
        (Plain(), 4, 2, (5, 3), True),
        (Plain(), 6, 3, (5, 3), False),
        (Plain(), 5, 4, (5, 3), False),
        (Plain(), 1, 1, (5, 3), True),
        (Plain(), 0, 3, (5, 3), False),
        (Plain(), 5, 0, (5, 3), False),
        (Mod((0, 3)), 5, 3, (5, 3), True),
        (Mod((0, 3)), 5, 3, (6, 3), False),
        (Mod((0, 3)), 4, 3, (5, 3), False),
        (CORES, 32, 3, (40, 3), True),
        (CORES, 33, 3, (41, 3), True),
        (CORES, 6, 3, (33, 3), True),
        (CORES, 6, 3, (32, 3), False),
        (CORES, 31, 3, (40, 3), True),
        (CORES, 35, 3, (40, 3), False),
    ],
)
def test_variable_can_hold_a_table_none_of_whose_rows_lies_outside(
    layout: Layout, rows: int, dim: int, stored: tuple[int, int], right: bool
) -> None:
    assert fits(layout, rows, dim, stored) is right

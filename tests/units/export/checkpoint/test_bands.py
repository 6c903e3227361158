from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.bands import Band, SlicesOverlap, bands, source_range, within
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import Slice
from export.errors import CheckpointError
from export.tables.plan import plan_tables
from tests.units.export.checkpoint.tensor_bundles import write_bundle

TABLE = np.arange(222, dtype=np.float32).reshape(37, 6)


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([[(0, 10), (0, -1)], [(11, 26), (0, -1)]], "row 10 its slices hold nothing"),
        ([[(0, -1), (0, 5)]], "row 0 its slices hold columns 0 to 5"),
        (
            [[(0, 30), (0, -1)], [(29, 8), (0, -1)]],
            "row 29 its slices hold columns 0 to 6, columns 0 to 6",
        ),
        (
            [[(0, -1), (0, 2)], [(0, 9), (2, 4)], [(9, 28), (3, 3)]],
            "row 9 its slices hold columns 0 to 2, columns 3 to 6",
        ),
    ],
)
def test_table_whose_slices_overlap_or_leave_a_gap_is_rejected_with_the_place(
    tmp_path: Path, boxes: Any, message: str
) -> None:
    write_bundle(tmp_path / "c", {"t/embeddings": TABLE}, boxes={"t/embeddings": boxes})
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=f"at {message}, where columns 0 to 6 are needed"):
        plan_tables(checkpoint, recognize(checkpoint), tmp_path / "out")


def part(row: int, column: int, rows: int, columns: int) -> Slice:
    """Returns a slice of values of two bytes."""
    return Slice("f", 0, 2 * rows * columns, None, (row, column), (rows, columns))


A = part(0, 0, 10, 4)
B = part(10, 0, 20, 3)
C = part(10, 3, 10, 1)
D = part(20, 3, 10, 1)
EMPTY = [part(5, 0, 0, 4), part(12, 2, 3, 0)]
GRID = [D, *EMPTY, C, A, B]
"""In no order: rows 0 to 10 are A, to 20 B and C, to 30 B and D."""


@pytest.mark.parametrize(
    ("first", "rows", "expected"),
    [
        (0, 30, [Band(0, 10, (A,)), Band(10, 10, (B, C)), Band(20, 10, (B, D))]),
        (0, 10, [Band(0, 10, (A,))]),
        (9, 2, [Band(9, 1, (A,)), Band(10, 1, (B, C))]),
        (10, 10, [Band(10, 10, (B, C))]),
        (12, 3, [Band(12, 3, (B, C))]),
        (19, 3, [Band(19, 1, (B, C)), Band(20, 2, (B, D))]),
        (29, 1, [Band(29, 1, (B, D))]),
        (7, 0, []),
    ],
)
def test_rows_fall_into_bands_of_the_same_slices(
    first: int, rows: int, expected: list[Band]
) -> None:
    assert bands(GRID, 4, first, rows) == expected
    assert within(bands(GRID, 4, 0, 30), first, rows) == expected
    assert [band.end for band in expected] == [band.first + band.rows for band in expected]


def test_rows_behind_all_bands_are_in_none() -> None:
    assert within(bands(GRID, 4, 0, 30), 30, 5) == []
    assert within(bands(GRID, 4, 10, 20), 0, 15) == [Band(10, 5, (B, C))]


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ([A, C, D], "row 10 its slices hold columns 3 to 4"),
        ([A, B, C], "row 20 its slices hold columns 0 to 3"),
        ([B, C, D], "row 0 its slices hold nothing"),
        (
            [*GRID, part(15, 0, 1, 4)],
            "row 15 its slices hold columns 0 to 3, columns 0 to 4, columns 3 to 4",
        ),
        (
            [part(0, 2 * column, 30, 1) for column in range(9)],
            "row 0 its slices hold columns 0 to 1, columns 2 to 3, columns 4 to 5, columns 6 to 7, "
            "columns 8 to 9, columns 10 to 11, columns 12 to 13, columns 14 to 15",
        ),
        ([part(0, 0, 30, 5)], "row 0 its slices hold columns 0 to 5"),
    ],
)
def test_rows_that_slices_do_not_hold_once_are_told(slices: list[Slice], message: str) -> None:
    with pytest.raises(SlicesOverlap) as error:
        bands(slices, 4, 0, 30)
    assert str(error.value) == f"at {message}, where columns 0 to 4 are needed"


def test_range_of_a_slice_is_counted_from_its_first_byte() -> None:
    assert source_range(B, 10, 20) == (B, 0, 120)
    assert source_range(B, 13, 2) == (B, 18, 12)

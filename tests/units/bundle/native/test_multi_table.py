"""What the compiled reader of several tables is given is checked there: wrong columns are left,
nothing is overrun.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bundle import native
from bundle.features.columns import Column

if native.Rows is None or native.read_tables is None:
    pytest.skip(f"rows were not compiled: {native.MISSING}", allow_module_level=True)

VALUES = np.arange(30, dtype="<f4").reshape(10, 3)
ROWS = native.Rows("float32", 3, [(VALUES.view(np.uint8).reshape(-1), 0, 10)], None)
SENT = {"id": Column(np.array([9, 0])), "x": Column(np.array([0.5, -1.5], np.float32))}


def read_tables(out: Any, **columns: Any) -> int:
    assert native.read_tables is not None
    return native.read_tables(
        (ROWS, 1, None, ROWS), ("id", "x", "y", "id"), {**SENT, **columns}, 0, out, 0
    )


def test_read_tables_stops_at_the_first_feature_that_it_cannot_read() -> None:
    out = np.full((2, 9), 7, np.float32)
    assert read_tables(out[:, 1:]) == 2
    assert out.tolist() == [[7, 27, 28, 29, 0.5, 7, 7, 7, 7], [7, 0, 1, 2, -1.5, 7, 7, 7, 7]]
    assert native.read_tables is not None
    assert (
        native.read_tables((ROWS, 1, None, ROWS), ("id", "x", "y", "id"), SENT, 3, out[:, 1:], 4)
        == 4
    )
    assert out[:, 5:8].tolist() == [[27, 28, 29], [0, 1, 2]]


IDS = np.array([9, 0, 1])
NO_ROWS: list[Any] = [
    *(None, (np.array([9, 0]),), [np.array([9, 0]), None, None], Column([9, 0])),  # type: ignore[arg-type]
    *(Column(np.array(values)) for values in ([9, 10], [9, -1], [9], [[9], [0]])),
    *(Column(np.array([9, 0], dtype)) for dtype in (np.int32, np.float32, object, ">i8")),
    Column(np.array([9, 1, 0, 1])[::2]),
    *(Column(np.array([9, 0]), np.array(ends)) for ends in ([0, 2, 2], [0, 1])),
    Column(np.array([9, 0]), np.array([0, 1, 2], np.int32)),
    Column(np.array([9, 0]), None, np.ones(2, np.float32)),
]
NO_BAGS: list[Any] = [
    *(None, Column(np.array([9, 0]))),
    *(Column(np.array([9, row, 1]), np.array([0, 1, 3])) for row in (10, -1)),
    *(
        Column(IDS, np.array(ends))
        for ends in ([0, 1, 2], [1, 1, 3], [0, 4, 3], [0, -1, 3], [0, 3], [[0, 1, 3]])
    ),
    *(
        Column(IDS, np.array(ends, dtype))
        for ends, dtype in (([], np.int64), ([0, 1, 3], np.int32))
    ),
    Column(IDS.astype(np.int32), np.array([0, 1, 3])),
    Column(IDS, np.array([0, 1, 3]), np.ones(3, np.float32)),
]


@pytest.mark.parametrize(
    ("reader", "column"),
    [*((ROWS, arguments) for arguments in NO_ROWS), *(((ROWS, 1), bags) for bags in NO_BAGS)],
)
def test_read_tables_leaves_out_a_column_without_valid_rows_or_bags(
    reader: Any, column: Any
) -> None:
    assert native.read_tables is not None
    out = np.full((2, 3), 7, np.float32)
    assert native.read_tables((reader,), ("id",), {"id": column}, 0, out, 0) == 0
    assert (out == 7).all()


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_read_tables_leaves_out_numbers_that_are_not_finite(number: float) -> None:
    out = np.full((2, 8), 7, np.float32)
    assert read_tables(out, x=Column(np.array([1, number], np.float32))) == 1
    assert (out[:, 3:] == 7).all()


@pytest.mark.parametrize("width", [0, 1, 3])
def test_read_tables_writes_nothing_outside_its_columns(width: int) -> None:
    room = np.full((2, 8), 7, np.float32)
    assert read_tables(room[:, :width]) == (width == 3)
    assert (room[:, width:] == 7).all()


@pytest.mark.parametrize(
    "out",
    [
        *(
            np.zeros((2, 8)),
            np.zeros(16, np.float32),
            np.zeros((2, 16), np.float32)[:, ::2],
            [[0.0] * 8] * 2,
            None,
        ),
        *(np.zeros((8, 2), np.float32).T, np.frombuffer(bytes(64), np.float32).reshape(2, 8)),
    ],
)
def test_read_tables_rejects_an_output_that_it_cannot_write(out: Any) -> None:
    with pytest.raises(ValueError, match="out must be a writable float32 array"):
        read_tables(out)

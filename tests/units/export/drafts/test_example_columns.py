"""Columns of examples show the dtypes of inputs, the shapes of lists, and what fills these up."""

from __future__ import annotations

from typing import Any

import pytest

from export.drafts.example_columns import columns_of, csv_lists

CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "single values": ([1, 2.5], {"dtype": "float32"}),
    "lists of one length": ([["a", "b"], ["c", "d"]], {"dtype": "string", "shape": (2,)}),
    "lists of several lengths": ([[1], [], [1, 2]], {"dtype": "int64", "kind": "ragged"}),
    "lists of lists": ([[[1, 2], [3, 4], [5, 6]]] * 2, {"dtype": "int64", "shape": (3, 2)}),
    "lists of lists of two sizes": (
        [[[0.5, 2]], [[0.5, 1], [2, 3]]],
        {"dtype": "float32", "shape": (2, 2)},
    ),
    "lists of lists of several lengths": (
        [[[1, 2], [3]], [[1, 2]]],
        {"dtype": "int64", "kind": "ragged"},
    ),
    "filled up at the end": ([[7, 8, 9], [7, 0, 0]], {"dtype": "int64", "shape": (3,), "pad": 0}),
    "filled up at the start": (
        [["", "a"], ["", ""], ["b", "c"]],
        {"dtype": "string", "shape": (2,), "pad": "", "pad_side": "start"},
    ),
    "zeros between": ([[7, 0, 9], [7, 0, 0]], {"dtype": "int64", "shape": (3,)}),
    "zeros in numbers": ([[0.5, 0.5], [0.5, 0]], {"dtype": "float32", "shape": (2,)}),
}


@pytest.mark.parametrize(("values", "expected"), CASES.values(), ids=list(CASES))
def test_column_shows_an_input(values: list[Any], expected: dict[str, Any]) -> None:
    section = columns_of({"column": values})["column"].section
    assert section.model_dump(exclude_defaults=True) == expected


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1|2", "3", None], [[1, 2], [3], []]),
        (["0.5|1", "2"], [[0.5, 1.0], [2.0]]),
        (["Crime|Drama", "Horror", ""], [["Crime", "Drama"], ["Horror"], []]),
        (["Crime", "1"], ["Crime", "1"]),
        ([1, 2], [1, 2]),
    ],
    ids=["integers", "numbers", "texts", "no lists", "no texts"],
)
def test_cells_of_csv_with_a_separator_are_lists(cells: list[Any], expected: list[Any]) -> None:
    assert csv_lists(cells) == expected

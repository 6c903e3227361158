from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from export.explain.boxes import BOXES_MAX, grouped, table_box
from export.explain.drawing import DrawnTable
from tests.export.explain.rankers import drawn

LONG = "a_table_whose_name_has_more_than_forty_letters"


def tables(*names: str) -> list[DrawnTable]:
    return [DrawnTable(name, 10, 4, "float32", 160, (), "model/table") for name in names]


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (("users",), "users"),
        (("users", "movies"), "users, movies"),
        ((LONG,), LONG),
        ((LONG, "users"), "2 tables"),
        (("t" * 19, "u" * 19), f"{'t' * 19}, {'u' * 19}"),  # forty letters
        (("t" * 19, "u" * 20), "2 tables"),
    ],
)
def test_box_of_several_tables_names_them_as_long_as_that_is_short(
    names: tuple[str, ...], title: str
) -> None:
    assert table_box(tables(*names), 1000).title == title


@pytest.mark.parametrize(
    ("tables", "sizes"),
    [
        (BOXES_MAX, [1] * BOXES_MAX),
        # Apart: the tables of contexts, those of candidates, and one whose feature has a default.
        (BOXES_MAX + 1, [11, 5, 1]),
    ],
)
def test_tables_whose_readers_are_alike_share_a_box_where_there_are_many(
    tables: int, sizes: list[int]
) -> None:
    groups = grouped(drawn(tables, tables, default=0))
    assert sorted((len(group.tables) for group in groups if group.tables), reverse=True) == sizes


@pytest.mark.parametrize(
    ("changes", "apart"),
    [
        ({"kind": "bag, mean"}, 1),
        ({"rule": "vocabulary"}, 1),
        ({"unknown": "row 0"}, 1),
        ({"taken_by": ("ranking/head",)}, 1),
        ({"ids": "hash into 7 buckets"}, 0),
        ({"name": "f99", "inputs": ("other",)}, 0),
    ],
)
def test_table_whose_reader_differs_has_a_box_of_its_own(
    changes: dict[str, Any], apart: int
) -> None:
    drawing = drawn(BOXES_MAX + 1, BOXES_MAX + 1)
    features = tuple(
        replace(each, **changes) if each.name == "f1" else each for each in drawing.features
    )
    groups = grouped(replace(drawing, features=features))
    held = [[table.name for table in group.tables] for group in groups if group.tables]
    assert len(held) == 2 + apart
    assert held.count(["t1"]) == apart


def test_numbers_are_apart_where_they_are_rows_below_a_limit() -> None:
    drawing = drawn(1, 1)
    kinds = ["numbers [3]", "number", "rows below 24", "rows below 7"]
    (number, *_) = [each for each in drawing.features if not each.table]
    features = tuple(
        replace(number, name=f"n{at}", kind=kind, default=False) for at, kind in enumerate(kinds)
    )
    (group,) = grouped(replace(drawing, tables=(), features=features))
    assert [[each.name for each in alike] for alike in group.readers] == [
        ["n0", "n1"],
        ["n2", "n3"],
    ]

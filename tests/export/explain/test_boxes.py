from __future__ import annotations

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

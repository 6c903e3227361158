"""A drawing as lines that a terminal can show."""

from __future__ import annotations

from dataclasses import replace

from export.explain.drawing import Drawing, FeatureNode, PartNode, TableNode, TowerNode
from export.explain.text import explain_text

USERS = TableNode("users", 10, 4, "float32", 160, ("user",), "params.users")
USER = FeatureNode(
    "user", ("user",), "context", "single", "users", "", "the id is the row", "zeros", False, ()
)
WHOLE = PartNode("rank", "", ("user",), (), ("score",))
RANK = TowerNode("rank", "ranking", ("score",), "score", "", (WHOLE,), ("LiteRT f32",), 2048)
DRAWING = Drawing("movies 1", "bundle", (USER,), (USERS,), (RANK,), (), ())


def lines(drawing: Drawing) -> list[str]:
    """Returns the lines behind the heading and the totals."""
    return explain_text(drawing).partition("\n\n")[2].splitlines()


def test_tower_without_formula_and_parts_is_told_by_its_result() -> None:
    assert lines(DRAWING) == [
        "features -> tables",
        "  users  10 rows x 4 float32; 160 B",
        "    from params.users",
        "    <- user  context, single; the id is the row; unknown: zeros",
        "",
        "towers -> outputs",
        "  rank  ranking tower, 2.0 KiB of weights -> score",
        "    runs as LiteRT f32",
        "    takes user",
    ]


def test_source_is_told_of_one_table_that_has_another_name_than_its_variable() -> None:
    same_name = replace(USERS, source="users")
    assert "    from users" not in lines(replace(DRAWING, tables=(same_name,)))
    # Seventeen tables that no feature reads are one box.
    unread = tuple(replace(USERS, name=f"t{number}") for number in range(17))
    output = lines(replace(DRAWING, tables=unread, features=()))
    assert not any("from" in line for line in output)


def test_drawing_without_towers_has_no_heading_of_them() -> None:
    user = replace(USER, taken_by=("rank/a", "rank/b"))
    assert lines(replace(DRAWING, towers=(), features=(user,))) == [
        "features -> tables",
        "  users  10 rows x 4 float32; 160 B",
        "    from params.users",
        "    <- user  context, single; the id is the row; unknown: zeros",
        "       => rank/a, rank/b",
    ]


def test_lines_longer_than_80_letters_go_on_further_in() -> None:
    word = "x" * 38
    drawing = replace(DRAWING, stays=(f"{word} {word}", f"{word} {word} y"), stores=("z",))
    assert lines(drawing)[-6:] == [
        f"  {word} {word}",
        f"  {word} {word}",
        "     y",
        "",
        "stores",
        "  z",
    ]

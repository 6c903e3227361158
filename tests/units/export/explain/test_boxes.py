from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from export.explain.boxes import (
    BOXES_MAX,
    feature_box,
    grouped,
    output_box,
    table_box,
    tower_box,
)
from export.explain.drawing import FeatureNode, PartNode, TableNode, TowerNode
from tests.units.export.explain.rankers import drawn

LONG = "a_table_whose_name_has_more_than_forty_letters"


def tables(*names: str) -> list[TableNode]:
    return [TableNode(name, 10, 4, "float32", 160, (), "model/table") for name in names]


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
        replace(feature, **changes) if feature.name == "f1" else feature
        for feature in drawing.features
    )
    groups = grouped(replace(drawing, features=features))
    table_names = [[table.name for table in group.tables] for group in groups if group.tables]
    assert len(table_names) == 2 + apart
    assert table_names.count(["t1"]) == apart


def test_numbers_are_apart_where_they_are_rows_below_a_limit() -> None:
    drawing = drawn(1, 1)
    kinds = ["numbers [3]", "number", "rows below 24", "rows below 7"]
    (number, *_) = [feature for feature in drawing.features if not feature.table]
    features = tuple(
        replace(number, name=f"n{index}", kind=kind, default=False)
        for index, kind in enumerate(kinds)
    )
    (group,) = grouped(replace(drawing, tables=(), features=features))
    assert [[feature.name for feature in alike] for alike in group.readers] == [
        ["n0", "n1"],
        ["n2", "n3"],
    ]


def feature(name: str, **changes: Any) -> FeatureNode:
    node = FeatureNode(
        name, (name,), "context", "single", "users", "hash", "hash mod 9", "zeros", False, ()
    )
    return replace(node, **changes)


def test_box_of_features_tells_what_all_of_them_are() -> None:
    box = feature_box([feature("a"), feature("b@users")])
    assert (box.look, box.title, box.hint) == ("context", "a, b", "a\nb")
    assert box.lines == ["context, single", "hash mod 9", "unknown: zeros"]


def test_box_of_features_that_differ_tells_each_kind_of_rule_and_not_the_rules() -> None:
    box = feature_box([feature("a"), feature("b", ids="hash mod 8", rule="other")])
    assert box.lines == ["context, single", "hash, other", "unknown: zeros"]


@pytest.mark.parametrize(
    ("defaults", "expected_text"),
    [
        ([False, False], []),
        ([True, False], ["1 may be left out"]),
        ([True, True], ["may be left out"]),
    ],
)
def test_box_of_features_tells_how_many_may_be_left_out(
    defaults: list[bool], expected_text: list[str]
) -> None:
    features = [feature(f"f{index}", default=default) for index, default in enumerate(defaults)]
    assert feature_box(features).lines[3:] == expected_text


@pytest.mark.parametrize(
    ("kinds", "expected_text"),
    [
        (["k0", "k0"], "context, k0"),
        (["k0", "k1", "k2"], "context, k0, k1, k2"),
        (["k0", "k1", "k2", "k3"], "context, k0, k1 and others"),
    ],
)
def test_box_of_features_names_up_to_three_kinds(kinds: list[str], expected_text: str) -> None:
    features = [feature(f"f{index}", kind=kind) for index, kind in enumerate(kinds)]
    assert feature_box(features).lines[0] == expected_text


def test_box_of_many_numbers_names_the_first_four_and_no_rule() -> None:
    names = [f"{'n' * 10}{index}" for index in range(6)]
    box = feature_box([feature(name, table="", kind="float32") for name in names])
    assert box.title == "6 inputs"
    assert box.lines == [f"{', '.join(names[:4])} and 2 more", "context, float32"]
    assert box.hint == "\n".join(names)


def test_box_of_tables_tells_rows_dims_dtypes_and_bytes_of_all() -> None:
    users = TableNode("users", 1000, 8, "float32", 32_000, (), "users")
    genres = TableNode("genres", 20, 4, "int8", 160, (), "genres")
    tags = TableNode("tags", 5, 16, "float32", 320, (), "tags")
    box = table_box([users, genres, tags], 64_960)
    assert box.title == "users, genres, tags"
    assert box.lines == ["1,025 rows x 4 to 16 float32, int8", "31.7 KiB"]
    assert box.share == 0.5
    assert table_box([genres], 0).lines == ["20 rows x 4 int8", "160 B"]
    assert table_box([genres], 0).share == 0


TOWER = TowerNode(
    "rank",
    "ranking",
    ("score", "like"),
    "score",
    "",
    (
        PartNode("rank/user", "context", (), (), ()),
        PartNode("rank/head", "candidate", (), (), ()),
    ),
    ("LiteRT f32", "LiteRT int8"),
    2048,
)


def test_box_of_a_tower_tells_its_last_form_and_how_often_its_parts_run() -> None:
    box = tower_box(TOWER)
    assert (box.look, box.title) == ("tower", "rank")
    assert box.lines == ["ranking tower, 2.0 KiB of weights", "runs as LiteRT int8"]
    assert box.parts == ["user · once per context", "head · once per candidate"]
    assert box.hint == "rank\nLiteRT f32\nLiteRT int8"


def test_box_of_a_tower_that_is_not_split_has_no_parts() -> None:
    whole = replace(TOWER, parts=(PartNode("rank", "", (), (), ()),), formula="score * like")
    box = tower_box(whole)
    assert box.parts == []
    assert box.lines[-1] == "ordered by score * like"


@pytest.mark.parametrize(
    ("name", "formula", "lines"),
    [("score", "", ["result"]), ("like", "", []), ("score", "score * like", [])],
)
def test_box_of_an_output_tells_the_result_unless_a_formula_orders(
    name: str, formula: str, lines: list[str]
) -> None:
    box = output_box(replace(TOWER, formula=formula), name)
    assert (box.look, box.title, box.lines) == ("output", name, lines)
    assert box.hint == f"rank: {name}"


def test_groups_are_ordered_by_the_share_of_candidates_that_read_them() -> None:
    """Tables that no feature reads come first, as those of contexts do, and numbers last."""
    drawing = drawn(6, 6)
    unread = tables("unread")
    groups = grouped(replace(drawing, tables=(*drawing.tables, *unread)))
    names = [[table.name for table in group.tables] for group in groups]
    assert names == [["t1"], ["t2"], ["t4"], ["t5"], ["unread"], ["t0"], ["t3"], []]

    readers = {"one": "c", "half": "c.", "most": "cc.", "few": "c..."}
    features = tuple(
        feature(f"{table}{position}", table=table, role="candidate" if letter == "c" else "context")
        for table, letters in readers.items()
        for position, letter in enumerate(letters)
    )
    shared = replace(drawing, tables=tuple(tables(*readers)), features=features)
    names = [[table.name for table in group.tables] for group in grouped(shared)]
    assert names == [["few"], ["half"], ["most"], ["one"]]


def test_tables_with_too_many_kinds_of_readers_are_told_apart_by_role_alone() -> None:
    count = BOXES_MAX + 1
    drawing = drawn(count, count)
    features = tuple(
        replace(feature, kind=f"kind {feature.name}", rule=f"rule {feature.name}")
        if feature.table
        else feature
        for feature in drawing.features
    )
    groups = grouped(replace(drawing, features=features))
    # Every third is of candidates.
    assert [len(group.tables) for group in groups] == [11, 6, 0]
    assert [len(group.readers) for group in groups] == [1, 1, 2]

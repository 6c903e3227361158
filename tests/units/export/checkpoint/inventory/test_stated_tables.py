"""The user's word on tables: names for variables, layouts, the `mod` strategy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import (
    STATED_NOTE,
    Inventory,
    StatedTable,
    Statements,
)
from export.checkpoint.layouts import Mod, SparseCore
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import StackedTable
from export.errors import NotConvertible
from tests.units.export.checkpoint.inventory import test_sparsecore
from tests.units.export.checkpoint.inventory.test_sparsecore import ITEMS, USERS
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    node,
    object_graph,
    write_bundle,
)

TABLE = np.zeros((9, 4), np.float32)
Cuts = Mapping[str, list[int]]
"""Rows of the slices of variables that are cut."""


def inventory(
    directory: Path,
    variables: Mapping[str, Any],
    stated: Statements | dict[str, str],
    cuts: Cuts | None = None,
) -> Inventory:
    boxes: dict[str, Any] = {}
    for key, sizes in (cuts or {}).items():
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        boxes[key] = [[(start, size), (0, -1)] for start, size in zip(starts, sizes, strict=True)]
    write_bundle(directory / "c", variables, boxes=boxes)
    return recognize(open_checkpoint(directory / "c"), stated)


def rejected(
    directory: Path,
    variables: Mapping[str, Any],
    stated: Statements | dict[str, str],
    cuts: Cuts | None = None,
) -> str:
    with pytest.raises(NotConvertible) as error:
        inventory(directory, variables, stated, cuts)
    return str(error.value)


def layout(**tables: StatedTable) -> Statements:
    return Statements(layouts=tables)


def stack(key: str, **changed: Any) -> StatedTable:
    fields: dict[str, Any] = {"rows": 4, "dim": 4, "cores": 3} | changed
    return StatedTable(key=key, kind="sparse_core", **fields)


def test_variable_has_one_name(tmp_path: Path) -> None:
    assert rejected(tmp_path, {"v": TABLE}, {"a": "v", "b": "v"}) == (
        "tables 'a' and 'b' are both stated to be 'v'; a variable is exported once, under one name"
    )
    checkpoint_inventory = inventory(tmp_path, {"v": TABLE, "w": TABLE}, {"a": "v", "b": "w"})
    assert [(table.name, table.key, table.origin) for table in checkpoint_inventory.tables] == [
        ("a", "v", "named"),
        ("b", "w", "named"),
    ]


def test_name_means_the_variable_of_that_key_before_the_table_of_that_name(tmp_path: Path) -> None:
    variables = {"items": TABLE, "layer/items/embeddings": TABLE}
    checkpoint_inventory = inventory(tmp_path, variables, {"mine": "items"})
    assert {table.name: table.key for table in checkpoint_inventory.tables} == {
        "mine": "items",
        "items": "layer/items/embeddings",
    }
    checkpoint_inventory = inventory(tmp_path, {"layer/items/embeddings": TABLE}, {"mine": "items"})
    assert {table.name: table.key for table in checkpoint_inventory.tables} == {
        "mine": "layer/items/embeddings"
    }


def test_table_that_is_rejected_cannot_be_named(tmp_path: Path) -> None:
    test_sparsecore.write(tmp_path, USERS | {"stack": "a"}, stacks=("a", "b"))
    with pytest.raises(NotConvertible) as error:
        test_sparsecore.opened(tmp_path, {"mine": "e/b"})
    assert str(error.value) == (
        f"table 'mine': 'e/b{SUFFIX}' cannot be exported: the SparseCore layouts do not say which "
        "tables this stack holds"
    )


def test_average_may_be_named_and_another_slot_variable_not(tmp_path: Path) -> None:
    variables = {"v": TABLE, "v/Adam": TABLE, "v/ExponentialMovingAverage": TABLE}
    checkpoint_inventory = inventory(tmp_path, variables, {"mine": "v/ExponentialMovingAverage"})
    assert [(table.name, table.key) for table in checkpoint_inventory.tables] == [
        ("mine", "v/ExponentialMovingAverage")
    ]
    assert rejected(tmp_path, variables, {"mine": "v/Adam"}) == (
        "table 'mine': 'v/Adam' is a slot variable (Adam of v), no table; name the variable that "
        "the optimizer trains"
    )


@pytest.mark.parametrize("shape", [(9,), (0, 4), (9, 0), (3, 3, 2)])
def test_variable_without_rows_and_columns_is_no_table(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    variables = {"v": np.zeros(shape, np.float32)}
    message = f"table 'mine': 'v' has the shape {list(shape)}, not [rows, dim]"
    assert rejected(tmp_path, variables, {"mine": "v"}) == message
    assert rejected(tmp_path, variables, layout(mine=StatedTable(key="v", kind="plain"))) == message


def test_variable_that_is_not_there_is_rejected_with_the_closest(tmp_path: Path) -> None:
    variables = {"kernel": TABLE, "user/embeddings": TABLE}
    for wanted, meant in (("kernal", "kernel"), ("usr", "user")):
        assert rejected(tmp_path, variables, {"mine": wanted}) == (
            f"table 'mine': checkpoint c has no variable {wanted!r}; did you mean {meant!r}?"
        )
    assert rejected(tmp_path, variables, {"mine": "zzz"}) == (
        "table 'mine': checkpoint c has no variable 'zzz'; name a variable with --table NAME=KEY "
        "(in a recipe: tables.NAME.key); those with the shape of a table: kernel [9, 4] float32"
    )


def test_named_table_in_slices_has_a_note_only_where_tf1_may_have_dealt_its_rows(
    tmp_path: Path,
) -> None:
    (table,) = inventory(tmp_path, {"v": TABLE}, {"mine": "v"}, {"v": [5, 4]}).tables
    assert table.note.startswith("saved by TF1 in slices, read as contiguous row ranges")
    (table,) = inventory(tmp_path, {"v": TABLE}, {"mine": "v"}).tables
    assert table.note == ""
    key = "v" + SUFFIX
    graph = object_graph(node({"v": 1}), node(key=key))
    (table,) = inventory(tmp_path, {key: TABLE, GRAPH: graph}, {"mine": "v"}, {key: [5, 4]}).tables
    assert (table.note, table.path) == ("", "v")


@pytest.mark.parametrize(
    ("kind", "stated"),
    [("plain", False), ("mod", True), ("sparse_core", True)],
)
def test_layout_is_a_statement_where_rows_come_in_another_order(
    tmp_path: Path, kind: str, stated: bool
) -> None:
    tables = {
        "plain": StatedTable(key="v", kind="plain", rows=5, dim=3),
        "mod": StatedTable(key="v", kind="mod", partitions=2),
        "sparse_core": stack("v"),
    }
    (table,) = inventory(tmp_path, {"v": TABLE}, layout(mine=tables[kind])).tables
    assert (table.name, table.origin, table.stated) == ("mine", "layout file", stated)
    assert table.note == (STATED_NOTE if stated else "")


def test_recorded_layout_is_no_statement(tmp_path: Path) -> None:
    recorded = StackedTable("mine", "v", rows=4, dim=4, layout=SparseCore(3, 3, 0, 0))
    (table,) = inventory(tmp_path, {"v": TABLE}, Statements(layouts={"mine": recorded})).tables
    assert (table.origin, table.stated, table.note) == ("embedding spec", False, "")


def test_plain_layout_of_a_stack_contradicts_the_layout_that_its_checkpoint_records(
    tmp_path: Path,
) -> None:
    test_sparsecore.write(tmp_path, USERS, ITEMS)
    plain = {"all": StatedTable(key="e/it_ems_users", kind="plain")}
    with pytest.raises(NotConvertible) as failure:
        recognize(open_checkpoint(tmp_path / "ckpt-1"), Statements(layouts=plain))
    assert "layout file: table 'all' (" in str(failure.value)
    assert "contradicts what the checkpoint records of" in str(failure.value)


def test_stack_of_a_layout_file_takes_its_cores_and_rows_from_the_variable(tmp_path: Path) -> None:
    (table,) = inventory(tmp_path, {"v": TABLE}, layout(mine=stack("v"))).tables
    assert table.layout == SparseCore(cores=3, core_rows=3, offset=0, rotation=0)
    assert (table.rows, table.dim, table.stored, table.bytes) == (4, 4, (9, 4), 64)
    stated = stack("v", core_rows=3, offset=1, rotation=2)
    (table,) = inventory(tmp_path, {"v": TABLE}, layout(mine=stated)).tables
    assert table.layout == SparseCore(cores=3, core_rows=3, offset=1, rotation=2)


@pytest.mark.parametrize(
    ("partitions", "cut", "starts"),
    [
        (4, [9], (0, 3, 5, 7)),
        (3, [3, 3, 3], (0, 3, 6)),
        (9, [9], tuple(range(9))),
        (12, [9], tuple(range(9))),
        (None, [5, 4], (0, 5)),
        (None, [3, 2, 2, 2], (0, 3, 5, 7)),
    ],
)
def test_mod_layout_deals_rows_to_partitions(
    tmp_path: Path, partitions: int | None, cut: list[int], starts: tuple[int, ...]
) -> None:
    stated = layout(mine=StatedTable(key="v", kind="mod", partitions=partitions))
    (table,) = inventory(tmp_path, {"v": TABLE}, stated, {"v": cut}).tables
    assert table.layout == Mod(starts)
    if partitions is None:
        mod = Statements({"mine": "v"}, mod=("mine",))
        (table,) = inventory(tmp_path, {"v": TABLE}, mod, {"v": cut}).tables
        assert (table.layout, table.stated, table.note) == (Mod(starts), True, STATED_NOTE)


@pytest.mark.parametrize(("partitions", "cut"), [(3, [5, 4]), (2, [3, 3, 3])])
def test_partitions_that_tf1_did_not_save_are_rejected(
    tmp_path: Path, partitions: int, cut: list[int]
) -> None:
    stated = layout(mine=StatedTable(key="v", kind="mod", partitions=partitions))
    assert rejected(tmp_path, {"v": TABLE}, stated, {"v": cut}) == (
        f"layout file: table 'mine' is stated to have {partitions} partitions, and TF1 saved 'v' "
        f"in {len(cut)}; leave `partitions` out"
    )


def test_slices_of_an_object_graph_are_no_partitions(tmp_path: Path) -> None:
    key = "v" + SUFFIX
    graph = object_graph(node({"v": 1}), node(key=key))
    stated = layout(mine=StatedTable(key="v", kind="mod", partitions=2))
    variables = {key: TABLE, GRAPH: graph}
    (table,) = inventory(tmp_path, variables, stated, {key: [3, 3, 3]}).tables
    assert table.layout == Mod((0, 5))


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ([9], "1 row range (9 rows)"),
        ([4, 5], "2 row ranges (4, 5 rows)"),
        ([4, 3, 2], "3 row ranges (4, 3, 2 rows)"),
        ([2, 1, 1, 1, 1, 1, 2], "7 row ranges (2, 1, 1, 1, 1, 1, 2 rows)"),
    ],
)
def test_slices_that_mod_does_not_make_are_rejected(
    tmp_path: Path, cut: list[int], message: str
) -> None:
    stated = Statements({"mine": "v"}, mod=("mine",))
    assert rejected(tmp_path, {"v": TABLE}, stated, {"v": cut}) == (
        f"table 'mine': 'v' lies in {message}; the `mod` strategy makes two or more, of which the "
        "first ones may have one row more than the others: it was not spread so"
    )


@pytest.mark.parametrize(("count", "expected"), [(8, ""), (9, ", ...")])
def test_error_of_slices_lists_eight_of_them(tmp_path: Path, count: int, expected: str) -> None:
    cut = [1] * (count - 1) + [3]
    variables = {"v": np.zeros((sum(cut), 4), np.float32)}
    message = rejected(tmp_path, variables, Statements({"mine": "v"}, mod=("mine",)), {"v": cut})
    rows = ", ".join(map(str, cut[:8]))
    assert f"in {count} row ranges ({rows}{expected} rows);" in message


def test_mod_of_a_table_that_is_cut_in_its_columns_is_rejected(tmp_path: Path) -> None:
    cut = {"mine": StatedTable(key="v", kind="plain", dim=3)}
    stated = Statements(layouts=cut, mod=("mine",))
    assert rejected(tmp_path, {"v": TABLE}, stated, {"v": [5, 4]}) == (
        "--mod mine: the table has the layout plain, which is not TF1's"
    )


@pytest.mark.parametrize("kind", ["plain", "mod"])
def test_variable_holds_several_tables_only_as_a_stack(tmp_path: Path, kind: Any) -> None:
    stated = layout(b=StatedTable(key="v", kind=kind), a=StatedTable(key="v", kind="plain"))
    assert rejected(tmp_path, {"v": TABLE}, stated, {"v": [5, 4]}) == (
        "layout file: tables a, b have one variable, 'v'; only the tables of a SparseCore stack "
        "share one"
    )
    stated = layout(b=stack("v", rows=6), a=stack("v", rows=3, offset=2))
    checkpoint_inventory = inventory(tmp_path, {"v": TABLE}, stated)
    assert [table.name for table in checkpoint_inventory.tables] == ["a", "b"]


def test_layout_that_a_variable_cannot_hold_is_rejected(tmp_path: Path) -> None:
    stated = layout(mine=StatedTable(key="v", kind="plain", rows=10))
    assert rejected(tmp_path, {"v": TABLE}, stated) == (
        "layout file: table 'mine' has the shape [10, 4], its variable 'v' [9, 4]; correct it"
    )
    assert rejected(tmp_path, {"v": TABLE}, layout(mine=stack("v", rotation=3))) == (
        "layout file: table 'mine' is rotated by 3; expected was 0 to 2, less than its cores ('v' "
        "[9, 4]); correct it"
    )


@pytest.mark.parametrize(
    ("keys", "meant"),
    [
        (["a/users_items/table", "a/users_items/other"], "a/users_items/table"),
        (["a/users_items", "a/users_items/other"], "a/users_items"),
        (["a.users_items.0"], "a.users_items.0"),
        (["var:users_items:table"], "var:users_items:table"),
        (["v", "a/users_items_2/table", "my_users_items"], None),
    ],
)
def test_stack_is_the_variable_with_its_name_in_the_key(
    tmp_path: Path, keys: list[str], meant: str | None
) -> None:
    variables = dict.fromkeys(keys, TABLE) | {"b/users_items/bias": TABLE[0]}
    stated = layout(mine=stack("users_items"))
    if meant is None:
        assert "has no variable 'users_items'" in rejected(tmp_path, variables, stated)
    else:
        (table,) = inventory(tmp_path, variables, stated).tables
        assert table.key == meant


def test_stack_is_no_slot_variable(tmp_path: Path) -> None:
    variables = {"v": TABLE, "v/Adam": TABLE}
    assert "has no variable 'Adam'" in rejected(tmp_path, variables, layout(mine=stack("Adam")))


@pytest.mark.parametrize("count", [2, 9])
def test_stack_of_several_variables_lists_eight_of_them(tmp_path: Path, count: int) -> None:
    keys = [f"a/users_items/{number}" for number in range(count)]
    metadata = rejected(tmp_path, dict.fromkeys(keys, TABLE), layout(mine=stack("users_items")))
    assert metadata == (
        f"table 'mine': several variables are called 'users_items': {', '.join(keys[:8])}; write "
        "the layout file by hand, with each table's key (docs/reference/checkpoints.md)"
    )


def test_name_alone_means_no_stack(tmp_path: Path) -> None:
    message = rejected(tmp_path, {"a/users_items/table": TABLE}, {"mine": "users_items"})
    assert message.startswith("table 'mine': checkpoint c has no variable 'users_items'; ")

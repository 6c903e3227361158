"""SparseCore stacks: layouts decoded by hand, held to the stacks that they speak of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.inventory.findings import table_spec
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.sparsecore import (
    CORES_MAX,
    LayoutContradiction,
    check_stack,
    parse_table_layouts,
)
from export.checkpoint.inventory.specs import Inventory, TableSpec
from export.checkpoint.layouts import Plain, SparseCore
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import Entry, StackedTable
from export.errors import CheckpointError, NotConvertible
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    field,
    node,
    object_graph,
    varint,
    write_bundle,
)

CORES = 4
CORE_ROWS = 32
PADDED_DIM = 8
STACK = np.arange(CORES * CORE_ROWS * PADDED_DIM, dtype=np.float32).reshape(-1, PADDED_DIM)
USERS: dict[str, Any] = {
    "name": "users",
    "shape": (50, 5),
    "padded": (64, 8),
    "offset": 0,
    "rotation": 0,
}
ITEMS: dict[str, Any] = {
    "name": "it_ems",
    "shape": (30, 7),
    "padded": (32, 8),
    "offset": 16,
    "rotation": 2,
}


def table_layout(**fields: Any) -> bytes:
    """One SparseCoreTableLayout, by field numbers; zeros are left out, as protobuf does."""
    fields = {
        "stack": "it_ems_users",
        "cores": CORES,
        "partitions": 2,
        "core_rows": CORE_ROWS,
        **fields,
    }
    numbers = {3: "cores", 4: "partitions", 5: "core_rows", 8: "offset", 9: "rotation"}
    packed = {
        number: b"".join(varint(size) for size in fields[name])
        for number, name in ((6, "shape"), (7, "padded"))
    }
    plain = b"".join(
        field(number, fields[name]) for number, name in numbers.items() if fields[name]
    )
    shapes = b"".join(field(number, sizes) for number, sizes in packed.items())
    return field(1, field(1, fields["name"]) + field(2, fields["stack"]) + plain + shapes)


def write(
    directory: Path, *tables: dict[str, Any], stacks: tuple[str, ...] = ("it_ems_users",)
) -> None:
    """An embedding object with stacks of one shape, each with one slot variable, and the layouts of
    its tables.
    """
    keys = {stack: (f"e/{stack}{SUFFIX}", f"e/{stack}.Sacc{SUFFIX}") for stack in stacks}
    nodes = [
        node({"e": 1}),
        node({"_variables": 2, "_sparse_core_table_layouts": 3}),
        b"",
        node(key="e/layouts"),
    ]
    contents = {}
    for stack in stacks:
        contents[stack] = len(nodes)
        nodes += [node({"parameters": len(nodes) + 1, "accumulators": len(nodes) + 2})]
        nodes += [node(key=key) for key in keys[stack]]
    nodes[2] = node(contents)
    variables = {key: STACK for pair in keys.values() for key in pair}
    layouts = b"".join(table_layout(**table) for table in tables)
    write_bundle(
        directory / "ckpt-1", {**variables, "e/layouts": layouts, GRAPH: object_graph(*nodes)}
    )


def opened(directory: Path, named: dict[str, str] | None = None) -> Inventory:
    return recognize(open_checkpoint(directory), named)


def test_recognize_table_of_a_stack_is_renamed_by_its_name_or_by_the_stack(tmp_path: Path) -> None:
    write(tmp_path, USERS, ITEMS)
    assert [table.name for table in opened(tmp_path, {"people": "users"}).tables] == [
        "it_ems",
        "people",
    ]
    assert [table.name for table in opened(tmp_path, {"users": "e/it_ems_users"}).tables] == [
        "it_ems",
        "users",
    ]
    with pytest.raises(NotConvertible, match=r"stack of several tables.*it_ems, users"):
        opened(tmp_path, {"people": "e/it_ems_users"})


def test_recognize_of_a_stack_without_a_layout_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, USERS | {"stack": "a"}, stacks=("a", "b"))
    assert [rejected.name for rejected in opened(tmp_path).rejected] == ["b"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"cores": 8}, r"8 cores of 32 rows each, which makes 256 rows; its variable has 128"),
        (
            {"cores": 1 << 40, "core_rows": 1, "padded": (1 << 40, 8)},
            "expected were 1 to 1048576 cores",
        ),
        ({"core_rows": (1 << 64) - 32}, "of -32 rows each; expected were 1 to 1048576 cores"),
        ({"shape": (0, 5)}, r"shape \[0, 5\]; expected were 1 row or more and 1 to 8 columns"),
        ({"shape": (50, 9)}, r"shape \[50, 9\]"),
        ({"rotation": 4}, "rotated by 4; expected was 0 to 3"),
        ({"offset": 20}, "rows 20 to 33 of each core's shard, which has 32"),
        ({"offset": 12}, "both hold row 16"),
        ({"name": "it_ems"}, "'it_ems' twice"),
        ({"stack": "users"}, r"'users', which it does not hold \(stacks: it_ems_users\)"),
        ({"name": ""}, "both need a name"),
        ({"shape": (50,)}, r"not \[rows, columns\]"),
    ],
)
def test_recognize_layouts_that_contradict_the_stack_are_rejected(
    tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    write(tmp_path, USERS | change, ITEMS)
    with pytest.raises(CheckpointError, match=what):
        opened(tmp_path)


def table(
    name: str = "t",
    *,
    rows: int = 8,
    dim: int = 3,
    stored: tuple[int, int] = (32, 4),
    layout: SparseCore | Plain | None = None,
    **changed: int,
) -> TableSpec:
    """Returns a table of 8 rows on 4 cores of 8 rows each, or with other numbers."""
    numbers = {"cores": 4, "core_rows": 8, "offset": 0, "rotation": 0} | changed
    entry = Entry("v", "float32", stored, ())
    return table_spec(
        name, entry, "named", "", rows=rows, dim=dim, layout=layout or SparseCore(**numbers)
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (table(), ""),
        (table(rows=32, dim=4), ""),
        (table(rows=1, dim=1, rotation=3, offset=7), ""),
        (table(offset=6), ""),
        (table(rows=99, layout=Plain()), ""),
        (table(cores=1, core_rows=32), ""),
        (table(cores=32, core_rows=1, rotation=31), ""),
        (
            table(cores=CORES_MAX, core_rows=1, stored=(CORES_MAX, 4), rotation=CORES_MAX - 1),
            "",
        ),
        (
            table(cores=CORES_MAX + 1, core_rows=1, stored=(CORES_MAX + 1, 4)),
            "table 't' lies on 1048577 cores of 1 rows each; expected were 1 to 1048576 cores and "
            "1 row or more",
        ),
        (
            table(cores=0),
            "table 't' lies on 0 cores of 8 rows each; expected were 1 to 1048576 cores and 1 row "
            "or more",
        ),
        (
            table(core_rows=0),
            "table 't' lies on 4 cores of 0 rows each; expected were 1 to 1048576 cores and 1 row "
            "or more",
        ),
        (
            table(stored=(33, 4)),
            "table 't' lies on 4 cores of 8 rows each, which makes 32 rows; its variable has 33",
        ),
        (
            table(rows=0),
            "table 't' has the shape [0, 3]; expected were 1 row or more and 1 to 4 columns",
        ),
        (
            table(dim=0),
            "table 't' has the shape [8, 0]; expected were 1 row or more and 1 to 4 columns",
        ),
        (
            table(dim=5),
            "table 't' has the shape [8, 5]; expected were 1 row or more and 1 to 4 columns",
        ),
        (
            table(rotation=-1),
            "table 't' is rotated by -1; expected was 0 to 3, less than its cores",
        ),
        (table(rotation=4), "table 't' is rotated by 4; expected was 0 to 3, less than its cores"),
        (table(offset=-1), "table 't' takes rows -1 to 1 of each core's shard, which has 8"),
        (table(offset=7), "table 't' takes rows 7 to 9 of each core's shard, which has 8"),
        (table(rows=33), "table 't' takes rows 0 to 9 of each core's shard, which has 8"),
    ],
)
def test_table_fits_its_variable(spec: TableSpec, message: str) -> None:
    if not message:
        check_stack([spec])
        return
    with pytest.raises(LayoutContradiction) as error:
        check_stack([spec])
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (table("u", offset=2), ""),
        (table("u", offset=1), "tables 't' and 'u' overlap: both hold row 1 of each core's shard"),
        (table("u"), "tables 't' and 'u' overlap: both hold row 0 of each core's shard"),
        (table("a"), "tables 'a' and 't' overlap: both hold row 0 of each core's shard"),
        (
            table("u", cores=8, core_rows=4, offset=2),
            "tables 't' and 'u' of one stack have 4 and 8 cores",
        ),
        (table("u", rows=99, layout=Plain()), ""),
    ],
)
def test_tables_of_a_stack_lie_side_by_side(second: TableSpec, message: str) -> None:
    if not message:
        check_stack([second, table()])
        return
    with pytest.raises(LayoutContradiction) as error:
        check_stack([second, table()])
    assert str(error.value) == message


def test_stacked_tables_are_decoded() -> None:
    users, items = parse_table_layouts(table_layout(**USERS) + table_layout(**ITEMS))
    assert users == StackedTable("users", "it_ems_users", 50, 5, SparseCore(4, 32, 0, 0))
    assert items == StackedTable("it_ems", "it_ems_users", 30, 7, SparseCore(4, 32, 16, 2))


@pytest.mark.parametrize(
    ("change", "metadata"),
    [
        ({"name": ""}, "a layout of table '' in stack 'it_ems_users'; both need a name"),
        ({"stack": ""}, "a layout of table 'users' in stack ''; both need a name"),
        ({"shape": (5,)}, "table 'users' has the shape (5,), not [rows, columns]"),
        (
            {"shape": (1, 2, 3, 4, 5)},
            "table 'users' has the shape (1, 2, 3, 4), not [rows, columns]",
        ),
    ],
)
def test_saved_layout_without_names_or_shape_is_malformed(
    change: dict[str, Any], metadata: str
) -> None:
    with pytest.raises(Malformed) as error:
        parse_table_layouts(table_layout(**USERS | change))
    assert str(error.value) == metadata


@pytest.mark.parametrize("change", [{"offset": 13}, {"offset": 24}, {"shape": (30, 8)}])
def test_tables_may_lie_side_by_side_and_fill_their_stack(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    write(tmp_path, USERS, ITEMS | change)
    assert [table.name for table in opened(tmp_path).tables] == ["it_ems", "users"]

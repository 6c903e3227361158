"""The layouts that a SparseCore embedding object saves beside its stacks: which table lies where in
which stack.

They are checked against the stacks: a layout that contradicts a variable would be read as wrong
rows.

Source: TensorFlow 2.20, tensorflow/core/tpu/kernels/sparse_core_layout.proto and
python/tpu/tpu_embedding_v3.py; `export.checkpoint.layouts` computes the rows of a layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from bundle.arithmetic import ceil_div
from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.protos import decode
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layouts import SparseCore
from export.checkpoint.variables import StackedTable

CORES_MAX = 1 << 20
"""The maximum number of cores of a layout, far above that of any machine: a file that states more
is damaged.
"""


class LayoutContradiction(Exception):
    """A layout that no table of the variable can have."""


def parse_table_layouts(data: bytes) -> tuple[StackedTable, ...]:
    """Decodes SparseCoreTableLayouts: the tables of all stacks.

    Raises:
      Malformed: The bytes are not such a message, or they name a table twice.
    """
    tables: dict[str, StackedTable] = {}
    for table in map(_stacked_table, decode("SparseCoreTableLayouts", data).tables):
        if tables.setdefault(table.name, table) is not table:
            raise Malformed(f"they name table {table.name!r} twice")
    return tuple(tables.values())


def check_stack(tables: Iterable[TableSpec]) -> None:
    """Checks that all SparseCore tables of a variable fit it and that no two lie in one row.

    Raises:
      LayoutContradiction: A table does not fit, or two tables share a row; the error names the
        table, the value and what was expected.
    """
    table_layouts = [
        (table, table.layout) for table in tables if isinstance(table.layout, SparseCore)
    ]
    # Each table is checked alone first: below, its rows are divided by its cores, which may be 0.
    for table, layout in table_layouts:
        _check_fits(table, layout)
    # Each core has the same rows of every table, so that neighbors by offset are compared.
    table_layouts.sort(key=lambda pair: (pair[1].offset, pair[0].name))
    for (first_table, first_layout), (second_table, second_layout) in pairwise(table_layouts):
        if (first_layout.cores, first_layout.core_rows) != (
            second_layout.cores,
            second_layout.core_rows,
        ):
            raise LayoutContradiction(
                f"tables {first_table.name!r} and {second_table.name!r} of one stack have "
                f"{first_layout.cores} and {second_layout.cores} cores"
            )
        if second_layout.offset < first_layout.offset + _core_rows(first_table, first_layout):
            raise LayoutContradiction(
                f"tables {first_table.name!r} and {second_table.name!r} overlap: both hold row "
                f"{second_layout.offset} of each core's shard"
            )


def _check_fits(table: TableSpec, layout: SparseCore) -> None:
    name = table.name
    stored = table.stored
    if not 1 <= layout.cores <= CORES_MAX or layout.core_rows < 1:
        raise LayoutContradiction(
            f"table {name!r} lies on {layout.cores} cores of {layout.core_rows} rows each; "
            f"expected were 1 to {CORES_MAX} cores and 1 row or more"
        )
    if layout.cores * layout.core_rows != stored[0]:
        raise LayoutContradiction(
            f"table {name!r} lies on {layout.cores} cores of {layout.core_rows} rows each, which "
            f"makes {layout.cores * layout.core_rows} rows; its variable has {stored[0]}"
        )
    # The columns of a stack may be padded: a table can be narrower, but not wider.
    if table.rows < 1 or not 1 <= table.dim <= stored[1]:
        raise LayoutContradiction(
            f"table {name!r} has the shape [{table.rows}, {table.dim}]; expected were 1 row or "
            f"more and 1 to {stored[1]} columns"
        )
    if not 0 <= layout.rotation < layout.cores:
        raise LayoutContradiction(
            f"table {name!r} is rotated by {layout.rotation}; expected was 0 to "
            f"{layout.cores - 1}, less than its cores"
        )
    if layout.offset < 0 or layout.offset + _core_rows(table, layout) > layout.core_rows:
        raise LayoutContradiction(
            f"table {name!r} takes rows {layout.offset} to "
            f"{layout.offset + _core_rows(table, layout)} of each core's shard, which has "
            f"{layout.core_rows}"
        )


def _core_rows(table: TableSpec, layout: SparseCore) -> int:
    """Returns the maximum number of rows of a table that one core holds."""
    return ceil_div(table.rows, layout.cores)


def _stacked_table(proto: Any) -> StackedTable:
    name = proto.table_name
    stack = proto.stacked_table_name
    shape = tuple(proto.unsharded_shape)
    if not name or not stack:
        raise Malformed(f"a layout of table {name!r} in stack {stack!r}; both need a name")
    if len(shape) != 2:
        raise Malformed(f"table {name!r} has the shape {shape[:4]}, not [rows, columns]")
    layout = SparseCore(
        cores=proto.num_sparse_cores,
        core_rows=proto.total_rows_per_sparse_core_shard,
        offset=proto.sparse_core_shard_row_offset,
        rotation=proto.sparse_core_shard_rotation,
    )
    return StackedTable(name, stack, *shape, layout)

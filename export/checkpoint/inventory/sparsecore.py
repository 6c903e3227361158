"""The layouts that a SparseCore embedding object saves beside its stacks: which table lies where in which stack.

Checked against the stacks: a layout that contradicts a variable would be read as wrong rows.

Source: TensorFlow 2.20, tensorflow/core/tpu/kernels/sparse_core_layout.proto and python/tpu/tpu_embedding_v3.py; which
rows a layout means: `export.checkpoint.layouts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.protos import decode
from export.checkpoint.layouts import SparseCore

CORES_MAX = 1 << 20


class LayoutContradiction(Exception):
    """A layout that no table of the variable can have."""


class StackedTable(NamedTuple):
    """One table of a stack."""

    name: str
    rows: int
    dim: int
    layout: SparseCore


class SavedLayout(NamedTuple):
    """A SparseCoreTableLayout: a table, the name of its stack, and what else is there to be checked.

    Attributes:
      partitions: slices of the stack's variable, each with the shards of as many cores.
      padded: rows and columns of the table with its padding.
    """

    table: StackedTable
    stack: str
    partitions: int
    padded: tuple[int, int]


def parse_table_layouts(data: bytes) -> tuple[SavedLayout, ...]:
    """Decodes SparseCoreTableLayouts.

    Raises:
      Malformed: the bytes are no such message.
    """
    return tuple(map(_saved_layout, decode("SparseCoreTableLayouts", data).tables))


def check_saved(saved: SavedLayout, stored: tuple[int, int]) -> None:
    """Checks what only a saved layout tells, of a table that passed `check_stack`.

    Args:
      saved: of one table.
      stored: rows and columns of its stack's variable.
    Raises:
      LayoutContradiction: the padded shape or the partitions do not fit; tells table, value and expectation.
    """
    table, (padded_rows, padded_dim) = saved.table, saved.padded
    cores = table.layout.cores
    if saved.partitions < 1 or cores % saved.partitions:
        raise LayoutContradiction(
            f"table {table.name!r} has {saved.partitions} partitions, which do not divide its {cores} cores"
        )
    if padded_dim != stored[1]:
        raise LayoutContradiction(f"table {table.name!r} has {padded_dim} padded columns, its stack has {stored[1]}")
    if padded_rows < table.rows or padded_rows % cores or padded_rows // cores > table.layout.core_rows:
        raise LayoutContradiction(
            f"table {table.name!r} has {padded_rows} padded rows; expected were a multiple of its {cores} cores, from "
            f"its {table.rows} rows up to {cores * table.layout.core_rows}"
        )


def check_stack(tables: Sequence[StackedTable], stored: tuple[int, int]) -> None:
    """Checks that all tables of a stack fit its variable and that no two lie in one row.

    Args:
      tables: all that lie in the variable.
      stored: its rows and columns.
    Raises:
      LayoutContradiction: one does not, or two do; tells table, value and expectation.
    """
    for table in tables:
        _check_fits(table, stored)
    for before, after in pairwise(sorted(tables, key=lambda table: (table.layout.offset, table.name))):
        first = after.layout.offset
        if (before.layout.cores, before.layout.core_rows) != (after.layout.cores, after.layout.core_rows):
            raise LayoutContradiction(
                f"tables {before.name!r} and {after.name!r} of one stack have {before.layout.cores} and "
                f"{after.layout.cores} cores"
            )
        if first < before.layout.offset + _core_rows(before):
            raise LayoutContradiction(
                f"tables {before.name!r} and {after.name!r} overlap: both hold row {first} of each core's shard"
            )


def _check_fits(table: StackedTable, stored: tuple[int, int]) -> None:
    name, layout = table.name, table.layout
    if not 1 <= layout.cores <= CORES_MAX or layout.core_rows < 1:
        raise LayoutContradiction(
            f"table {name!r} lies on {layout.cores} cores of {layout.core_rows} rows each; expected were 1 to "
            f"{CORES_MAX} cores and 1 row or more"
        )
    if layout.cores * layout.core_rows != stored[0]:
        raise LayoutContradiction(
            f"table {name!r} lies on {layout.cores} cores of {layout.core_rows} rows each, which makes "
            f"{layout.cores * layout.core_rows} rows; its variable has {stored[0]}"
        )
    if table.rows < 1 or not 1 <= table.dim <= stored[1]:
        raise LayoutContradiction(
            f"table {name!r} has the shape [{table.rows}, {table.dim}]; expected were 1 row or more and 1 to "
            f"{stored[1]} columns"
        )
    if not 0 <= layout.rotation < layout.cores:
        raise LayoutContradiction(
            f"table {name!r} is rotated by {layout.rotation}; expected was 0 to {layout.cores - 1}, less than its cores"
        )
    if layout.offset < 0 or layout.offset + _core_rows(table) > layout.core_rows:
        raise LayoutContradiction(
            f"table {name!r} takes rows {layout.offset} to {layout.offset + _core_rows(table)} of each core's shard, "
            f"which has {layout.core_rows}"
        )


def _core_rows(table: StackedTable) -> int:
    """Returns the most rows of a table that one core holds."""
    return -(-table.rows // table.layout.cores)


def _saved_layout(proto: Any) -> SavedLayout:
    name, stack = proto.table_name, proto.stacked_table_name
    shape, padded = tuple(proto.unsharded_shape), tuple(proto.unsharded_padded_shape)
    if not name or not stack:
        raise Malformed(f"a layout of table {name!r} in stack {stack!r}; both need a name")
    if len(shape) != 2 or len(padded) != 2:
        raise Malformed(f"table {name!r} has the shapes {shape[:4]} and {padded[:4]}, not [rows, columns]")
    layout = SparseCore(
        cores=proto.num_sparse_cores,
        core_rows=proto.total_rows_per_sparse_core_shard,
        offset=proto.sparse_core_shard_row_offset,
        rotation=proto.sparse_core_shard_rotation,
    )
    return SavedLayout(StackedTable(name, *shape, layout), stack, proto.num_partitions, padded)

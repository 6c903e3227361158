"""Tables in the stacks of SparseCores, as jax-tpu-embedding lays them out on TPUs.

Tables of one padded width and one combiner are one stack. Each table is padded to a multiple of
eight rows on every SparseCore. Its row r is on SparseCore r + rotation, and the rotation grows by
the SparseCores of a device from table to table.

Source: jax-tpu-embedding 0.1.0, sparsecore/lib/nn/table_stacking.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEVICES = 2
"""Number of TPU devices for which the tables are laid out."""
CORES_PER_DEVICE = 4
"""Number of SparseCores of a device."""
CORES = DEVICES * CORES_PER_DEVICE
MULTIPLE = 8
"""Rows of a table on a SparseCore, and values in a row, are padded to a multiple of this."""


@dataclass(frozen=True)
class StackedTable:
    """A table in its stack.

    Attributes:
      name: The name of the table.
      rows: The number of its rows.
      dim: The width of its rows.
      padded_rows: The number of rows that the stack has for the table.
      offset: The position of its first row on each SparseCore.
      rotation: The SparseCore of its row 0.
    """

    name: str
    rows: int
    dim: int
    padded_rows: int
    offset: int
    rotation: int


@dataclass(frozen=True)
class Stack:
    """Tables that are one array."""

    tables: tuple[StackedTable, ...]

    @property
    def name(self) -> str:
        """The names of its tables, joined."""
        return "_".join(table.name for table in self.tables)

    @property
    def rows(self) -> int:
        """The number of rows of all tables, with their padding."""
        return sum(table.padded_rows for table in self.tables)

    @property
    def dim(self) -> int:
        """The number of values in a row, with the padding."""
        # All tables of a stack have the same padded width.
        return _padded(self.tables[0].dim, MULTIPLE)

    def laid_out(
        self, tables: Mapping[str, NDArray[np.float32]], padding: float = 0.0
    ) -> NDArray[np.float32]:
        """Returns the rows of all tables, [rows, dim], one SparseCore after the other."""
        cores = np.full((CORES, self.rows // CORES, self.dim), padding, np.float32)
        for table in self.tables:
            # Consecutive rows lie on consecutive SparseCores (mod sharding).
            rows = np.arange(table.rows)
            core = (rows + table.rotation) % CORES
            cores[core, table.offset + rows // CORES, : table.dim] = tables[table.name]
        return cores.reshape(self.rows, self.dim)


def stacks_of(specs: Mapping[str, Mapping[str, Any]]) -> list[Stack]:
    """Returns the stacks of the tables with these specifications."""
    # Tables of one padded width and one combiner are one stack.
    names_by_kind: dict[tuple[int, str], list[str]] = {}
    for name in sorted(specs):
        kind = (_padded(specs[name]["embedding_dim"], MULTIPLE), specs[name]["combiner"])
        names_by_kind.setdefault(kind, []).append(name)
    return [_stack([specs[name] for name in names]) for names in names_by_kind.values()]


def _stack(specs: Sequence[Mapping[str, Any]]) -> Stack:
    tables = []
    offset = 0
    for position, spec in enumerate(specs):
        padded_rows = _padded(spec["vocabulary_size"], MULTIPLE * CORES)
        tables.append(
            StackedTable(
                spec["name"],
                spec["vocabulary_size"],
                spec["embedding_dim"],
                padded_rows,
                offset,
                position * CORES_PER_DEVICE % CORES,
            )
        )
        offset += padded_rows // CORES
    return Stack(tuple(tables))


def layout(stacks: Sequence[Stack]) -> str:
    """Returns the EmbeddingSpecProto of stacks as text, as
    `embedding.create_proto_from_feature_specs` of jax-tpu-embedding returns it.
    """
    lines = []
    for stack in stacks:
        lines += [
            "stacked_table_specs {",
            f'  stack_name: "{stack.name}"',
            f"  stack_vocab_size: {stack.rows}",
            f"  stack_embedding_dim: {stack.dim}",
            f"  num_sparsecores: {CORES}",
        ]
        for table in stack.tables:
            lines += [
                "  table_specs {",
                f'    table_name: "{table.name}"',
                f"    vocab_size: {table.rows}",
                f"    embedding_dim: {table.dim}",
                f"    padded_vocab_size: {table.padded_rows}",
                f"    padded_embedding_dim: {stack.dim}",
                f"    row_offset_in_shard: {table.offset}",
                f"    shard_rotation: {table.rotation}",
                "  }",
            ]
        lines.append("}")
    return "\n".join(lines) + "\n"


def _padded(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple

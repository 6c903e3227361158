"""The layouts that jax-tpu-embedding saves in a checkpoint: an Orbax item beside the model's, with
an EmbeddingSpecProto.

    <root>/<step>/embedding_spec/proto.pbtxt     (the item's name is the program's choice)

jax-tpu-embedding's converter either spreads the rows of a step over other SparseCores and records
these, or, without a target, saves each table in the order of its ids beside the record of the step
that it read.

jax-tpu-embedding saves the item since 0.2.0. Earlier releases and keras-rs 0.4.0 save none: the
user gives a layout file instead.

Source: jax-tpu-embedding, sparsecore/lib/flax/nnx/checkpoint_utils.py, save_checkpoint and
convert_cross_topology_checkpoint; Orbax, checkpoint/_src/handlers/proto_checkpoint_handler.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bundle.storage.regular_files import read_regular
from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.upstreams import UnknownFields
from export.checkpoint.inventory.findings import Findings
from export.checkpoint.inventory.layout_file import FILE_BYTES_MAX, read_embedding_spec
from export.checkpoint.inventory.stated_tables import state_layouts
from export.checkpoint.layouts import SparseCore
from export.checkpoint.variables import StackedTable
from export.errors import CheckpointError

_FILE = "proto.pbtxt"
_FIELD = b"stacked_table_specs"
_CORES_OF_A_DEVICE = (2, 4)
"""The numbers of SparseCores of the TPUs that have them. Each device stores a chunk."""
_NOTE = (
    "other devices stored it than those of the record, and its shape is that of rows in the order "
    "of the record and of ids alike, as the converter of jax-tpu-embedding leaves them without a "
    "target: the record is taken as it is; ids of training prove which it is (verify.trained_ids)"
)


def find_recorded_stacks(findings: Findings) -> None:
    """Adds the tables of the stacks whose layout the checkpoint holds.

    Raises:
      CheckpointError: A layout in the checkpoint is damaged, or contradicts a stack.
    """
    directory = findings.checkpoint.prefix
    # A stack is rejected until its layout is found. Items are only read from local disks.
    if not findings.rejected or not isinstance(directory, Path):
        return
    recorded_tables: dict[str, StackedTable] = {}
    for path in sorted(directory.glob(f"*/{_FILE}")):
        recorded_tables |= _stored_tables(findings, _tables_of(path))
    state_layouts(findings, recorded_tables, {})
    for name in _uncertain_tables(findings, recorded_tables):
        findings.tables[name] = replace(findings.tables[name], note=_NOTE)


def _stored_tables(
    findings: Findings, tables: Mapping[str, StackedTable]
) -> dict[str, StackedTable]:
    """Returns the tables of a record that are stored, with the key of the variable as the name of
    each stack.
    """
    keys_of_stack: dict[str, list[str]] = {}
    for stack in findings.rejected:
        keys_of_stack.setdefault(stack.name, []).append(stack.key)
    # If two items hold a stack, only the user can say which of them is meant.
    keys = {name: keys[0] for name, keys in keys_of_stack.items() if len(keys) == 1}
    shapes = {name: findings.checkpoint.entries[key].shape for name, key in keys.items()}

    # A table without its padding is no stack of the record: all tables are in the order of ids.
    in_order = {
        name: replace(table, stack=keys[name], layout=SparseCore(1, table.rows, 0, 0))
        for name, table in tables.items()
        if shapes.get(name) == (table.rows, table.dim)
    }
    if any(shapes.get(tables[name].stack) != tables[name].stored for name in in_order):
        return in_order
    return {
        name: replace(table, stack=keys[table.stack])
        for name, table in tables.items()
        if table.stack in keys
    }


def _uncertain_tables(findings: Findings, tables: Mapping[str, StackedTable]) -> list[str]:
    """Returns the tables of which no shape shows that the record is theirs: no table has padding or
    a stack with others, and the devices of the record did not store them.
    """
    uncertain = []
    for name, table in tables.items():
        entry = findings.checkpoint.entries[table.stack]
        if entry.shape != (table.rows, table.dim) or table.layout.cores == 1:
            return []
        if table.layout.cores not in [cores * entry.pieces for cores in _CORES_OF_A_DEVICE]:
            uncertain.append(name)
    return uncertain


def _tables_of(path: Path) -> dict[str, StackedTable]:
    """Returns the tables that one file describes."""
    try:
        data = read_regular(path, FILE_BYTES_MAX)
        # Another program's message in an item of any name.
        if _FIELD not in data:
            return {}
        return read_embedding_spec(data, text=True)
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror}") from problem
    except UnknownFields as problem:
        raise CheckpointError(f"{path}: {problem}") from problem
    except Malformed as problem:
        raise CheckpointError(
            f"{path} is no layout of the stacks beside it: {problem}; copy the checkpoint again"
        ) from problem

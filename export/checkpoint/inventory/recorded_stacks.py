"""The layouts that jax-tpu-embedding saves in a checkpoint: an Orbax item beside the model's, with
an EmbeddingSpecProto.

    <root>/<step>/embedding_spec/proto.pbtxt     (the item's name is the program's choice)

Releases up to 0.1.0 save no such item, and neither does keras-rs 0.4.0: the user gives a layout
file instead.

Source: jax-tpu-embedding, sparsecore/lib/flax/nnx/checkpoint_utils.py, save_checkpoint; Orbax
0.12.8, checkpoint/_src/handlers/proto_checkpoint_handler.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bundle.storage.regular_files import read_regular
from export.checkpoint.formats.coding import Malformed
from export.checkpoint.inventory.findings import Findings
from export.checkpoint.inventory.layout_file import FILE_BYTES_MAX, read_embedding_spec
from export.checkpoint.inventory.specs import RejectedTable
from export.checkpoint.inventory.stated_tables import state_layouts
from export.checkpoint.variables import StackedTable
from export.errors import CheckpointError

_FILE = "proto.pbtxt"
_FIELD = b"stacked_table_specs"


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
        recorded_tables |= _tables_of(path, findings.rejected)
    state_layouts(findings, recorded_tables, {})


def _tables_of(path: Path, stacks: list[RejectedTable]) -> dict[str, StackedTable]:
    """Returns the tables of the stacks that one file describes, with the key of its variable as
    the name of each stack.
    """
    try:
        data = read_regular(path, FILE_BYTES_MAX)
        # Another program's message in an item of any name.
        if _FIELD not in data:
            return {}
        tables = read_embedding_spec(data, text=True)
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror}") from problem
    except Malformed as problem:
        raise CheckpointError(
            f"{path} is no layout of the stacks beside it: {problem}; copy the checkpoint again"
        ) from problem
    keys_of_stack: dict[str, list[str]] = {}
    for stack in stacks:
        keys_of_stack.setdefault(stack.name, []).append(stack.key)
    return {
        name: replace(table, stack=keys_of_stack[table.stack][0])
        for name, table in tables.items()
        # If two items hold a stack, only the user can say which of them is meant.
        if len(keys_of_stack.get(table.stack, [])) == 1
    }

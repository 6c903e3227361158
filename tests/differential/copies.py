"""Tables of a checkpoint, copied and verified as a job does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bundle.format.manifest import Table
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.tables.plan import WriteOptions, plan_tables
from export.tables.segments import carry_out, check_sources, manifest_table, sources_of
from export.verify.table_rows import verify_tables

SEGMENTS = WriteOptions(16)
"""Of a few rows."""


def copied_tables(
    checkpoint: Checkpoint,
    inventory: Inventory,
    directory: Path,
    names: Sequence[str] | None = None,
    writing: WriteOptions = SEGMENTS,
    **how: Any,
) -> dict[str, Table]:
    """Copies tables, or all; verifies some rows and all; returns them as a manifest
    describes them.
    """
    wanted = list(names or (table.name for table in inventory.tables))
    plan = plan_tables(
        checkpoint,
        inventory,
        directory,
        tables=wanted,
        write_options=dict.fromkeys(wanted, writing),
        **how,
    )
    for task in reversed(plan.unpacked):
        carry_out(task)
    receipts = [carry_out(task) for task in reversed(plan.all_tasks)]
    check_sources(sources_of(plan), receipts)
    tables = {table.spec.name: manifest_table(table, receipts) for table in plan.tables}
    for rows in (5, None):
        checks = verify_tables(checkpoint, directory, tables, rows)
        assert {name: check.rows for name, check in checks.items()} == {
            name: table.rows for name, table in tables.items()
        }
    assert all(check.rows_compared == check.rows for check in checks.values())
    return tables


def copied(
    checkpoint: Checkpoint,
    inventory: Inventory,
    directory: Path,
    names: Sequence[str] | None = None,
    **how: Any,
) -> dict[str, bytes]:
    """Copies and verifies tables, or all; returns the bytes of each."""
    tables = copied_tables(checkpoint, inventory, directory, names, **how)
    return {
        name: b"".join((directory / segment.file).read_bytes() for segment in table.segments)
        for name, table in tables.items()
    }

"""Tables of a checkpoint, copied and verified as a job does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.tables.plan import WriteOptions, plan_tables
from export.tables.segments import carry_out, check_sources, manifest_table, sources_of
from export.verify.table_rows import verify_tables

SEGMENTS = WriteOptions(16)
"""Of a few rows."""


def copied(
    checkpoint: Checkpoint,
    inventory: Inventory,
    directory: Path,
    names: Sequence[str] | None = None,
) -> dict[str, bytes]:
    """Copies tables, or all; verifies some rows and all; returns the bytes of each."""
    wanted = list(names or (table.name for table in inventory.tables))
    options = dict.fromkeys(wanted, SEGMENTS)
    plan = plan_tables(checkpoint, inventory, directory, tables=wanted, write_options=options)
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
    return {
        name: b"".join((directory / segment.file).read_bytes() for segment in table.segments)
        for name, table in tables.items()
    }

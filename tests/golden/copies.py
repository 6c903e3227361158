"""Tables of a checkpoint, copied and verified as a job does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.tables.plan import Writing, plan_tables
from export.tables.shards import carry_out, check_sources, manifest_table
from export.verify.table_rows import verify_tables

SHARD_ROWS = 16


def copied(
    checkpoint: Checkpoint, inventory: Inventory, directory: Path, names: Sequence[str] | None = None
) -> dict[str, bytes]:
    """Copies tables, or all, in shards of a few rows; verifies some rows and all; returns the bytes of each."""
    wanted = list(names or (table.name for table in inventory.tables))
    writing = dict.fromkeys(wanted, Writing(SHARD_ROWS))
    plan = plan_tables(checkpoint, inventory, directory, tables=wanted, writing=writing)
    receipts = [carry_out(task) for task in plan.work]
    check_sources(plan, receipts)
    tables = {table.spec.name: manifest_table(table, receipts) for table in plan.tables}
    for rows in (5, None):
        checks = verify_tables(checkpoint, directory, tables, rows)
        assert set(checks) == set(tables)
    assert all(check.rows_compared == check.rows for check in checks.values())
    return {
        name: b"".join((directory / shard.file).read_bytes() for shard in table.shards)
        for name, table in tables.items()
    }

"""What each shard of a planned bundle would hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from bundle.tables.sharding import ShardNumber, row_range
from export.jobs.preparation import Prepared
from export.report_text import report_table, size_text


def shard_sizes(prepared: Prepared, total: int, min_bytes: int) -> list[dict[str, Any]]:
    """Returns the sizes of each of `total` shards, then of a router: the bytes of tables, and at
    most the bytes of index partitions.

    Args:
      min_bytes: The minimum size in bytes of the tables that shards hold.
    """
    tables = [table for table in prepared.plan.tables if table.bytes >= min_bytes]
    indexes = [each for each in prepared.forecasts.values() if each.partitions > 1]
    sizes = []
    for shard in (ShardNumber(number, total) for number in range(1, total + 1)):
        rows = sum(
            row_range(each.spec.rows, shard).rows * (each.bytes // each.spec.rows)
            for each in tables
        )
        parts = sum(
            row_range(each.partitions, shard).rows * each.disk_bytes // each.partitions
            for each in indexes
        )
        sizes.append({"shard": str(shard), "table_bytes": rows, "index_bytes": parts})
    kept = sum(each.bytes for each in prepared.plan.tables) - sum(each.bytes for each in tables)
    whole = sum(each.disk_bytes for each in prepared.forecasts.values()) - sum(
        each.disk_bytes for each in indexes
    )
    return [*sizes, {"shard": "router", "table_bytes": kept, "index_bytes": whole}]


def shard_table(sizes: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Returns what `shard_sizes` found, for a terminal."""
    table = report_table("shards", "shard", "tables", "indexes, at most")
    for each in sizes:
        table.add_row(each["shard"], size_text(each["table_bytes"]), size_text(each["index_bytes"]))
    return table

"""The sizes of the shards of a planned bundle."""

from __future__ import annotations

from typing import Any

from bundle.tables.shard_number import ShardNumber
from bundle.tables.sharding import row_range
from export.jobs.preparation import Prepared


def shard_sizes(prepared: Prepared, total: int, min_bytes: int) -> list[dict[str, Any]]:
    """Returns the sizes of each of `total` shards, then of a router: the bytes of tables, and at
    most the bytes of index partitions.

    Args:
      prepared: The prepared job.
      total: The number of shards.
      min_bytes: The minimum size in bytes of the tables that shards hold.
    """
    tables = prepared.plan.tables
    divided_tables = [table for table in tables if table.bytes >= min_bytes]
    # An index of a single partition cannot be divided.
    indexes = prepared.forecasts.values()
    divided_indexes = [index for index in indexes if index.partitions > 1]
    sizes = []
    for number in range(1, total + 1):
        shard = ShardNumber(number, total)
        table_bytes = 0
        for table in divided_tables:
            # All rows take the same number of bytes; those of int8 include their scales.
            bytes_per_row = table.bytes // table.spec.rows
            table_bytes += row_range(table.spec.rows, shard).rows * bytes_per_row
        index_bytes = 0
        for index in divided_indexes:
            partitions = row_range(index.partitions, shard).rows
            index_bytes += partitions * index.disk_bytes // index.partitions
        sizes.append({"shard": str(shard), "table_bytes": table_bytes, "index_bytes": index_bytes})

    # A router holds all that is not divided.
    table_bytes = sum(table.bytes for table in tables if table.bytes < min_bytes)
    index_bytes = sum(index.disk_bytes for index in indexes if index.partitions <= 1)
    sizes.append({"shard": "router", "table_bytes": table_bytes, "index_bytes": index_bytes})
    return sizes

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.cli.shard_sizes import shard_sizes, shard_table
from export.corpora.size_estimates import IndexForecast
from export.tables.plan import plan_tables
from tests.units.export.checkpoint.tensor_bundles import write_bundle


def prepared(directory: Path) -> Any:
    """Returns a job of tables of 160, 48 and 16 bytes, and of two indexes."""
    rows = {"large": 10, "middle": 3, "small": 1}
    tables = {name: np.zeros((count, 4), np.float32) for name, count in rows.items()}
    write_bundle(directory / "ckpt", tables)
    checkpoint = open_checkpoint(directory)
    plan = plan_tables(checkpoint, recognize(checkpoint, {name: name for name in rows}), directory)
    forecasts = {
        "whole": IndexForecast(10, 1000, 0, 0, 1),
        "divided": IndexForecast(10, 700, 0, 0, 5),
    }
    return SimpleNamespace(plan=plan, forecasts=forecasts)


def test_shards_hold_rows_of_large_tables_and_partitions_and_routers_all_else(
    tmp_path: Path,
) -> None:
    job = prepared(tmp_path)
    assert shard_sizes(job, 2, 48) == [
        {"shard": "1/2", "table_bytes": (5 + 2) * 16, "index_bytes": 3 * 140},
        {"shard": "2/2", "table_bytes": (5 + 1) * 16, "index_bytes": 2 * 140},
        {"shard": "router", "table_bytes": 16, "index_bytes": 1000},
    ]
    assert [size["table_bytes"] for size in shard_sizes(job, 3, 49)] == [64, 48, 48, 64]
    (shard, router) = shard_sizes(job, 1, 1)
    assert (shard["table_bytes"], router["table_bytes"]) == (224, 0)

    console = Console(width=100)
    with console.capture() as captured:
        console.print(shard_table(shard_sizes(job, 2, 48)))
    lines = [" ".join(line.split()) for line in captured.get().splitlines()]
    assert lines[0] == "shards"
    assert "1/2 112 B 420 B" in lines
    assert "router 16 B 1000 B" in lines

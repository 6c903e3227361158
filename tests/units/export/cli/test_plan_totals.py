"""The line below the tables of a plan: what moves, what stays, and what that takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.cli.inspect import plan_table
from export.tables.plan import WriteOptions, plan_tables
from tests.units.export.checkpoint.tensor_bundles import write_bundle


def zeros(rows: int) -> np.ndarray[Any, Any]:
    return np.zeros((rows, 4), np.float32)


@pytest.mark.parametrize(
    ("writing", "slots", "segments", "total"),
    [
        (
            {},
            False,
            "1",
            "1.6 KiB read, 1.6 KiB written, 2 files, 2 tasks on 2 workers with at most "
            "260.0 MiB of memory",
        ),
        (
            {"user": WriteOptions(5, streamed=True)},
            True,
            "20",
            "1.6 KiB read, 1.6 KiB written (at most 608 B on the local disk at a time), 21 files, "
            "21 tasks on 2 workers with at most 260.0 MiB of memory; 1.6 KiB of slot variables "
            "left out",
        ),
        (
            {"user": WriteOptions(link=True)},
            False,
            "1, linked",
            "48 B read, 48 B written, 1.6 KiB linked, 2 files, 1 task on 2 workers with at most "
            "130.0 MiB of memory",
        ),
    ],
)
def test_plan_table_ends_with_its_totals(
    tmp_path: Path, writing: dict[str, WriteOptions], slots: bool, segments: str, total: str
) -> None:
    variables = {"user/embeddings": zeros(100), "city/embeddings": zeros(3)}
    if slots:
        variables["user/embeddings/Adagrad"] = zeros(100)
    write_bundle(tmp_path / "c", variables)
    checkpoint = open_checkpoint(tmp_path / "c")
    inventory = recognize(checkpoint)
    plan = plan_tables(checkpoint, inventory, tmp_path / "out", write_options=writing, workers=2)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(plan_table(plan, ["seen"]))
    lines = captured.get().splitlines()
    notes = [line for line in lines if line.startswith("note: ")]
    assert "note: seen" in notes
    assert any("linked and not read" in note for note in notes) == ("linked" in segments)
    assert lines[-1] == total
    (user,) = [" ".join(line.split()) for line in lines if line.split()[:1] == ["user"]]
    assert user == f"user 100 4 float32 1.6 KiB plain 1 {segments}"

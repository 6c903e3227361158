"""What is told of what was published, of few tables and of many."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bundle.format.manifest import TableCheck
from bundle.format.tables import TableError
from bundle.storage.staging import read_manifest
from export.cli.published_page import TABLES_SHOWN, published_page
from export.jobs.staged import Published
from tests.conftest import write_sample_bundle


def test_published_tables_are_told_one_by_one_up_to_a_number(tmp_path: Path) -> None:
    sample = read_manifest(write_sample_bundle(tmp_path))
    error = TableError(source_dtype="float32", max_abs=0.125, rms=0.03125, cosine_min=0.875, cosine_mean=1)
    lossy = sample.tables["users"].model_copy(update={"dtype": "int8", "error": error})
    tables = {"a": lossy} | {f"t{number}": sample.tables["users"] for number in range(1, TABLES_SHOWN + 10)}
    checks = {name: TableCheck(rows_compared=40, rows=100) for name in tables}
    verification = sample.verification.model_copy(update={"tables": checks})
    page = sample.model_copy(update={"tables": tables, "verification": verification})
    console = Console(width=200)
    with console.capture() as told:
        console.print(published_page(Published(tmp_path, page, ())))
    lines = [" ".join(line.split()) for line in told.get().splitlines()]
    assert "table a the checkpoint 40 of 100 rows right as int8" in lines
    assert "table a its float32 values difference: largest 0.12, rms 0.031, cosine >= 0.87500" in lines
    shown = [line.split()[1] for line in lines if line.endswith("equal bit for bit")]
    assert shown == [f"t{number}" for number in range(1, TABLES_SHOWN)]
    assert "10 more tables the checkpoint told with --json" in lines

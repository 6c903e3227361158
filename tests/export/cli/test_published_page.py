"""What is told of what was published, of few tables and of many."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from bundle.format.manifest import TableCheck
from bundle.format.tables import TableError
from bundle.storage.staging import read_manifest
from export.cli.published_page import TABLES_TOLD, published_page
from export.jobs.staged import Published
from export.places import place_of
from tests.conftest import write_sample_bundle


def lost(largest: float) -> dict[str, object]:
    error = TableError(source_dtype="float32", max_abs=largest, rms=largest / 4, cosine_min=1 - largest, cosine_mean=1)
    return {"dtype": "int8", "error": error}


@pytest.mark.parametrize("many", [False, True])
def test_published_tables_are_told_one_by_one_unless_there_are_many(many: bool, tmp_path: Path) -> None:
    sample = read_manifest(write_sample_bundle(tmp_path))
    plain = sample.tables["users"]
    tables = {f"t{number}": plain for number in range(1, 12 + many * TABLES_TOLD)}
    tables |= {name: plain.model_copy(update=lost(largest)) for name, largest in (("a", 0.25), ("b", 0.125))}
    checks = {name: TableCheck(rows_compared=40, rows=100) for name in sorted(tables)}
    verification = sample.verification.model_copy(update={"tables": checks})
    page = sample.model_copy(update={"tables": tables, "verification": verification})
    console = Console(width=200)
    with console.capture() as told:
        console.print(published_page(Published(place_of(str(tmp_path)), page, ())))
    lines = [" ".join(line.split()) for line in told.get().splitlines()]
    if many:
        assert "41 tables of float32 the checkpoint 1640 of 4100 rows equal bit for bit" in lines
        assert "2 tables of float32 as int8 the checkpoint 80 of 200 rows right as int8" in lines
        worst = "difference: largest 0.25, rms 0.062, cosine >= 0.75000"
        assert f"2 tables of float32 as int8 its float32 values {worst}" in lines
    else:
        assert "table b its float32 values difference: largest 0.12, rms 0.031, cosine >= 0.87500" in lines
        shown = [line.split()[1] for line in lines if line.endswith("equal bit for bit")]
        assert shown == [f"t{number}" for number in range(1, 12)]

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from bundle.format.manifest import PaddingCheck, TableCheck, TableError
from bundle.storage.catalog import read_manifest
from export.cli.verified_report import UNLISTED_SHOWN, verified_json, verified_table
from export.verify.checks import Findings
from export.verify.published import Verified

GOLDEN = Path(__file__).parents[3] / "differential/bundle/root/movies/1"
FINDINGS = Findings(
    files=12,
    bytes=2048,
    tables={"users": TableCheck(rows_compared=40, rows=50)},
    opened=("tower query, LiteRT f32",),
)


def verified(findings: Findings) -> Verified:
    manifest = read_manifest(GOLDEN)
    users = next(iter(manifest.tables.values()))
    error = TableError(
        source_dtype="float32", max_abs=0.1, rms=0.1, cosine_min=0.9, cosine_mean=0.99
    )
    items = users.model_copy(update={"dtype": "int8", "error": error})
    update = {"version": 3, "tables": {"users": users, "items": items}}
    return Verified(Path("bundles/movies/3"), manifest.model_copy(update=update), findings)


def shown(findings: Findings) -> list[str]:
    """The lines that a terminal shows, without the frames of the table."""
    text = StringIO()
    Console(file=text, width=200).print(verified_table(verified(findings)))
    return [" ".join(line.replace("│", " ").split()) for line in text.getvalue().splitlines()]


def test_report_shows_what_was_checked_and_how() -> None:
    lines = shown(FINDINGS)
    assert lines[0].strip() == "movies version 3"
    assert "checksums 12 files, 2.0 KiB: every byte as committed" in lines
    assert "rows of table users 40 of 50 equal bit for bit" in lines
    assert "tower query, LiteRT f32 opens and can be used" in lines
    assert lines[-1] == "bundles/movies/3 is whole"
    assert not [line for line in lines if line.startswith(("note:", "index", "towers"))]
    assert verified_json(verified(FINDINGS))["model_check"] is None


def test_report_of_a_recipe_shows_examples_and_recall() -> None:
    findings = replace(FINDINGS, examples=24, recall={"movies": 0.98765})
    lines = shown(findings)
    assert "towers and candidates 24 examples as the original model" in lines
    assert "index movies recall 0.9877 against exact search" in lines
    page = verified_json(verified(findings))
    assert page["model_check"] == {"examples": 24, "recall": {"movies": 0.98765}}


def test_report_tells_converted_tables_stated_layouts_and_unlisted_files() -> None:
    tables = {
        "users": TableCheck(rows_compared=50, rows=50, decoder="tensorstore 1"),
        "items": TableCheck(
            rows_compared=9,
            rows=9,
            stated_layout="accepted",
            padding=PaddingCheck(rows=7, slots=("accumulator",)),
        ),
    }
    unlisted = tuple(f"extra-{number:02}" for number in range(UNLISTED_SHOWN + 1))
    lines = shown(replace(FINDINGS, tables=tables, unlisted=unlisted))
    (users,) = [line for line in lines if line.startswith("rows of table users")]
    assert users.startswith("rows of table users 50 of 50 equal bit for bit")
    assert "tensorstore 1" in users
    (items,) = [line for line in lines if line.startswith("rows of table items")]
    assert "9 of 9 right as int8, by its stated layout (accepted); compared with 7" in items
    assert "padding rows and their accumulator" in " ".join(lines)
    notes = [line for line in lines if line.startswith("note:")]
    assert notes == [f"note: {path} is no part of the bundle" for path in unlisted[:-1]]

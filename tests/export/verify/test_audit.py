from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from bundle.format.manifest import TableCheck
from export.verify.audit import UNLISTED_SHOWN, Audit, ModelCheck


def shown(audit: Audit) -> list[str]:
    """The lines that a terminal shows, without the frames of the table."""
    text = StringIO()
    Console(file=text, width=200).print(audit.to_table())
    return [" ".join(line.replace("│", " ").split()) for line in text.getvalue().splitlines()]


AUDIT = Audit(
    bundle="bundles/movies/3",
    model="movies",
    version=3,
    files=12,
    bytes=2048,
    unlisted=(),
    tables={"users": TableCheck(rows_compared=40, rows=50)},
    converted={},
    opened=("tower query, LiteRT f32",),
)


def test_audit_shows_what_was_checked_and_how() -> None:
    lines = shown(AUDIT)
    assert lines[0].strip() == "movies version 3"
    assert "checksums 12 files, 2.0 KiB: every byte as committed" in lines
    assert "rows of table users 40 of 50 equal bit for bit" in lines
    assert "tower query, LiteRT f32 opens and answers" in lines
    assert lines[-1] == "bundles/movies/3 is whole"
    assert not [line for line in lines if line.startswith(("note:", "index", "towers"))]


def test_audit_with_a_model_shows_examples_and_recall() -> None:
    checked = ModelCheck(examples=24, recall={"movies": 0.98765})
    lines = shown(replace(AUDIT, model_check=checked))
    assert "towers and candidates 24 examples as the original model" in lines
    assert "index movies recall 0.9877 against exact search" in lines


def test_audit_tells_converted_tables_stated_layouts_and_unlisted_files() -> None:
    tables = {
        "users": TableCheck(rows_compared=50, rows=50, decoder="tensorstore 1"),
        "items": TableCheck(rows_compared=9, rows=9, stated_layout="accepted"),
    }
    unlisted = tuple(f"extra-{number:02}" for number in range(UNLISTED_SHOWN + 1))
    lines = shown(replace(AUDIT, tables=tables, converted={"items": "int8"}, unlisted=unlisted))
    (users,) = [line for line in lines if line.startswith("rows of table users")]
    assert users.startswith("rows of table users 50 of 50 equal bit for bit")
    assert "tensorstore 1" in users
    assert "rows of table items 9 of 9 right as int8, by its stated layout (accepted)" in lines
    notes = [line for line in lines if line.startswith("note:")]
    assert notes == [f"note: {path} is no part of the bundle" for path in unlisted[:-1]]

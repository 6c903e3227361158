"""The report of `verify`, for a terminal and for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from bundle.format.manifest import Table, TableCheck
from export.report_text import (
    count_text,
    decoder_text,
    padding_text,
    report_table,
    size_text,
    thousands,
    trained_ids_text,
    unverified_lines,
)
from export.verify.published import Verified

UNLISTED_SHOWN = 20
"""The number of files outside the manifest that the report lists."""


def verified_json(verified: Verified) -> dict[str, Any]:
    """Returns the report as JSON values."""
    manifest = verified.manifest
    findings = verified.findings
    # Without a recipe, the model is not called.
    model_check: dict[str, Any] | None = None
    if findings.examples:
        model_check = {"examples": findings.examples, "recall": findings.recall}
    return {
        "bundle": str(verified.bundle),
        "model": manifest.model,
        "version": manifest.version,
        "files": findings.files,
        "bytes": findings.bytes,
        "unlisted": findings.unlisted,
        "opened": findings.opened,
        "tables": {
            name: check.model_dump(exclude_none=True) for name, check in findings.tables.items()
        },
        "model_check": model_check,
        "unverified": manifest.verification.unverified,
    }


def verified_table(verified: Verified) -> RenderableType:
    """Returns the report for a terminal."""
    manifest = verified.manifest
    findings = verified.findings
    checks = report_table(f"{manifest.model} version {manifest.version}", "checked", "result")
    size = f"{count_text(findings.files, 'file')}, {size_text(findings.bytes)}"
    checks.add_row("checksums", f"{size}: every byte as committed")
    for name, check in findings.tables.items():
        checks.add_row(f"rows of table {name}", _rows_text(manifest.tables[name], check))
    for part in findings.opened:
        checks.add_row(part, "opens and can be used")
    if findings.examples:
        examples = f"{findings.examples} examples as the original model"
        checks.add_row("towers and candidates", examples)
    for name, recall in findings.recall.items():
        checks.add_row(f"index {name}", f"recall {recall:.4f} against exact search")

    # They change no result, because nothing reads them.
    unlisted = findings.unlisted[:UNLISTED_SHOWN]
    notes = [Text(f"note: {path} is no part of the bundle") for path in unlisted]
    return Group(
        checks,
        *notes,
        Text(f"{verified.bundle} is whole"),
        *unverified_lines(manifest.verification.unverified, " at its export"),
    )


def _rows_text(table: Table, check: TableCheck) -> str:
    """Returns the result of comparing a table with the checkpoint."""
    result = "equal bit for bit"
    if table.error is not None:
        result = f"right as {table.dtype}"
    # The layout was judged at the export, and the manifest says how.
    if check.stated_layout == "derived":
        result += ", by the layout that was derived from ids of training"
    elif check.stated_layout is not None:
        result += f", by its stated layout ({check.stated_layout})"
    if check.trained_ids is not None:
        result += f"; {trained_ids_text(check.trained_ids)}"
    result += padding_text(check.padding)
    compared = f"{thousands(check.rows_compared)} of {thousands(check.rows)}"
    return f"{compared} {result}{decoder_text(check.decoder)}"

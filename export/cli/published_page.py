"""What was published and what was proved of it, for a terminal and for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from bundle.format.manifest import Recall
from export.figures import natural, page_table, size_text
from export.jobs.staged import Published

TABLES_SHOWN = 30


def published_json(published: Published) -> dict[str, Any]:
    """Returns what was published as JSON values."""
    page = published.page
    told = page.model_dump(mode="json", include={"model", "version", "verification", "tables", "indexes"})
    indexes, tables = told.pop("indexes"), told.pop("tables")
    return told | {
        "bundle": str(published.directory),
        "table_bytes": sum(table.bytes for table in page.tables.values()),
        "table_errors": {name: table["error"] for name, table in tables.items() if table.get("error")},
        "recall": {name: index["recall"] for name, index in indexes.items()},
        "recall_of_tables": {
            name: index["recall_of_tables"] for name, index in indexes.items() if index.get("recall_of_tables")
        },
        "max_abs_error": {
            name: {f"{form.kind} {form.precision}": form.max_abs_error for form in tower.forms}
            for name, tower in page.towers.items()
        },
        "notes": list(published.notes),
    }


def published_page(published: Published) -> RenderableType:
    """Returns what was published and what was proved of it, for a terminal."""
    page = published.page
    proofs = page_table(f"{page.model} version {page.version}", "checked", "against", "result")
    checks = page.verification.tables
    shown = sorted(checks, key=natural)[:TABLES_SHOWN]
    for name in shown:
        table, check = page.tables[name], checks[name]
        how = "equal bit for bit" if table.error is None else f"right as {table.dtype}"
        found = f"{check.rows_compared} of {check.rows} rows {how}"
        proofs.add_row(
            f"table {name}",
            "the checkpoint",
            found if check.rows_compared else "linked, not verified: --full sums its rows",
        )
        if table.error is not None:
            error = table.error
            lost = f"largest {error.max_abs:.2g}, rms {error.rms:.2g}, cosine >= {error.cosine_min:.5f}"
            proofs.add_row(f"table {name}", f"its {error.source_dtype} values", f"difference: {lost}")
    if len(checks) > len(shown):
        proofs.add_row(f"{len(checks) - len(shown)} more tables", "the checkpoint", "told with --json")
    for name, effects in page.verification.table_effect.items():
        proofs.add_row(f"tower {name}", "itself on the checkpoint's rows", _largest(effects))
    for name, tower in page.towers.items():
        for form in tower.forms:
            against = f"the original model, {page.verification.examples} examples"
            proofs.add_row(f"tower {name}, {form.kind} {form.precision}", against, _largest(form.max_abs_error))
    for name, index in page.indexes.items():
        told, recall = f"index {name}, {index.kind}", index.recall
        queries = f"{recall.queries} {'queries' if recall.representative else 'invented queries: not representative'}"
        proofs.add_row(told, f"exact search, {queries}", f"{_recall(recall)}, asked for {recall.target}")
        if index.recall_of_tables is not None:
            proofs.add_row(told, "exact search on the checkpoint's rows", _recall(index.recall_of_tables))
    notes = [Text(f"note: {note}") for note in published.notes]
    shards = [extent for table in page.tables.values() for extent in table.extents()]
    linked = sum(size for shard, size in shards if not shard.blocks)
    of_it = f", {size_text(linked)} of it linked" if linked else ""
    size = size_text(sum(table.bytes for table in page.tables.values()))
    return Group(proofs, *notes, Text(f"published {published.directory} ({size} of tables{of_it})"))


def _largest(errors: dict[str, float]) -> str:
    return f"largest difference {max(errors.values(), default=0.0):.2g}"


def _recall(recall: Recall) -> str:
    return f"recall@{recall.k} {recall.value:.4f} (at least {recall.low:.4f})"

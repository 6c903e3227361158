"""What was published and what was proved of it, for a terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from bundle.format.indexes import Index, Recall
from bundle.format.manifest import Manifest, StageRecall
from export.jobs.staged import Published
from export.report_text import (
    count_text,
    decoder_text,
    natural,
    padding_text,
    partitions_text,
    report_table,
    size_text,
    thousands,
    trained_ids_text,
    unverified_lines,
)

TABLES_SHOWN = 30
_BY_STATED_LAYOUT = {
    "derived": ", by the layout that was derived from ids of training",
    "trained_ids": ", by its stated layout, which ids of training prove",
    "accepted": ", if its stated layout is right: not verified",
    "expected": ", by its stated layout, which recorded outputs agree with",
}


def published_json(published: Published) -> dict[str, Any]:
    """Returns what was published as JSON values."""
    manifest = published.manifest
    values = manifest.model_dump(mode="json", include={"model", "version", "tables", "indexes"})
    indexes = values.pop("indexes")
    tables = values.pop("tables")
    values["verification"] = manifest.verification.model_dump(mode="json", exclude_none=True)
    return values | {
        "bundle": str(published.directory),
        "table_bytes": sum(table.bytes for table in manifest.tables.values()),
        "reused": {"segments": published.reused.segments, "bytes": published.reused.bytes},
        "table_errors": {
            name: table["error"] for name, table in tables.items() if table.get("error")
        },
        "recall": {name: index["recall"] for name, index in indexes.items()},
        "recall_of_tables": _measured(indexes, "recall_of_tables"),
        "recall_of_cold_users": _measured(indexes, "recall_of_cold_users"),
        "stages": {name: stage.model_dump(mode="json") for name, stage in manifest.stages.items()},
        "max_abs_error": {
            name: {f"{form.kind} {form.precision}": form.max_abs_error for form in tower.forms}
            for name, tower in manifest.towers.items()
        },
        "notes": list(published.notes),
    }


def _measured(indexes: dict[str, Any], recall: str) -> dict[str, Any]:
    """Returns a recall by index, of those where it was measured."""
    return {name: index[recall] for name, index in indexes.items() if index.get(recall)}


def published_report(published: Published) -> RenderableType:
    """Returns what was published and what was proved of it, for a terminal."""
    manifest = published.manifest
    proofs = report_table(
        f"{manifest.model} version {manifest.version}", "checked", "against", "result"
    )
    checks = manifest.verification.tables
    shown = sorted(checks, key=natural)[:TABLES_SHOWN]
    for name in shown:
        table = manifest.tables[name]
        check = checks[name]
        how = "equal bit for bit" if table.error is None else f"right as {table.dtype}"
        how += _BY_STATED_LAYOUT.get(check.stated_layout or "", "")
        if check.trained_ids is not None:
            how += f"; {trained_ids_text(check.trained_ids)}"
        how += padding_text(check.padding)
        compared = f"{thousands(check.rows_compared)} of {thousands(check.rows)} rows"
        found = f"{compared} {how}{decoder_text(check.decoder)}"
        proofs.add_row(
            f"table {name}",
            "the checkpoint",
            found if check.rows_compared else "linked, not verified: --full sums its rows",
        )
        if table.error is not None:
            error = table.error
            lost = (
                f"largest {error.max_abs:.2g}, rms {error.rms:.2g}, cosine >= "
                f"{error.cosine_min:.5f}"
            )
            proofs.add_row(
                f"table {name}", f"its {error.source_dtype} values", f"difference: {lost}"
            )
    if len(checks) > len(shown):
        proofs.add_row(
            f"{len(checks) - len(shown)} more tables", "the checkpoint", "listed with --json"
        )
    for name, effects in manifest.verification.table_effect.items():
        proofs.add_row(f"tower {name}", "itself on the checkpoint's rows", _largest(effects))
    for name, tower in manifest.towers.items():
        for form in tower.forms:
            against = f"the original model, {manifest.verification.examples} examples"
            proofs.add_row(
                f"tower {name}, {form.kind} {form.precision}", against, _largest(form.max_abs_error)
            )
    for row in _index_proofs(manifest):
        proofs.add_row(*row)
    for row in _stage_proofs(manifest):
        proofs.add_row(*row)
    notes = [Text(f"note: {note}") for note in published.notes]
    return Group(
        proofs,
        *notes,
        Text(f"published {published.directory} ({_sizes(published)})"),
        *unverified_lines(manifest.verification.unverified),
    )


def _sizes(published: Published) -> str:
    """Returns the size of the tables, and how much of it was not written."""
    tables = published.manifest.tables.values()
    extents = [extent for table in tables for extent in table.extents()]
    linked = sum(size for segment, size in extents if not segment.blocks)
    text = f"{size_text(sum(table.bytes for table in tables))} of tables"
    if linked:
        text += f", {size_text(linked)} of it linked"
    reused = published.reused
    if reused.bytes:
        whole = count_text(reused.segments, "whole segment")
        text += f", {size_text(reused.bytes)} of it shared with older versions, {whole}"
    return text


def _largest(errors: dict[str, float]) -> str:
    return f"largest difference {max(errors.values(), default=0.0):.2g}"


def _index_proofs(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yields each index, what its recall was measured against, and the result."""
    for name, index in manifest.indexes.items():
        title = f"index {name}, {index.kind}{partitions_text(index.partitions)}"
        for against, result in _recalls(index):
            yield title, against, result


def _recalls(index: Index) -> Iterator[tuple[str, str]]:
    """Yields what the recall of an index was measured against, and the result."""
    recall = index.recall
    kind = "queries" if recall.representative else "invented queries: not representative"
    count = recall.queries + recall.chosen_on
    # The setting was chosen on the other queries.
    share = f"{recall.queries} of {count}" if recall.chosen_on else str(count)
    yield f"exact search, {share} {kind}", f"{_recall(recall)}; target {recall.target}"
    all_queries = f"exact search, {count} {kind}"
    for depth in index.depths:
        yield all_queries, f"recall@{depth.k} {depth.recall:.4f}"
    if index.recall_of_tables is not None:
        yield "exact search on the checkpoint's rows", _recall(index.recall_of_tables)
    cold = index.recall_of_cold_users
    if cold is not None:
        yield f"exact search, {cold.queries} queries of cold users", _recall(cold)


def _stage_proofs(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yields each stage, what its recall was measured against, and the result."""
    for name, stage in manifest.stages.items():
        for index, recall in stage.recall.items():
            kind = "contexts"
            if not recall.representative:
                kind = "invented contexts: not representative"
            against = f"the best of {name}, index {index}, {recall.contexts} {kind}"
            result = f"{_recall(recall)} in pools of {recall.pool_size}"
            yield f"stage {stage.tower}, keeps {stage.keep}", against, result


def _recall(recall: Recall | StageRecall) -> str:
    return f"recall@{recall.k} {recall.value:.4f} (at least {recall.low:.4f})"

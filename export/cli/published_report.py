"""The report of a published bundle and of its checks, for a terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from bundle.format.features import inputs_of
from bundle.format.indexes import Index, Recall
from bundle.format.manifest import DenseFeature, Manifest, StageRecall, Table, TableCheck
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
"""The number of tables that a report lists."""
_BY_STATED_LAYOUT = {
    "derived": ", by the layout that was derived from ids of training",
    "trained_ids": ", by its stated layout, which ids of training prove",
    "accepted": ", if its stated layout is right: not verified",
    "expected": ", by its stated layout, which recorded outputs agree with",
}
"""The clause about the layout of a table, by how it is known."""


def published_json(published: Published) -> dict[str, Any]:
    """Returns the report as JSON values."""
    manifest = published.manifest
    values = manifest.model_dump(mode="json", include={"model", "version", "tables", "indexes"})
    # The report has parts of tables and indexes, under keys of their own.
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
        "rejects_unknown_ids": _rejecting_inputs(manifest),
        "notes": list(published.notes),
    }


def _rejecting_inputs(manifest: Manifest) -> list[str]:
    """Returns the inputs that have a feature which rejects unknown ids."""
    rejecting: list[str] = []
    for name, feature in manifest.features.items():
        if isinstance(feature, DenseFeature):
            rejects = feature.below is not None and feature.outside == "refuse"
        else:
            rejects = feature.unknown.rule == "refuse"
        if rejects:
            rejecting += inputs_of(name, feature)
    return list(dict.fromkeys(rejecting))


def _measured(indexes: dict[str, Any], recall: str) -> dict[str, Any]:
    """Returns a recall by index, for the indexes where it was measured."""
    return {name: index[recall] for name, index in indexes.items() if index.get(recall)}


def published_report(published: Published) -> RenderableType:
    """Returns the report for a terminal."""
    manifest = published.manifest
    proofs = report_table(
        f"{manifest.model} version {manifest.version}", "checked", "against", "result"
    )
    rows = (
        *_table_proofs(manifest),
        *_tower_proofs(manifest),
        *_index_proofs(manifest),
        *_stage_proofs(manifest),
    )
    for row in rows:
        proofs.add_row(*row)
    notes = [Text(f"note: {note}") for note in published.notes]
    rejecting = _rejecting_inputs(manifest)
    if rejecting:
        notes.append(
            Text(
                f"a request with an unknown id fails in {', '.join(rejecting)}: state what such an "
                f"id reads as features.{rejecting[0]}.unknown, or nothing if that is right"
            )
        )
    return Group(
        proofs,
        *notes,
        Text(f"published {published.directory} ({_sizes(published)})"),
        *unverified_lines(manifest.verification.unverified),
    )


def _table_proofs(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yields the tables, what they were compared with, and the result."""
    checks = manifest.verification.tables
    # In the order that people expect: t2 before t10.
    listed = sorted(checks, key=natural)[:TABLES_SHOWN]
    for name in listed:
        table = manifest.tables[name]
        yield f"table {name}", "the checkpoint", _rows_text(table, checks[name])
        if table.error is not None:
            error = table.error
            difference = (
                f"largest {error.max_abs:.2g}, rms {error.rms:.2g}, cosine >= "
                f"{error.cosine_min:.5f}"
            )
            yield f"table {name}", f"its {error.source_dtype} values", f"difference: {difference}"
    if len(checks) > len(listed):
        omitted_count = len(checks) - len(listed)
        yield f"{omitted_count} more tables", "the checkpoint", "listed with --json"


def _rows_text(table: Table, check: TableCheck) -> str:
    """Returns the result of comparing a table with the checkpoint."""
    # A sample of a linked table would compare the checkpoint with itself.
    if not check.rows_compared:
        return "linked, not verified: --full sums its rows"
    result = "equal bit for bit"
    if table.error is not None:
        result = f"right as {table.dtype}"
    result += _BY_STATED_LAYOUT.get(check.stated_layout or "", "")
    if check.trained_ids is not None:
        result += f"; {trained_ids_text(check.trained_ids)}"
    result += padding_text(check.padding)
    compared = f"{thousands(check.rows_compared)} of {thousands(check.rows)} rows"
    return f"{compared} {result}{decoder_text(check.decoder)}"


def _tower_proofs(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yields the towers, what they were compared with, and the result."""
    # Converted tables change outputs, whatever the form of the tower.
    for name, effects in manifest.verification.table_effect.items():
        yield f"tower {name}", "itself on the checkpoint's rows", _largest(effects)
    against = f"the original model, {manifest.verification.examples} examples"
    for name, tower in manifest.towers.items():
        for form in tower.forms:
            title = f"tower {name}, {form.kind} {form.precision}"
            yield title, against, _largest(form.max_abs_error)
            hostile_count = manifest.verification.hostile_examples.get(name, 0)
            # The SavedModel in f32 is what other forms are compared with.
            if hostile_count and (form.kind, form.precision) != ("saved_model", "f32"):
                hostile = f"the SavedModel, {thousands(hostile_count)} hostile numbers"
                yield title, hostile, "no difference but rounding"


def _sizes(published: Published) -> str:
    """Returns the size of the tables, and how much of it was not written."""
    tables = published.manifest.tables.values()
    extents = [extent for table in tables for extent in table.extents()]
    # Only segments that were written have checksums of blocks.
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
    kind = "queries"
    if not recall.representative:
        kind = "synthetic queries: not representative"
    count = recall.queries + recall.chosen_on
    share = str(count)
    if recall.chosen_on:
        # The setting was chosen on the other queries.
        share = f"{recall.queries} of {count}"
    yield f"exact search, {share} {kind}", f"{_recall(recall)}; target {recall.target}"
    all_queries = f"exact search, {count} {kind}"
    for depth in index.depths:
        yield all_queries, f"recall@{depth.k} {depth.recall:.4f}"
    if index.recall_of_tables is not None:
        yield "exact search on the checkpoint's rows", _recall(index.recall_of_tables)
    cold_users = index.recall_of_cold_users
    if cold_users is not None:
        yield f"exact search, {cold_users.queries} queries of cold users", _recall(cold_users)


def _stage_proofs(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yields each stage, what its recall was measured against, and the result."""
    for name, stage in manifest.stages.items():
        for index, recall in stage.recall.items():
            kind = "contexts"
            if not recall.representative:
                kind = "synthetic contexts: not representative"
            against = f"the best of {name}, index {index}, {recall.contexts} {kind}"
            result = f"{_recall(recall)} in pools of {recall.pool_size}"
            yield f"stage {stage.tower}, keeps {stage.keep}", against, result


def _recall(recall: Recall | StageRecall) -> str:
    return f"recall@{recall.k} {recall.value:.4f} (at least {recall.low:.4f})"

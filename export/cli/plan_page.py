"""What a job would do and what it did, for a terminal and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from bundle.format.manifest import DenseFeature, Manifest, TowerInput, TowerOutput
from export.cli.inspect import plan_table
from export.figures import count_text, natural, page_table, size_text

if TYPE_CHECKING:  # half a second, which an export of tables alone can do without
    from export.graph.pruning import TracedPart
    from export.jobs.bundle_job import Prepared
    from export.jobs.staged import Published


TABLES_TOLD = 30
"""So many tables are told one by one of what was proved; where there are more, a line is for all of a dtype."""


def plan_json(prepared: Prepared) -> dict[str, Any]:
    """Returns the plan as JSON values: the tables' plan, what each tower takes and gives, and how it is to be run."""
    spec, job = prepared.traced.spec, prepared.job
    lacking = prepared.not_in_litert
    return prepared.plan.to_json() | {
        "destination": str(prepared.destination.place(prepared.job.model, prepared.version)),
        "staged_in": str(prepared.destination.root),
        "features": {name: page.model_dump(mode="json") for name, page in prepared.pages.items()},
        "towers": {
            name: {
                "role": tower.role,
                "features": [source for tensor in tower.inputs for source in tensor.sources],
                "inputs": {tensor.name: len(tensor.sources) for tensor in tower.inputs},
                "outputs": [tensor.name for tensor in tower.outputs],
                "weights": list(tower.variables),
                "formula": job.towers[name].formula,
                "parts": [_part_json(part) for part in _parts(prepared, name)],
                "not_in_litert": lacking[name],
            }
            for name, tower in spec.towers.items()
        },
        "candidates": sorted(job.candidates),
        "contexts": sorted(job.contexts),
        "indexes": sorted(job.indexes),
        "stays": list(prepared.stays),
        "also_stored": list(prepared.also_stored),
    }


def plan_page(prepared: Prepared) -> RenderableType:
    """Returns the plan for a terminal."""
    features = page_table("features", "feature", "reads", "kind", "combiner", "role", "ids", "unknown")
    for name, page in prepared.pages.items():
        if isinstance(page, DenseFeature):
            features.add_row(escape(name), "-", f"dense {list(page.shape)}", "", page.role, page.dtype, "")
        else:
            unknown = page.unknown.rule if page.unknown.row is None else f"row {page.unknown.row}"
            row = (
                page.table or page.stands_for,
                page.kind,
                page.combiner or "",
                page.role,
                page.ids.kind,
                unknown,
            )
            features.add_row(escape(name), *row)
    towers = page_table("towers", "tower", "role", "takes", "gives", "per", "LiteRT")
    lacking = prepared.not_in_litert
    for name, tower in prepared.traced.spec.towers.items():
        runs = lacking[name] or "runs it"
        towers.add_row(name, tower.role, escape(_takes(tower.inputs)), _names(tower.outputs), "", escape(runs))
        for part in _parts(prepared, name):
            cost = f"{part.cost} multiply-adds"
            takes, gives = escape(_takes(part.spec.inputs)), _names(part.spec.outputs)
            towers.add_row(f"  {part.spec.name}", cost, takes, gives, part.spec.per, "")
    destination = str(prepared.destination.place(prepared.job.model, prepared.version))
    if prepared.destination.store is not None:
        destination += f", staged in {prepared.destination.root} until it is sent"
    notes = [Text(f"note: {note}") for note in (*prepared.stays, *prepared.also_stored, *prepared.warnings)]
    written = Text(f"to be written: {destination}")
    return Group(plan_table(prepared.plan), features, towers, *notes, written)


def _parts(prepared: Prepared, tower: str) -> tuple[TracedPart, ...]:
    return prepared.splits[tower].parts if tower in prepared.splits else ()


def _part_json(part: TracedPart) -> dict[str, Any]:
    return {
        "name": part.spec.name,
        "per": part.spec.per,
        "features": [source for tensor in part.spec.inputs for source in tensor.sources],
        "tensors": [tensor.tensor for tensor in part.spec.inputs if tensor.tensor],
        "outputs": [tensor.name for tensor in part.spec.outputs],
        "multiply_adds": part.cost,
    }


def _takes(inputs: Sequence[TowerInput]) -> str:
    told = []
    for tensor in inputs:
        packed = f"{len(tensor.features)} features in one tensor ({tensor.features[0]} ...)" if tensor.features else ""
        told.append(packed or tensor.feature or tensor.tensor)
    return ", ".join(told)


def _names(outputs: Sequence[TowerOutput]) -> str:
    return ", ".join(tensor.name for tensor in outputs)


def published_json(published: Published) -> dict[str, Any]:
    """Returns what was published as JSON values."""
    page = published.page
    return {
        "bundle": str(published.directory),
        "model": page.model,
        "version": page.version,
        "table_bytes": table_bytes(page),
        "verification": page.verification.model_dump(mode="json"),
        "table_errors": {
            name: table.error.model_dump(mode="json") for name, table in page.tables.items() if table.error is not None
        },
        "recall": {name: index.recall.model_dump(mode="json") for name, index in page.indexes.items()},
        "recall_of_tables": {
            name: index.recall_of_tables.model_dump(mode="json")
            for name, index in page.indexes.items()
            if index.recall_of_tables is not None
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
    for told, names in _told_together(page).items():
        checks = [page.verification.tables[name] for name in names]
        errors = [error for name in names if (error := page.tables[name].error) is not None]
        how = f"right as {page.tables[names[0]].dtype}" if errors else "equal bit for bit"
        compared, rows = sum(check.rows_compared for check in checks), sum(check.rows for check in checks)
        found = f"{compared} of {rows} rows {how}" if compared else "linked, not verified: --full sums its rows"
        proofs.add_row(told, "the checkpoint", found)
        if errors:
            largest, rms = max(error.max_abs for error in errors), max(error.rms for error in errors)
            lost = f"largest {largest:.2g}, rms {rms:.2g}, cosine >= {min(error.cosine_min for error in errors):.5f}"
            proofs.add_row(told, f"its {errors[0].source_dtype} values", f"difference: {lost}")
    for name, effects in page.verification.table_effect.items():
        worst = max(effects.values(), default=0.0)
        proofs.add_row(f"tower {name}", "itself on the checkpoint's rows", f"largest difference {worst:.2g}")
    for name, tower in page.towers.items():
        for form in tower.forms:
            worst = max(form.max_abs_error.values(), default=0.0)
            against = f"the original model, {page.verification.examples} examples"
            proofs.add_row(f"tower {name}, {form.kind} {form.precision}", against, f"largest difference {worst:.2g}")
    for name, index in page.indexes.items():
        recall = index.recall
        result = f"recall@{recall.k} {recall.value:.4f} (at least {recall.low:.4f}), asked for {recall.target}"
        queries = f"{recall.queries} {'queries' if recall.representative else 'invented queries: not representative'}"
        proofs.add_row(f"index {name}, {index.kind}", f"exact search, {queries}", result)
        if index.recall_of_tables is not None:
            recall = index.recall_of_tables
            result = f"recall@{recall.k} {recall.value:.4f} (at least {recall.low:.4f})"
            proofs.add_row(f"index {name}, {index.kind}", "exact search on the checkpoint's rows", result)
    notes = [Text(f"note: {note}") for note in published.notes]
    size, linked = size_text(table_bytes(page)), linked_bytes(page)
    of_it = f", {size_text(linked)} of it linked" if linked else ""
    return Group(proofs, *notes, Text(f"published {published.directory} ({size} of tables{of_it})"))


def _told_together(page: Manifest) -> dict[str, list[str]]:
    """Returns the tables that a line is for, by what it calls them."""
    names = sorted(page.verification.tables, key=natural)
    if len(names) <= TABLES_TOLD:
        return {f"table {name}": [name] for name in names}
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        table = page.tables[name]
        stored = (table.dtype,) if table.error is None else (table.error.source_dtype, table.dtype)
        alike.setdefault(stored, []).append(name)
    return {f"{count_text(len(group), 'table')} of {' as '.join(kinds)}": group for kinds, group in alike.items()}


def linked_bytes(page: Manifest) -> int:
    """Returns the bytes of tables that lie in files of the checkpoint."""
    return sum(size for table in page.tables.values() for shard, size in table.extents() if not shard.blocks)


def table_bytes(page: Manifest) -> int:
    """Returns the bytes of all tables of a bundle."""
    return sum(table.bytes for table in page.tables.values())

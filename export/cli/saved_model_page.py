"""What a self-contained SavedModel would be and what was proved of it, for a terminal and for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from export.figures import count_text, page_table, size_text
from export.jobs.executors import worker_count
from export.jobs.saved_model_job import PreparedInline, PublishedInline
from export.recipe.settings import ExportSettings
from export.saved_model.files import copying_bytes


def inline_plan_json(prepared: PreparedInline, settings: ExportSettings) -> dict[str, Any]:
    """Returns the plan as JSON values."""
    plan = prepared.variables
    return {
        "checkpoint": prepared.inventory.checkpoint,
        "destination": str(prepared.destination),
        "tables": {
            name: {"rows": spec.rows, "dim": spec.dim, "dtype": spec.dtype, "key": spec.key, "stored": spec.stored}
            for name, spec in prepared.tables.items()
        },
        "signatures": prepared.graph.inputs,
        "data": "linked" if plan.links else "copied",
        "read_bytes": sum(chunk.bytes for chunk in plan.chunks),
        "written_bytes": plan.end,
        "files": plan.files,
        "tasks": len(plan.chunks),
        "workers": worker_count(settings.workers),
        "peak_memory_bytes": copying_bytes(plan, worker_count(settings.workers)),
        "load_bytes": plan.load_bytes,
        "left_out_bytes": prepared.inventory.slot_bytes,
        "notes": list(prepared.notes),
    }


def inline_plan_page(prepared: PreparedInline, settings: ExportSettings) -> RenderableType:
    """Returns the plan for a terminal."""
    plan = prepared.variables
    tables = page_table("plan", "table", "rows", "dim", "dtype", "layout")
    for name, spec in prepared.tables.items():
        tables.add_row(name, str(spec.rows), str(spec.dim), spec.dtype, spec.layout.kind)
    signatures = page_table("signatures", "signature", "takes", "gives")
    for name, inputs in prepared.graph.inputs.items():
        takes = ", ".join(tensor for tensors in inputs.values() for tensor in tensors)
        gives = ", ".join(prepared.graph.signatures[name].structured_outputs)
        signatures.add_row(name, escape(takes), escape(gives))
    told = (
        f"{size_text(plan.end)} to be copied"
        if not plan.links
        else f"{count_text(len(plan.links), 'data file')} to be linked"
    )
    workers = worker_count(settings.workers)
    told += (
        f", {count_text(len(plan.chunks), 'task')} on {count_text(workers, 'worker')} with at most "
        f"{size_text(copying_bytes(plan, workers))} of memory"
    )
    return Group(
        tables,
        signatures,
        Text(f"{told}; a server, and the proof, hold {size_text(plan.load_bytes)} of tables while they load"),
        *[Text(f"note: {note}") for note in prepared.notes],
        Text(f"to be written: {prepared.destination}"),
    )


def inline_json(published: PublishedInline) -> dict[str, Any]:
    """Returns what was published as JSON values."""
    return {"saved_model": str(published.directory)} | published.report


def inline_page(published: PublishedInline) -> RenderableType:
    """Returns what was published and what was proved of it, for a terminal."""
    report = published.report
    proof = report["verification"]
    how = " and ".join(proof["loaded_by"]) or "the rows of the examples"
    proofs = page_table(f"{report['model']} version {report['version']}", "checked", "against", "result")
    for name, errors in proof["max_abs_error"].items():
        against = f"the original model, {proof['examples']} examples, by {how}"
        proofs.add_row(f"signature {name}", against, f"largest difference {max(errors.values(), default=0.0):.2g}")
    notes = [Text(f"note: {note}") for note in [*report["notes"], proof["note"]] if note]
    size = f"{size_text(report['table_bytes'])} of tables, {report['data']}"
    return Group(proofs, *notes, Text(f"published SavedModel {published.directory} ({size})"))

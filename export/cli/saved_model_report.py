"""The plan of a self-contained SavedModel and the report of its checks, for a terminal and for
programs.
"""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from export.jobs.executors import worker_count
from export.jobs.saved_model_job import PreparedInline
from export.recipe.settings import ExportSettings
from export.report_text import (
    count_text,
    report_table,
    size_text,
    thousands,
    unverified_lines,
)


def plan_json(prepared: PreparedInline, settings: ExportSettings) -> dict[str, Any]:
    """Returns the plan as JSON values."""
    plan = prepared.variables
    workers = worker_count(settings.workers)
    return prepared.description() | {
        "checkpoint": prepared.inventory.checkpoint,
        "destination": str(prepared.destination.location(prepared.job.model, prepared.version)),
        "read_bytes": plan.moved_bytes,
        "written_bytes": plan.end,
        "files": plan.file_count,
        "tasks": len(plan.tasks),
        "workers": workers,
        "peak_memory_bytes": plan.peak_memory_bytes(workers),
        "left_out_bytes": prepared.inventory.slot_bytes,
    }


def plan_report(prepared: PreparedInline, report: dict[str, Any]) -> RenderableType:
    """Returns the plan for a terminal.

    Args:
      prepared: The prepared job.
      report: The plan as JSON values.
    """
    tables = report_table("plan", "table", "rows", "dim", "dtype", "layout")
    for name, spec in prepared.tables.items():
        tables.add_row(name, thousands(spec.rows), str(spec.dim), spec.dtype, spec.layout.kind)
    signatures = report_table("signatures", "signature", "takes", "gives")
    for name, signature in report["signatures"].items():
        # An input may be sent as several tensors.
        takes = ", ".join(tensor for tensors in signature["inputs"].values() for tensor in tensors)
        # Names of tensors come from the model, and rich would take brackets in them for styles.
        signatures.add_row(name, escape(takes), escape(", ".join(signature["outputs"])))
    # Either all data files of the checkpoint are linked, or the variables are copied.
    links = prepared.variables.links
    copies = f"{size_text(report['written_bytes'])} to be copied"
    if links:
        copies = f"{count_text(len(links), 'data file')} to be linked"
    tasks = count_text(report["tasks"], "task")
    workers = count_text(report["workers"], "worker")
    memory = size_text(report["peak_memory_bytes"])
    load_memory = size_text(report["load_bytes"])
    return Group(
        tables,
        signatures,
        Text(
            f"{copies}, {tasks} on {workers} with at most {memory} of memory; a server, and the "
            f"proof, hold {load_memory} of tables while they load"
        ),
        *[Text(f"note: {note}") for note in prepared.notes],
        Text(f"to be written: {report['destination']}"),
    )


def published_report(report: dict[str, Any]) -> RenderableType:
    """Returns the report of a published SavedModel for a terminal.

    Args:
      report: The report as JSON values.
    """
    proof = report["verification"]
    # A table that does not fit into memory is replaced by the rows of the examples.
    loader = " and ".join(proof["loaded_by"]) or "the rows of the examples"
    proofs = report_table(
        f"{report['model']} version {report['version']}", "checked", "against", "result"
    )
    for name, errors in proof["max_abs_error"].items():
        against = f"the original model, {proof['examples']} examples, by {loader}"
        largest = max(errors.values(), default=0.0)
        proofs.add_row(f"signature {name}", against, f"largest difference {largest:.2g}")
    # In capitals, so that nobody overlooks it among the proofs.
    if not proof["proved"]:
        proofs.add_row("all signatures", "the original model", "NOT COMPARED (--unproved)")
    notes = [Text(f"note: {note}") for note in [*report["notes"], proof["note"]] if note]
    size = f"{size_text(report['table_bytes'])} of tables, {report['data']}"
    return Group(
        proofs,
        *notes,
        Text(f"published SavedModel {report['saved_model']} ({size})"),
        *unverified_lines(proof["unverified"]),
    )

"""What is in a checkpoint, for people (tables for a terminal) and for programs (JSON values)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from export.checkpoint.formats.object_graph import VARIABLE_SUFFIX, ObjectGraph
from export.checkpoint.inventory.specs import Inventory, TableSpec
from export.checkpoint.layouts import Mod, SparseCore
from export.checkpoint.variables import Entry
from export.report_text import count_text, report_table, size_text, thousands

if TYPE_CHECKING:
    from export.tables.plan import ExportPlan

VARIABLES_SHOWN = 20
TABLES_SHOWN = 100
LINES_SHOWN = 20


def inventory_json(inventory: Inventory, problems: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the inventory as JSON values; every variable of the checkpoint is in it once.

    Args:
      inventory: What `recognise` made of the checkpoint.
      problems: The problems of its data files; none if it is complete.
    """
    return {
        "checkpoint": inventory.checkpoint,
        "fingerprint": inventory.fingerprint,
        "storage": inventory.storage,
        "saved_by": "objects" if inventory.objects else "names",
        "step": inventory.step,
        "complete": not problems,
        "problems": list(problems),
        "tables": {table.name: _table_json(table) for table in inventory.tables},
        "rejected": [asdict(each) for each in inventory.rejected],
        "slots": [
            {
                "name": slot.name,
                "key": slot.key,
                "of": slot.trained_key or None,
                "bytes": slot.bytes,
            }
            for slot in inventory.slots
        ],
        "slot_bytes": inventory.slot_bytes,
        "duplicates": [
            {"key": duplicate.key, "of": duplicate.original_key, "bytes": duplicate.bytes}
            for duplicate in inventory.duplicates
        ],
        "dense": [_entry_json(entry) for entry in inventory.dense],
        "candidates": [entry.key for entry in inventory.candidates],
    }


def inventory_table(
    inventory: Inventory, problems: Sequence[str] = (), graph: ObjectGraph | None = None
) -> RenderableType:
    """Returns the inventory for a terminal: tables, what is left out, and the largest of the other
    variables.

    Args:
      inventory: What `recognise` found in the checkpoint.
      problems: The problems of its data files; none if it is complete.
      graph: Its object graph, by which variables have the names of their layers.
    """
    step = "no step recorded" if inventory.step is None else f"step {inventory.step}"
    saved = "saved as objects" if inventory.objects else "saved by names"
    if inventory.storage != "TensorFlow":
        saved = f"saved by {inventory.storage}"
    parts: list[RenderableType] = [
        Text(f"checkpoint {inventory.checkpoint}, {step}, {saved}, {inventory.fingerprint}")
    ]
    parts += _lines(f"incomplete: {problem}" for problem in problems) or [
        Text("all data files are there")
    ]
    shown = sorted(
        sorted(inventory.tables, key=lambda spec: -spec.bytes)[:TABLES_SHOWN],
        key=lambda spec: spec.name,
    )
    title = (
        "tables"
        if len(shown) == len(inventory.tables)
        else f"tables ({len(inventory.tables)}), the largest"
    )
    tables = report_table(
        title, "table", "rows", "dim", "dtype", "size", "layout", "slices", "slots", "origin"
    )
    for spec in shown:
        slots = ", ".join(slot.name for slot in spec.slots)
        slices = f"{spec.slices} in {spec.files} files" if spec.files > 1 else str(spec.slices)
        row = (
            thousands(spec.rows),
            str(spec.dim),
            spec.dtype,
            size_text(spec.bytes),
            _layout_text(spec),
            slices,
        )
        tables.add_row(escape(spec.name), *row, escape(slots), spec.origin)
    parts.append(tables if inventory.tables else Text("no table is recognized"))
    parts += _lines(
        f"stored twice, read once: {_without_suffix(duplicate.key)} is "
        f"{_without_suffix(duplicate.original_key)}"
        for duplicate in inventory.duplicates
    )
    parts += _lines(
        f"note: table {spec.name}: {spec.note}" for spec in inventory.tables if spec.note
    )
    parts += _lines(
        f"not exported: {rejected.name}: {rejected.reason}" for rejected in inventory.rejected
    )
    if inventory.slots:
        count = count_text(len(inventory.slots), "optimizer variable")
        saved_bytes = size_text(inventory.slot_bytes)
        parts.append(Text(f"left out: {count}, which saves {saved_bytes}"))
    candidates = inventory.candidates
    known = {entry.key for entry in candidates}
    others = sorted(
        (entry for entry in inventory.dense if entry.key not in known),
        key=lambda entry: (-entry.bytes, entry.key),
    )
    paths = {} if graph is None else graph.paths_by_key
    parts += _variables(
        f"might be tables ({len(candidates)}); --table NAME=KEY names one", candidates, paths
    )
    parts += _variables(f"other variables ({len(others)})", others, paths)
    return Group(*parts)


def plan_table(plan: ExportPlan, notes: Sequence[str] = ()) -> RenderableType:
    """Returns a plan for a terminal: what would be read and written, what that takes, and what else
    is to be known.
    """
    tables = report_table(
        "plan", "table", "rows", "dim", "dtype", "size", "layout", "slices", "segments"
    )
    for table in plan.tables:
        spec = table.spec
        counts = (
            str(spec.slices),
            f"{table.segments}, linked" if table.linked else str(table.segments),
        )
        shape = (thousands(spec.rows), str(spec.dim), table.dtype, size_text(table.bytes))
        tables.add_row(escape(spec.name), *shape, _layout_text(spec), *counts)
    local = f"at most {size_text(plan.local_bytes)}"
    total = (
        f"{size_text(plan.read_bytes)} read, {size_text(plan.bytes)} written"
        + (f" ({local} on the local disk at a time), " if plan.local_bytes < plan.bytes else ", ")
        + (f"{size_text(plan.linked_bytes)} linked, " if plan.links else "")
        + (
            f"segments that equal those of version {plan.older_version} reused, "
            if plan.older_version is not None
            else ""
        )
        + f"{count_text(len(plan.tasks) + len(plan.links), 'file')}, "
        f"{count_text(len(plan.work), 'task')} on {count_text(plan.workers, 'worker')} with at "
        f"most {size_text(plan.peak_memory_bytes)} of memory"
        + (
            f"; {size_text(plan.left_out_bytes)} of slot variables left out"
            if plan.left_out_bytes
            else ""
        )
    )
    noted = [Text(f"note: {note}") for note in (*notes, *plan.notes)]
    return Group(tables, *noted, Text(total))


def _lines(texts: Iterable[str]) -> list[Text]:
    """Returns the first lines of one kind, and how many more there are."""
    lines = list(texts)
    more = (
        [Text(f"... and {len(lines) - LINES_SHOWN} more; --json lists all")]
        if len(lines) > LINES_SHOWN
        else []
    )
    return [Text(line) for line in lines[:LINES_SHOWN]] + more


def _variables(
    title: str, entries: Sequence[Entry], paths: Mapping[str, str]
) -> list[RenderableType]:
    """Returns variables under a line that may be wider than their table; nothing of none."""
    if not entries:
        return []
    if len(entries) > VARIABLES_SHOWN:
        title += f", the first {VARIABLES_SHOWN}; --json lists all"
    variables = report_table("", "variable", "shape", "dtype", "size")
    for entry in entries[:VARIABLES_SHOWN]:
        name = _variable_name(entry.key, paths)
        variables.add_row(
            escape(name), escape(str(list(entry.shape))), entry.dtype, size_text(entry.bytes)
        )
    return [Text(title), variables]


def _variable_name(key: str, paths: Mapping[str, str]) -> str:
    """Returns the shortest name by which `--table` finds a variable: its key without the suffix, or
    its path by the layers if its key leads through an optimizer.
    """
    name = _without_suffix(key)
    path = paths.get(key, "")
    same = not path or path == name.replace("/", ".")
    return name if same else path


def _without_suffix(key: str) -> str:
    """Returns a key without what TensorFlow appends to those of all variables."""
    return key.removesuffix(VARIABLE_SUFFIX)


def _layout_text(spec: TableSpec) -> str:
    """Returns a table's layout for reading, e.g. `sparse core 8 x 240, offset 128, rotation 4`."""
    layout = spec.layout
    if isinstance(layout, SparseCore):
        place = (
            f", offset {layout.offset}, rotation {layout.rotation}"
            if layout.offset or layout.rotation
            else ""
        )
        return f"sparse core {layout.cores} x {layout.core_rows}{place}"
    return f"mod {layout.lanes}" if isinstance(layout, Mod) else "plain"


def _table_json(spec: TableSpec) -> dict[str, Any]:
    fields = asdict(replace(spec, slots=()))
    # `inspect` reads no rows, so it proves no layout.
    shown = {name: fields[name] for name in fields if name not in ("name", "proof")}
    layout = {"kind": spec.layout.kind, **fields["layout"]}
    slots = [slot.name for slot in spec.slots]
    return shown | {
        "layout": layout,
        "slots": slots,
        "keys": spec.keys or None,
        "note": spec.note or None,
    }


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {"key": entry.key, "shape": entry.shape, "dtype": entry.dtype, "bytes": entry.bytes}

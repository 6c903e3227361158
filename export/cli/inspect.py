"""The content of a checkpoint, as tables for a terminal and as JSON values for programs."""

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
"""The number of variables that a list shows; --json lists all."""
TABLES_SHOWN = 100
"""The number of tables that are shown, the largest ones."""
LINES_SHOWN = 20
"""The number of lines of one kind, such as notes, that are shown."""


def inventory_json(inventory: Inventory, problems: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the inventory as JSON values; every variable of the checkpoint is in it once.

    Args:
      inventory: The inventory that `recognize` returned.
      problems: The problems of the checkpoint's data files; none if it is complete.
    """
    return {
        "checkpoint": inventory.checkpoint,
        "fingerprint": inventory.fingerprint,
        "storage": inventory.storage,
        "saved_by": "objects" if inventory.objects else "names",
        "step": inventory.step,
        "complete": not problems,
        "problems": list(problems),
        "notes": list(inventory.notes),
        "tables": {table.name: _table_json(table) for table in inventory.tables},
        "rejected": [asdict(rejected) for rejected in inventory.rejected],
        # Empty texts of the inventory are null in JSON.
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
    """Returns the inventory for a terminal: tables, notes, and the largest of the other variables.

    Args:
      inventory: The inventory that `recognize` returned.
      problems: The problems of the checkpoint's data files; none if it is complete.
      graph: The object graph, by which variables have the names of their layers; None: there is
        none.
    """
    parts: list[RenderableType] = [Text(_origin_text(inventory))]
    if problems:
        parts += _lines(f"incomplete: {problem}" for problem in problems)
    else:
        parts.append(Text("all data files are there"))
    if inventory.tables:
        parts.append(_tables(inventory))
    else:
        parts.append(Text("no table is recognized"))
    parts += _lines(
        f"stored twice, read once: {_without_suffix(duplicate.key)} is "
        f"{_without_suffix(duplicate.original_key)}"
        for duplicate in inventory.duplicates
    )
    parts += _lines(f"note: {note}" for note in inventory.notes)
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

    # Variables that might be tables are among the dense ones, and are listed on their own.
    candidates = inventory.candidates
    candidate_keys = {entry.key for entry in candidates}
    other_variables = sorted(
        (entry for entry in inventory.dense if entry.key not in candidate_keys),
        key=lambda entry: (-entry.bytes, entry.key),
    )
    paths: Mapping[str, str] = {}
    if graph is not None:
        paths = graph.paths_by_key
    parts += _variables(
        f"might be tables ({len(candidates)}); --table NAME=KEY names one", candidates, paths
    )
    parts += _variables(f"other variables ({len(other_variables)})", other_variables, paths)
    return Group(*parts)


def _origin_text(inventory: Inventory) -> str:
    """Returns the line that says which checkpoint it is, and what saved it."""
    step = "no step recorded"
    if inventory.step is not None:
        step = f"step {inventory.step}"
    saved_by = "saved by names"
    if inventory.storage != "TensorFlow":
        saved_by = f"saved by {inventory.storage}"
    elif inventory.objects:
        saved_by = "saved as objects"
    return f"checkpoint {inventory.checkpoint}, {step}, {saved_by}, {inventory.fingerprint}"


def _tables(inventory: Inventory) -> RenderableType:
    """Returns the largest tables, in the order of their names."""
    largest = sorted(inventory.tables, key=lambda spec: -spec.bytes)[:TABLES_SHOWN]
    title = "tables"
    if len(largest) < len(inventory.tables):
        title = f"tables ({len(inventory.tables)}), the largest"
    tables = report_table(
        title, "table", "rows", "dim", "dtype", "size", "layout", "slices", "slots", "origin"
    )
    for spec in sorted(largest, key=lambda spec: spec.name):
        slots = ", ".join(slot.name for slot in spec.slots)
        slices = str(spec.slices)
        if spec.files > 1:
            slices = f"{spec.slices} in {spec.files} files"
        # Names come from the checkpoint, and rich would take brackets in them for styles.
        tables.add_row(
            escape(spec.name),
            thousands(spec.rows),
            str(spec.dim),
            spec.dtype,
            size_text(spec.bytes),
            _layout_text(spec),
            slices,
            escape(slots),
            spec.origin,
        )
    return tables


def plan_table(plan: ExportPlan, notes: Sequence[str] = ()) -> RenderableType:
    """Returns a plan for a terminal: the tables, notes, and the bytes, tasks and memory that it
    takes.
    """
    tables = report_table(
        "plan", "table", "rows", "dim", "dtype", "size", "layout", "slices", "segments"
    )
    for table in plan.tables:
        spec = table.spec
        segments = str(table.segments)
        if table.linked:
            segments += ", linked"
        tables.add_row(
            escape(spec.name),
            thousands(spec.rows),
            str(spec.dim),
            table.dtype,
            size_text(table.bytes),
            _layout_text(spec),
            str(spec.slices),
            segments,
        )
    note_lines = [Text(f"note: {note}") for note in (*notes, *plan.notes)]
    return Group(tables, *note_lines, Text(_totals_text(plan)))


def _totals_text(plan: ExportPlan) -> str:
    """Returns the line about the bytes, tasks and memory of a plan."""
    text = f"{size_text(plan.read_bytes)} read, {size_text(plan.bytes)} written"
    # A bundle for a store is sent, and removed here, while it is written.
    if plan.local_bytes < plan.bytes:
        text += f" (at most {size_text(plan.local_bytes)} on the local disk at a time)"
    if plan.links:
        text += f", {size_text(plan.linked_bytes)} linked"
    if plan.older_version is not None:
        text += f", segments that equal those of version {plan.older_version} reused"
    text += (
        f", {count_text(len(plan.tasks) + len(plan.links), 'file')}, "
        f"{count_text(len(plan.all_tasks), 'task')} on {count_text(plan.workers, 'worker')} with "
        f"at most {size_text(plan.peak_memory_bytes)} of memory"
    )
    if plan.left_out_bytes:
        text += f"; {size_text(plan.left_out_bytes)} of slot variables left out"
    return text


def _lines(texts: Iterable[str]) -> list[Text]:
    """Returns the first lines of one kind, and a line with the number of the omitted ones."""
    all_texts = list(texts)
    lines = [Text(text) for text in all_texts[:LINES_SHOWN]]
    omitted_count = len(all_texts) - LINES_SHOWN
    if omitted_count > 0:
        lines.append(Text(f"... and {omitted_count} more; --json lists all"))
    return lines


def _variables(
    title: str, entries: Sequence[Entry], paths: Mapping[str, str]
) -> list[RenderableType]:
    """Returns a table of variables under its title; [] without variables."""
    if not entries:
        return []
    if len(entries) > VARIABLES_SHOWN:
        title += f", the first {VARIABLES_SHOWN}; --json lists all"
    # A title of the table itself would be broken at the table's width.
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
    if not path or path == name.replace("/", "."):
        return name
    return path


def _without_suffix(key: str) -> str:
    """Returns a key without the suffix that TensorFlow appends to the keys of all variables."""
    return key.removesuffix(VARIABLE_SUFFIX)


def _layout_text(spec: TableSpec) -> str:
    """Returns a table's layout for reading, e.g. `sparse core 8 x 240, offset 128, rotation 4`."""
    layout = spec.layout
    if isinstance(layout, SparseCore):
        text = f"sparse core {layout.cores} x {layout.core_rows}"
        if layout.offset or layout.rotation:
            text += f", offset {layout.offset}, rotation {layout.rotation}"
        return text
    if isinstance(layout, Mod):
        return f"mod {layout.lanes}"
    return "plain"


def _table_json(spec: TableSpec) -> dict[str, Any]:
    values = asdict(replace(spec, slots=()))
    # The name is the key of this object. `inspect` reads no rows, so it proves no layout.
    del values["name"]
    del values["proof"]
    return values | {
        "layout": {"kind": spec.layout.kind, **values["layout"]},
        "slots": [slot.name for slot in spec.slots],
        "keys": spec.keys or None,
        "note": spec.note or None,
        "combiner": spec.combiner or None,
    }


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {"key": entry.key, "shape": entry.shape, "dtype": entry.dtype, "bytes": entry.bytes}

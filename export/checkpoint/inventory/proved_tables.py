"""Layouts of tables that trained ids prove: derived where nothing records the layout, and compared
where the training program recorded it or the user states it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bundle.format.manifest import TrainedIdsCheck
from export.checkpoint.inventory.findings import Findings
from export.checkpoint.inventory.sparsecore import LayoutContradiction, check_stack
from export.checkpoint.inventory.specs import Inventory, SlotSpec, TableSpec
from export.checkpoint.layout_proofs import cannot_be_proved, prove_layouts
from export.checkpoint.layouts import SparseCore, layout_text
from export.checkpoint.reader import Checkpoint
from export.checkpoint.slot_marks import SlotReader
from export.checkpoint.trained_rows import TrainedRows
from export.checkpoint.variables import Entry
from export.errors import NotConvertible
from export.report_text import trained_ids_text

AVERAGES = re.compile(r"average|(^|[^a-z])ema([^a-z]|$)", re.IGNORECASE)
"""The names of slot variables that hold averages of the rows, so that their initial rows differ as
the rows themselves do.
"""


def derive_tables(
    findings: Findings,
    key: str,
    tables: Mapping[str, TableSpec],
    trained: Mapping[str, TrainedRows],
) -> None:
    """Adds the tables of one variable, with the layouts that trained rows prove. A table without
    trained rows is rejected.

    Args:
      findings: The findings of the rules.
      key: The key of the variable.
      tables: All tables of the variable.
      trained: The rows that training read, by the name of a table.

    Raises:
      NotConvertible: The trained rows fit no layout, or several equally well.
    """
    slots = [slot for slot in findings.slots.values() if slot.trained_key == key]
    if not any(name in trained for name in tables):
        for name in tables:
            findings.reject(name, key, cannot_be_proved(key, has_slots=bool(slots)))
        return
    reader = slot_reader(findings.checkpoint, tables.values(), slots)
    starts = _slice_starts(findings.checkpoint.entries[key])
    proved_layouts = prove_layouts(reader, key, starts, list(tables.values()), trained)
    derived = []
    for name, table in tables.items():
        if name not in proved_layouts:
            findings.reject(name, key, cannot_be_proved(key, has_slots=bool(slots)))
            continue
        layout = proved_layouts[name].layout
        proof = proved_layouts[name].proof
        note = f"its layout ({layout_text(layout)}) is derived: {trained_ids_text(proof)}"
        findings.tables[name] = replace(table, layout=layout, proof=proof, note=note)
        if isinstance(layout, SparseCore):
            derived.append(findings.tables[name])
    try:
        check_stack(derived)
    except LayoutContradiction as problem:
        raise NotConvertible(
            f"the ids of training contradict each other: by them, {problem} ({key!r}); check that "
            "each table has ids of its own, and that every table of the stack is listed with its "
            "rows"
        ) from problem


def compare_tables(
    checkpoint: Checkpoint, inventory: Inventory, trained: Mapping[str, TrainedRows]
) -> Inventory:
    """Compares the layouts of tables with trained rows.

    Returns:
      The inventory, in which each table with trained rows records how these agree with its layout.

    Raises:
      NotConvertible: Trained rows contradict a layout, or there are no slot variables.
    """
    tables_by_key: dict[str, list[TableSpec]] = {}
    for table in inventory.tables:
        # Rows of a dump are found by their keys, so they have no layout.
        # Derived layouts have already been proved by the same ids.
        if not table.derived and not table.keys:
            tables_by_key.setdefault(table.key, []).append(table)
    # Tables of one variable are compared together: each rules out rows of the others.
    compared_tables: dict[str, TableSpec] = {}
    for tables in tables_by_key.values():
        proofs = _proofs(checkpoint, tables, tables[0].slots, trained)
        for table in tables:
            if table.name in proofs:
                compared_tables[table.name] = _with_note(replace(table, proof=proofs[table.name]))
    if not compared_tables:
        return inventory
    return replace(
        inventory,
        tables=tuple(compared_tables.get(table.name, table) for table in inventory.tables),
    )


def proofs_of(
    findings: Findings, tables: Sequence[TableSpec], trained: Mapping[str, TrainedRows]
) -> dict[str, TrainedIdsCheck]:
    """Returns how trained rows agree with the layouts of the tables of one variable, by the names
    of the tables that have trained rows.

    Raises:
      NotConvertible: See `compare_tables`.
    """
    slots = [slot for slot in findings.slots.values() if slot.trained_key == tables[0].key]
    return _proofs(findings.checkpoint, tables, slots, trained)


def _proofs(
    checkpoint: Checkpoint,
    tables: Sequence[TableSpec],
    slots: Sequence[SlotSpec],
    trained: Mapping[str, TrainedRows],
) -> dict[str, TrainedIdsCheck]:
    if not any(table.name in trained for table in tables):
        return {}
    key = tables[0].key
    reader = slot_reader(checkpoint, tables, slots)
    starts = _slice_starts(checkpoint.entries[key])
    proved_layouts = prove_layouts(reader, key, starts, tables, trained)
    return {name: layout.proof for name, layout in proved_layouts.items()}


def slot_reader(
    checkpoint: Checkpoint, tables: Iterable[TableSpec], slots: Sequence[SlotSpec]
) -> SlotReader:
    """Returns a reader of the slot variables of one variable that have a row for each of its rows,
    except averages of the rows.
    """
    tables = list(tables)
    rows = tables[0].stored[0]
    row_slots = []
    for slot in sorted(slots, key=lambda slot: slot.name):
        entry = checkpoint.entries[slot.key]
        has_rows = 1 <= len(entry.shape) <= 2 and entry.shape[0] == rows and entry.itemsize > 0
        if has_rows and entry.bytes and not AVERAGES.search(slot.name):
            row_slots.append((slot.name, slot.key))
    # Columns beyond the narrowest table are padding in the rows of that table.
    return SlotReader(checkpoint, row_slots, rows, min(table.dim for table in tables))


def _with_note(table: TableSpec) -> TableSpec:
    """Returns a table with a note of how trained ids agree with its layout."""
    proof = table.proof
    assert proof is not None  # noqa: S101 - it was compared
    if table.stated and not proof.decisive:
        return replace(table, note=f"{table.note}; {trained_ids_text(proof)}")
    # The proof replaces the note that the statement may be wrong.
    if table.stated:
        return replace(table, note=f"its layout is stated, and proved: {trained_ids_text(proof)}")
    agreement = f"its layout was compared with trained ids: {trained_ids_text(proof)}"
    if table.note:
        agreement = f"{table.note}; {agreement}"
    return replace(table, note=agreement)


def _slice_starts(entry: Entry) -> list[int]:
    """Returns the first stored row of each slice of a variable."""
    return sorted({part.starts[0] for part in entry.slices})

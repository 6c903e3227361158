"""Layouts of tables that trained ids prove: derived where nothing records the layout, and compared
where the training program recorded it or the user states it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bundle.format.manifest import TrainedIdsCheck
from export.checkpoint.inventory.findings import Findings
from export.checkpoint.inventory.layout_proofs import ProvedLayout, cannot_be_proved, prove_layouts
from export.checkpoint.inventory.sparsecore import LayoutContradiction, check_stack
from export.checkpoint.inventory.specs import Inventory, SlotSpec, TableSpec
from export.checkpoint.layouts import SparseCore, layout_text
from export.checkpoint.reader import Checkpoint
from export.checkpoint.slot_marks import SlotReader
from export.checkpoint.trained_rows import TrainedRows
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
    proved_layouts = _proved_layouts(findings.checkpoint, list(tables.values()), slots, trained)
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
        proved_layouts = _proved_layouts(checkpoint, tables, tables[0].slots, trained)
        for table in tables:
            if table.name in proved_layouts:
                compared_tables[table.name] = _with_proof(table, proved_layouts[table.name].proof)
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
    proved_layouts = _proved_layouts(findings.checkpoint, tables, slots, trained)
    return {name: proved.proof for name, proved in proved_layouts.items()}


def _proved_layouts(
    checkpoint: Checkpoint,
    tables: Sequence[TableSpec],
    slots: Sequence[SlotSpec],
    trained: Mapping[str, TrainedRows],
) -> dict[str, ProvedLayout]:
    """Returns the layouts of the tables of one variable that have trained rows."""
    entry = checkpoint.entries[tables[0].key]
    rows = entry.shape[0]
    row_slots = []
    for slot in sorted(slots, key=lambda slot: slot.name):
        state = checkpoint.entries[slot.key]
        has_rows = 1 <= len(state.shape) <= 2 and state.shape[0] == rows and state.itemsize > 0
        if has_rows and state.bytes and not AVERAGES.search(slot.name):
            row_slots.append((slot.name, slot.key))
    # Columns beyond the narrowest table are padding in the rows of that table.
    reader = SlotReader(checkpoint, row_slots, rows, min(table.dim for table in tables))
    slice_starts = sorted({part.starts[0] for part in entry.slices})
    return prove_layouts(reader, entry.key, slice_starts, tables, trained)


def _with_proof(table: TableSpec, proof: TrainedIdsCheck) -> TableSpec:
    """Returns a table with a note of how trained ids agree with its layout."""
    agreement = trained_ids_text(proof)
    if not table.stated:
        agreement = f"its layout was compared with trained ids: {agreement}"
    note = f"{table.note}; {agreement}" if table.note else agreement
    # A proof replaces the note that the statement may be wrong.
    if table.stated and proof.decisive:
        note = f"its layout is stated, and proved: {agreement}"
    return replace(table, proof=proof, note=note)

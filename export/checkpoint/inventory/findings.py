"""The findings of the rules of recognition: what they have found in a checkpoint so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from export.checkpoint.inventory.specs import (
    Duplicate,
    Inventory,
    Origin,
    RejectedTable,
    SlotSpec,
    TableSpec,
)
from export.checkpoint.layouts import Layout, Plain
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Entry, StackedTable


@dataclass
class Findings:
    """Tables, slot variables and other variables. Each rule adds to them, and none claims what an
    earlier rule has found.

    Attributes:
      checkpoint: The open checkpoint.
      tables: The tables by name.
      rejected: The tables that cannot be exported.
      slots: The slot variables by key.
      duplicates: The variables that hold a table a second time.
    """

    checkpoint: Checkpoint
    tables: dict[str, TableSpec] = field(default_factory=dict)
    rejected: list[RejectedTable] = field(default_factory=list)
    slots: dict[str, SlotSpec] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)

    @cached_property
    def paths_by_key(self) -> dict[str, str]:
        """The attribute path of each variable of the object graph, by its key."""
        graph = self.checkpoint.graph
        if graph is None:
            return {}
        return graph.paths_by_key

    @cached_property
    def keys_by_path(self) -> dict[str, str]:
        """The key of the variable at each attribute path of the object graph."""
        return {
            path: key for key, path in self.paths_by_key.items() if key in self.checkpoint.entries
        }

    def add_tables(self, tables: Iterable[tuple[TableSpec, str]]) -> None:
        """Adds the tables that one rule found.

        Args:
          tables: Each table under its short name, and the longer name that it gets where several
            tables have the same short name.
        """
        tables = list(tables)
        # Names from earlier rules count, too, as they make a short name ambiguous.
        counts = Counter(table.name for table, _ in tables) + Counter(list(self.tables))
        for table, longer_name in tables:
            name = table.name
            if counts[name] > 1:
                name = longer_name
            if name in self.tables:
                name = table.key
            # No table may replace another one, whatever their names are.
            while name in self.tables:
                name += "'"
            self.tables[name] = replace(table, name=name)

    def add_slot(self, name: str, key: str, variable_key: str) -> None:
        """Adds a slot variable if the checkpoint holds it."""
        if (entry := self.checkpoint.entries.get(key)) is not None:
            self.slots[key] = SlotSpec(name, key, variable_key, entry.bytes)

    def reject(self, name: str, key: str, reason: str, *, is_stack: bool = False) -> None:
        """Adds a table, or a stack of tables, that cannot be exported."""
        self.rejected.append(RejectedTable(name, key, reason, is_stack))

    def claimed_keys(self) -> set[str]:
        """Returns the keys of all variables that a rule has found."""
        keys = {table.key for table in self.tables.values()}
        keys |= {rejected.key for rejected in self.rejected}
        # The keys of a dumped table belong to it, as its rows do.
        keys |= {table.keys.key for table in self.checkpoint.storage.dumped.values()}
        keys |= {duplicate.key for duplicate in self.duplicates}
        return keys | set(self.slots)

    def inventory(self, step: int | None = None) -> Inventory:
        """Returns the findings, sorted: the tables with their slot variables, and every other
        variable.
        """
        slots_by_key: dict[str, list[SlotSpec]] = {}
        for slot in sorted(self.slots.values(), key=lambda slot: slot.name):
            slots_by_key.setdefault(slot.trained_key, []).append(slot)
        tables = []
        for _, table in sorted(self.tables.items()):
            slots = slots_by_key.get(table.key)
            tables.append(replace(table, slots=tuple(slots)) if slots else table)

        claimed_keys = self.claimed_keys()
        dense = []
        for key, entry in self.checkpoint.entries.items():
            # Strings are no weights: the object graph, or the state of a Python object.
            if key not in claimed_keys and entry.dtype != "string":
                dense.append(entry)
        return Inventory(
            checkpoint=self.checkpoint.name,
            fingerprint=self.checkpoint.fingerprint,
            objects=self.checkpoint.graph is not None,
            step=step,
            tables=tuple(tables),
            rejected=tuple(sorted(self.rejected, key=lambda rejected: rejected.name)),
            slots=tuple(slot for _, slot in sorted(self.slots.items())),
            dense=tuple(dense),
            duplicates=tuple(self.duplicates),
            storage=self.checkpoint.storage.kind,
            notes=self.checkpoint.storage.notes,
        )


def find_dumped(findings: Findings) -> None:
    """Adds the tables that a parameter server dumped."""
    tables = []
    for dumped in findings.checkpoint.storage.dumped.values():
        spec = table_spec(dumped.name, dumped.vectors, "dump", "")
        tables.append((replace(spec, keys=dumped.keys.key), dumped.vectors.key))
        for slot, entry in dumped.slots.items():
            findings.add_slot(slot, entry.key, dumped.vectors.key)
    findings.add_tables(tables)


def table_spec(
    name: str,
    entry: Entry,
    origin: Origin,
    path: str,
    *,
    rows: int | None = None,
    dim: int | None = None,
    layout: Layout | None = None,
    note: str = "",
) -> TableSpec:
    """Returns a table in a variable of rank 2. By default, the table is the whole variable."""
    stored = (entry.shape[0], entry.shape[1])
    if rows is None:
        rows = stored[0]
    if dim is None:
        dim = stored[1]
    return TableSpec(
        name=name,
        key=entry.key,
        rows=rows,
        dim=dim,
        dtype=entry.dtype,
        layout=layout or Plain(),
        stored=stored,
        origin=origin,
        path=path,
        slices=entry.pieces,
        files=entry.files,
        bytes=rows * dim * entry.itemsize,
        note=note,
    )


def stacked_spec(table: StackedTable, entry: Entry, origin: Origin, path: str) -> TableSpec:
    """Returns a table in a variable that is its stack."""
    spec = table_spec(
        table.name, entry, origin, path, rows=table.rows, dim=table.dim, layout=table.layout
    )
    return replace(spec, combiner=table.combiner)

"""What the rules of recognition have found in a checkpoint so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

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
from export.checkpoint.variables import Entry


class Found(NamedTuple):
    """A table under its short name, and a longer name for where several tables have the same short
    name.
    """

    table: TableSpec
    longer: str


@dataclass
class Findings:
    """Tables, slot variables and the rest. Each rule adds to them, and none takes what an earlier
    rule has found.

    Attributes:
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
        return {} if graph is None else graph.paths_by_key

    @cached_property
    def keys_by_path(self) -> dict[str, str]:
        """The key of the variable at each attribute path of the object graph."""
        return {
            path: key for key, path in self.paths_by_key.items() if key in self.checkpoint.entries
        }

    def add_tables(self, found: Iterable[Found]) -> None:
        """Adds the tables that one rule found. Tables with the same name get their longer names."""
        found = list(found)
        count = Counter(each.table.name for each in found) + Counter(list(self.tables))
        for table, longer in found:
            name = table.name if count[table.name] == 1 else longer
            name = table.key if name in self.tables else name
            while name in self.tables:  # never over another table
                name += "'"
            self.tables[name] = table if name == table.name else replace(table, name=name)

    def add_slot(self, name: str, key: str, of: str) -> None:
        """Adds a slot variable if the checkpoint holds it."""
        if (entry := self.checkpoint.entries.get(key)) is not None:
            self.slots[key] = SlotSpec(name, key, of, entry.bytes)

    def reject(self, name: str, key: str, reason: str, *, is_stack: bool = False) -> None:
        """Adds a table, or a stack of tables, that cannot be exported."""
        self.rejected.append(RejectedTable(name, key, reason, is_stack))

    def taken(self) -> set[str]:
        """Returns the keys of all variables that a rule has found."""
        tables = {table.key for table in self.tables.values()} | {
            rejected.key for rejected in self.rejected
        }
        keys = {table.keys.key for table in self.checkpoint.storage.dumped.values()}
        return tables | keys | set(self.slots) | {each.key for each in self.duplicates}

    def inventory(self, step: int | None = None) -> Inventory:
        """Returns the findings, sorted: the tables with their slot variables, and every other
        variable.
        """
        own: dict[str, list[SlotSpec]] = {table.key: [] for table in self.tables.values()}
        for slot in sorted(
            (slot for slot in self.slots.values() if slot.of in own), key=lambda slot: slot.name
        ):
            own[slot.of].append(slot)
        ordered = (self.tables[name] for name in sorted(self.tables))
        taken = self.taken()
        return Inventory(
            checkpoint=self.checkpoint.name,
            fingerprint=self.checkpoint.fingerprint,
            objects=self.checkpoint.graph is not None,
            step=step,
            tables=tuple(
                replace(table, slots=tuple(own[table.key])) if own[table.key] else table
                for table in ordered
            ),
            rejected=tuple(sorted(self.rejected, key=lambda rejected: rejected.name)),
            slots=tuple(map(self.slots.__getitem__, sorted(self.slots))),
            dense=tuple(
                entry
                for key, entry in self.checkpoint.entries.items()
                if key not in taken and entry.dtype != "string"
            ),
            duplicates=tuple(self.duplicates),
            storage=self.checkpoint.storage.kind,
        )


def find_dumped(found: Findings) -> None:
    """Adds the tables that a parameter server dumped."""
    tables = []
    for dumped in found.checkpoint.storage.dumped.values():
        spec = table_spec(dumped.name, dumped.vectors, "dump", "")
        tables.append(Found(replace(spec, keys=dumped.keys.key), dumped.vectors.key))
        for slot, entry in dumped.slots.items():
            found.add_slot(slot, entry.key, dumped.vectors.key)
    found.add_tables(tables)


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
    """Returns a table in a variable of rank 2. By default, it is the whole variable."""
    stored = (entry.shape[0], entry.shape[1])
    rows = stored[0] if rows is None else rows
    dim = stored[1] if dim is None else dim
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

"""Finds the tables of feature specifications in a checkpoint: by a layout that training recorded or
the user states, else by where the specifications themselves place them in stacks.

A layout is never guessed: it decides which row each id reads, and no shape tells a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from bundle.arithmetic import ceil_div
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory, StatedTable, Statements, TableSpec
from export.checkpoint.layouts import SparseCore
from export.checkpoint.reader import Checkpoint
from export.errors import NotConvertible
from export.front_end.recipe_layouts import stack_key
from export.jax_models.feature_specs import FeatureSpecs, PlaceInStack, SpecifiedTable

_ROWS_AT_ONCE = 8
"""Tables are padded to a multiple of so many rows on each SparseCore."""
_RECORD = (
    "let training write its layout, `embedding.create_proto_from_feature_specs(feature_specs, "
    "devices, cores_per_device)`, to a file, and name the file as checkpoint.layout"
)
_PREPARE = (
    "prepare feature_specs for the devices of training, or return them unprepared and name the "
    "layout that training wrote as checkpoint.layout"
)


@dataclass(frozen=True)
class SpecifiedTables:
    """The tables of feature specifications beside a checkpoint.

    Attributes:
      specs: the specifications.
      checkpoint: an Orbax checkpoint.
      layouts: tables of the recipe's layout file, by their names.
    """

    specs: FeatureSpecs
    checkpoint: Checkpoint
    layouts: Mapping[str, StatedTable]

    def is_found(self, name: str) -> bool:
        """Returns whether the checkpoint or the layout file tells where a table is.

        Raises:
          NotConvertible: the specifications place it elsewhere.
        """
        found = {table.name: table for table in self._inventory.tables}
        if name not in found:
            return False
        self._check_place(self.specs.tables[name], found[name])
        return True

    def in_stack(self, name: str) -> StatedTable:
        """Returns where a table is by its specification alone.

        Raises:
          NotConvertible: the specification does not place it, or not as the checkpoint stores the
            stack.
        """
        table = self.specs.tables[name]
        place = table.place
        if place is None:
            raise self._missing(table)
        key = self._key_of(table, place)
        cores = self._cores(table, place)
        self._check_stored(table, place, key, cores)
        return StatedTable(
            key=key,
            kind="sparse_core",
            rows=table.rows,
            dim=table.dim,
            cores=cores,
            core_rows=place.stack_rows // cores,
            offset=place.offset,
            rotation=place.rotation,
        )

    def to_derive(self) -> dict[str, StatedTable]:
        """Returns every specified table that lies in a stack whose layout nothing records, with
        the layout to be derived.
        """
        layouts = {}
        for name, table in self.specs.tables.items():
            if self.is_found(name):
                continue
            stack = name if table.place is None else table.place.stack
            key = stack_key(self._inventory, stack)
            if key is not None:
                layouts[name] = StatedTable(key=key, kind="derive", rows=table.rows, dim=table.dim)
        return layouts

    @cached_property
    def _inventory(self) -> Inventory:
        return recognise(self.checkpoint, Statements(layouts=self.layouts))

    def _missing(self, table: SpecifiedTable) -> NotConvertible:
        stacks = ", ".join(rejected.key for rejected in self._inventory.rejected)
        where = f"checkpoint {self.checkpoint.name}"
        if stacks:
            return NotConvertible(
                f"table {table.name!r} of feature_specs is in one of the stacks of {where} "
                f"({stacks}), and neither the checkpoint nor feature_specs tells where: {_RECORD}"
            )
        return NotConvertible(
            f"table {table.name!r} of feature_specs is not in {where}: name its array as "
            f"tables.{table.name}.key; {self._inventory.naming_help()}"
        )

    def _key_of(self, table: SpecifiedTable, place: PlaceInStack) -> str:
        rejected = self._inventory.rejected
        keys = [each.key for each in rejected if each.name == place.stack]
        if len(keys) == 1:
            return keys[0]
        if keys:
            raise NotConvertible(
                f"table {table.name!r} is in stack {place.stack!r}, which the checkpoint has "
                f"several times: {', '.join(keys)}; write a layout file with the key of one "
                "(docs/reference/checkpoints.md)"
            )
        held = ", ".join(repr(each.name) for each in rejected) or "none"
        raise NotConvertible(
            f"feature_specs place table {table.name!r} in stack {place.stack!r}, which is not in "
            f"checkpoint {self.checkpoint.name} (its stacks: {held}); {_PREPARE}"
        )

    def _cores(self, table: SpecifiedTable, place: PlaceInStack) -> int:
        """Returns the number of SparseCores that the specifications were prepared for.

        A table's padded rows are spread evenly, so they are the number of cores times the rows up
        to the next table of the stack. All stacks are prepared for the same devices.
        """
        by_stack: dict[str, list[PlaceInStack]] = {}
        for each in self.specs.tables.values():
            if each.place is not None:
                by_stack.setdefault(each.place.stack, []).append(each.place)
        told = {cores for places in by_stack.values() for cores in _cores_of_stack(places)}
        if len(told) == 1:
            cores = told.pop()
            self._check_padding(cores)
            return cores
        if told:
            numbers = " and ".join(map(str, sorted(told)))
            raise NotConvertible(
                f"feature_specs spread their stacks over {numbers} SparseCores; {_PREPARE}"
            )
        raise NotConvertible(
            f"feature_specs place table {table.name!r} in stack {place.stack!r}, and none "
            "of their stacks has two tables, by which the number of SparseCores would be known: "
            f"{_RECORD}"
        )

    def _check_padding(self, cores: int) -> None:
        for table in self.specs.tables.values():
            if table.place is not None and table.place.padded_rows % (_ROWS_AT_ONCE * cores):
                raise NotConvertible(
                    f"feature_specs pad table {table.name!r} to {table.place.padded_rows} rows, "
                    f"no multiple of {_ROWS_AT_ONCE} on each of {cores} SparseCores; {_PREPARE}"
                )

    def _check_stored(
        self, table: SpecifiedTable, place: PlaceInStack, key: str, cores: int
    ) -> None:
        entry = self.checkpoint.entries[key]
        if entry.shape[0] != place.stack_rows:
            raise NotConvertible(
                f"stack {place.stack!r} of table {table.name!r} has {place.stack_rows} rows by "
                f"feature_specs, and {entry.shape[0]} in the checkpoint ({key!r}); {_PREPARE}"
            )
        # Orbax stores a chunk for each device, which has whole SparseCores.
        chunks = 1 if entry.array is None else ceil_div(entry.shape[0], entry.array.chunk[0])
        if cores % chunks:
            raise NotConvertible(
                f"stack {place.stack!r} of table {table.name!r} is spread over {cores} SparseCores "
                f"by feature_specs, and stored in {chunks} chunks of rows, one for each device; "
                f"{_PREPARE}"
            )

    def _check_place(self, table: SpecifiedTable, stored: TableSpec) -> None:
        """Checks that a table lies where its prepared specification says."""
        place = table.place
        layout = stored.layout
        if place is None or not isinstance(layout, SparseCore):
            return
        specified = (place.stack_rows, place.offset, place.rotation)
        recorded = (layout.cores * layout.core_rows, layout.offset, layout.rotation)
        if specified != recorded:
            raise NotConvertible(
                f"table {table.name!r} has (rows of its stack, offset, rotation) = {specified} by "
                f"feature_specs, and {recorded} by the layout of {stored.key!r}; {_PREPARE}"
            )


def _cores_of_stack(places: Iterable[PlaceInStack]) -> set[int]:
    """Returns the numbers of SparseCores that the places of one stack imply; one, if they are
    right. Of a stack with one table, or whose other tables are not specified, none.
    """
    ordered = sorted(places, key=lambda place: place.offset)
    if len(ordered) < 2 or sum(each.padded_rows for each in ordered) != ordered[0].stack_rows:
        return set()
    return {
        before.padded_rows // max(1, after.offset - before.offset)
        for before, after in pairwise(ordered)
    }

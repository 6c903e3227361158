"""Finds the tables of feature specifications in a checkpoint: by a layout that training recorded or
the user states, or else by the positions in stacks that the specifications themselves state.

A layout is never guessed: it decides which row an id reads, and no shape reveals a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from bundle.arithmetic import ceil_div
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import (
    FileTable,
    Inventory,
    StatedTable,
    Statements,
    TableSpec,
)
from export.checkpoint.layouts import SparseCore
from export.checkpoint.reader import Checkpoint
from export.errors import NotConvertible
from export.front_end.recipe_layouts import stack_key
from export.jax_models.feature_specs import FeatureSpecs, SpecifiedTable, StackPosition

_ROWS_MULTIPLE = 8
"""Tables are padded to a multiple of this number of rows on each SparseCore."""
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
    """The tables of feature specifications, and the checkpoint that stores them.

    Attributes:
      specs: The specifications.
      checkpoint: An Orbax checkpoint.
      layouts: Tables of the recipe's layout file, by their names.
    """

    specs: FeatureSpecs
    checkpoint: Checkpoint
    layouts: Mapping[str, FileTable]

    def is_found(self, name: str) -> bool:
        """Returns whether the checkpoint or the layout file has the layout of a table.

        Raises:
          NotConvertible: The specifications state another position.
        """
        stored_tables = {table.name: table for table in self._inventory.tables}
        if name not in stored_tables:
            return False
        self._check_position(self.specs.tables[name], stored_tables[name])
        return True

    def in_stack(self, name: str) -> StatedTable:
        """Returns the layout of a table by its specification alone.

        Raises:
          NotConvertible: The specification states no position, or one that contradicts the stack in
            the checkpoint.
        """
        table = self.specs.tables[name]
        position = table.stack_position
        if position is None:
            raise self._missing_error(table)
        key = self._key_of(table, position)
        cores = self._cores(table, position)
        self._check_stored(table, position, key, cores)
        return StatedTable(
            key=key,
            kind="sparse_core",
            rows=table.rows,
            dim=table.dim,
            cores=cores,
            core_rows=position.stack_rows // cores,
            offset=position.offset,
            rotation=position.rotation,
        )

    def to_derive(self) -> dict[str, StatedTable]:
        """Returns every specified table that lies in a stack whose layout nothing records, with
        the layout to be derived.
        """
        layouts = {}
        for name, table in self.specs.tables.items():
            if self.is_found(name):
                continue
            # A table that is not prepared for training is found by its own name in the stack's.
            stack = name if table.stack_position is None else table.stack_position.stack
            key = stack_key(self._inventory, stack)
            if key is not None:
                layouts[name] = StatedTable(key=key, kind="derive", rows=table.rows, dim=table.dim)
        return layouts

    @cached_property
    def _inventory(self) -> Inventory:
        return recognize(self.checkpoint, Statements(layouts=self.layouts))

    def _missing_error(self, table: SpecifiedTable) -> NotConvertible:
        stacks = ", ".join(rejected.key for rejected in self._inventory.rejected)
        subject = f"checkpoint {self.checkpoint.name}"
        if stacks:
            return NotConvertible(
                f"table {table.name!r} of feature_specs is in one of the stacks of {subject} "
                f"({stacks}), and neither the checkpoint nor feature_specs states where: {_RECORD}"
            )
        return NotConvertible(
            f"table {table.name!r} of feature_specs is not in {subject}: name its array as "
            f"tables.{table.name}.key; {self._inventory.naming_help()}"
        )

    def _key_of(self, table: SpecifiedTable, position: StackPosition) -> str:
        # An inventory rejects stacks, whose layout it cannot know.
        stacks = self._inventory.rejected
        keys = [stack.key for stack in stacks if stack.name == position.stack]
        if len(keys) == 1:
            return keys[0]
        if keys:
            raise NotConvertible(
                f"table {table.name!r} is in stack {position.stack!r}, which the checkpoint has "
                f"several times: {', '.join(keys)}; write a layout file with the key of one "
                "(docs/reference/layouts.md)"
            )
        stack_names = ", ".join(repr(stack.name) for stack in stacks) or "none"
        raise NotConvertible(
            f"feature_specs place table {table.name!r} in stack {position.stack!r}, which is not "
            f"in checkpoint {self.checkpoint.name} (its stacks: {stack_names}); {_PREPARE}"
        )

    def _cores(self, table: SpecifiedTable, position: StackPosition) -> int:
        """Returns the number of SparseCores that the specifications were prepared for.

        A table's padded rows are spread evenly, so they are the number of cores times the rows up
        to the next table of the stack. All stacks are prepared for the same devices.
        """
        positions_by_stack: dict[str, list[StackPosition]] = {}
        for specified in self.specs.tables.values():
            if specified.stack_position is not None:
                stack = specified.stack_position.stack
                positions_by_stack.setdefault(stack, []).append(specified.stack_position)
        core_counts: set[int] = set()
        for positions in positions_by_stack.values():
            core_counts |= _cores_of_stack(positions)

        # The shape of a stack does not decide it: several numbers of SparseCores have the same
        # shape, and a wrong one reads the rows of other ids.
        if len(core_counts) == 1:
            cores = core_counts.pop()
            self._check_padding(cores)
            return cores
        if core_counts:
            numbers = " and ".join(map(str, sorted(core_counts)))
            raise NotConvertible(
                f"feature_specs spread their stacks over {numbers} SparseCores; {_PREPARE}"
            )
        raise NotConvertible(
            f"feature_specs place table {table.name!r} in stack {position.stack!r}, and none "
            "of their stacks has two tables, by which the number of SparseCores would be known: "
            f"{_RECORD}"
        )

    def _check_padding(self, cores: int) -> None:
        for table in self.specs.tables.values():
            if table.stack_position is None:
                continue
            padded_rows = table.stack_position.padded_rows
            if padded_rows % (_ROWS_MULTIPLE * cores):
                raise NotConvertible(
                    f"feature_specs pad table {table.name!r} to {padded_rows} rows, no multiple of "
                    f"{_ROWS_MULTIPLE} on each of {cores} SparseCores; {_PREPARE}"
                )

    def _check_stored(
        self, table: SpecifiedTable, position: StackPosition, key: str, cores: int
    ) -> None:
        """Checks that the stack in the checkpoint has the rows and devices of a specification."""
        entry = self.checkpoint.entries[key]
        if entry.shape[0] != position.stack_rows:
            raise NotConvertible(
                f"stack {position.stack!r} of table {table.name!r} has {position.stack_rows} rows "
                f"by feature_specs, and {entry.shape[0]} in the checkpoint ({key!r}); {_PREPARE}"
            )
        # Orbax stores a chunk for each device, which has whole SparseCores.
        chunks = 1 if entry.array is None else ceil_div(entry.shape[0], entry.array.chunk[0])
        if cores % chunks:
            raise NotConvertible(
                f"stack {position.stack!r} of table {table.name!r} is spread over {cores} "
                f"SparseCores by feature_specs, and stored in {chunks} chunks of rows, one for "
                f"each device; {_PREPARE}"
            )

    def _check_position(self, table: SpecifiedTable, stored: TableSpec) -> None:
        """Checks that a table lies where its prepared specification says."""
        position = table.stack_position
        layout = stored.layout
        if position is None or not isinstance(layout, SparseCore):
            return
        specified = (position.stack_rows, position.offset, position.rotation)
        recorded = (layout.cores * layout.core_rows, layout.offset, layout.rotation)
        if specified != recorded:
            raise NotConvertible(
                f"table {table.name!r} has (rows of its stack, offset, rotation) = {specified} by "
                f"feature_specs, and {recorded} by the layout of {stored.key!r}; {_PREPARE}"
            )


def _cores_of_stack(positions: Iterable[StackPosition]) -> set[int]:
    """Returns the numbers of SparseCores that the positions of one stack imply: one number, if the
    positions are right; none for a stack of one table, or with tables that are not specified.
    """
    ordered = sorted(positions, key=lambda position: position.offset)
    specified_rows = sum(position.padded_rows for position in ordered)
    if len(ordered) < 2 or specified_rows != ordered[0].stack_rows:
        return set()
    return {
        before.padded_rows // max(1, after.offset - before.offset)
        for before, after in pairwise(ordered)
    }

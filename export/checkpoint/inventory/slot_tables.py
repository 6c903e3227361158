"""Slot variables as tables of their own, for a warm restart: same rows and columns, same layout as their table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from export.checkpoint.inventory.specs import FLOATS, Inventory, TableSpec
from export.checkpoint.reader import Checkpoint

_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")


def with_slots(checkpoint: Checkpoint, inventory: Inventory, names: Iterable[str]) -> Inventory:
    """Adds the slot variables of tables as tables named `<table>.slot.<slot>`; those of another shape stay left out.

    A character of the slot's name that no name of a bundle has becomes a `.`.

    Args:
      checkpoint: the open checkpoint.
      inventory: what `recognise` made of it.
      names: tables whose slot variables are wanted.
    """
    added: dict[str, TableSpec] = {}
    for name in names:
        table = inventory.table(name)
        for slot in table.slots:
            entry = checkpoint.entries[slot.key]
            if entry.shape == table.stored and entry.dtype in FLOATS:
                spec = replace(
                    table,
                    name=f"{name}.slot.{_NO_NAME.sub('.', slot.name)}",
                    key=slot.key,
                    dtype=entry.dtype,
                    slices=entry.pieces,
                    files=entry.files,
                    bytes=table.rows * table.dim * entry.itemsize,
                    path="",
                    slots=(),
                    note="",
                    slot_of=name,
                )
                added.setdefault(spec.name, spec)
    kept = {table.key for table in added.values()}
    return replace(
        inventory,
        tables=tuple(sorted((*inventory.tables, *added.values()), key=lambda table: table.name)),
        slots=tuple(slot for slot in inventory.slots if slot.key not in kept),
    )

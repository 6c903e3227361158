"""Stacks as a user states them, beside ids that occur in training."""

from __future__ import annotations

from pathlib import Path

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory, StatedTable, Statements
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.trained_rows import TrainedRows
from tests.laws.trained_stacks import DIM, Place, Stack, Statement


def trained_ids(stack: Stack) -> dict[str, TrainedRows]:
    return {
        f"t{number}": TrainedRows(table.trained, f"t{number}.txt")
        for number, table in enumerate(stack.tables)
    }


def stated(rows: int, place: Place | None) -> StatedTable:
    if place is None:
        return StatedTable(key="stack", kind="derive", rows=rows, dim=DIM)
    return StatedTable(
        key="stack",
        kind="sparse_core",
        rows=rows,
        dim=DIM,
        cores=place.cores,
        core_rows=place.core_rows,
        offset=place.offset,
        rotation=place.rotation,
    )


def recognized(checkpoint: Path, stack: Stack, statement: Statement | None) -> Inventory:
    """Recognizes the tables of a stack by a statement; None: derives their layouts."""
    places: list[Place | None] = [None] * len(stack.tables)
    if statement is not None:
        places = list(statement)
    layouts = {
        f"t{number}": stated(len(table.values), place)
        for number, (table, place) in enumerate(zip(stack.tables, places, strict=True))
    }
    return recognize(open_checkpoint(checkpoint), Statements(layouts=layouts), trained_ids(stack))

"""Ids that occur in training prove the layout of any table that they trained, and contradict every
wrong one.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory, StatedTable, Statements
from export.checkpoint.layouts import stored_rows
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.trained_rows import TrainedRows
from export.errors import NotConvertible
from tests.export.checkpoint.tensor_bundles import write_bundle
from tests.properties.trained_stacks import (
    DIM,
    OPTIMIZERS,
    WRONG,
    Place,
    Stack,
    Statement,
    draw_stack,
    is_right,
)


def trained_ids(stack: Stack) -> dict[str, TrainedRows]:
    return {
        f"t{number}": TrainedRows(table.trained, None, True, f"t{number}.txt")
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


def recognised(checkpoint: Path, stack: Stack, statement: Statement | None) -> Inventory:
    """Recognises the tables of a stack by a statement; None: derives their layouts."""
    places = statement or [None] * len(stack.tables)
    layouts = {
        f"t{number}": stated(len(table.values), place)
        for number, (table, place) in enumerate(zip(stack.tables, places, strict=True))
    }
    return recognise(open_checkpoint(checkpoint), Statements(layouts=layouts), trained_ids(stack))


def check_stack(directory: Path, stack: Stack, random: np.random.Generator) -> int:
    """Derives the layout, states it, and states wrong ones; returns how many of these."""
    write_bundle(directory / "ckpt", stack.variables())
    for statement in (None, list(stack.places)):
        for table, trained, place in zip(
            recognised(directory, stack, statement).tables, stack.tables, stack.places, strict=True
        ):
            rows = np.arange(len(trained.values))
            np.testing.assert_array_equal(
                stored_rows(table.layout, rows), place.stored_rows(len(rows))
            )
            assert table.proof is not None
            assert table.proof.decisive
    wrong = 0
    for draw in WRONG.values():
        statement = draw(random, stack)
        if is_right(stack, statement):
            continue
        wrong += 1
        with pytest.raises(NotConvertible, match="contradicts the ids of training"):
            recognised(directory, stack, statement)
    return wrong


@settings(max_examples=settings.default.max_examples // 3)
@given(optimizer=st.sampled_from(list(OPTIMIZERS)), seed=st.integers(0, 2**32 - 1))
def test_layout_of_a_trained_stack_is_derived_and_every_wrong_statement_refused(
    optimizer: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    with TemporaryDirectory() as directory:
        check_stack(Path(directory), draw_stack(random, optimizer), random)

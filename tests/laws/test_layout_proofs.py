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

from export.checkpoint.layouts import stored_rows
from export.errors import NotConvertible
from tests.laws.stated_stacks import recognized
from tests.laws.trained_stacks import (
    OPTIMIZERS,
    WRONG,
    Stack,
    draw_stack,
    is_right,
)
from tests.units.export.checkpoint.tensor_bundles import write_bundle


def check_stack(directory: Path, stack: Stack, random: np.random.Generator) -> None:
    """Derives the layout, states it, and states wrong ones."""
    write_bundle(directory / "ckpt", stack.variables())
    stated = recognized(directory, stack, list(stack.places))
    inventories = [stated]
    # Of about one stack in 2,000, the ids leave several layouts.
    if all(table.proof is not None and table.proof.decisive for table in stated.tables):
        inventories.append(recognized(directory, stack, None))
    else:
        with pytest.raises(NotConvertible, match="more than one layout explains"):
            recognized(directory, stack, None)
    for inventory in inventories:
        for table, trained, place in zip(inventory.tables, stack.tables, stack.places, strict=True):
            rows = np.arange(len(trained.values))
            np.testing.assert_array_equal(
                stored_rows(table.layout, rows), place.stored_rows(len(rows))
            )
    for draw in WRONG.values():
        statement = draw(random, stack)
        if is_right(stack, statement):
            continue
        with pytest.raises(NotConvertible, match="contradicts the ids of training"):
            recognized(directory, stack, statement)


@settings(max_examples=settings().max_examples // 3)
@given(optimizer=st.sampled_from(list(OPTIMIZERS)), seed=st.integers(0, 2**32 - 1))
def test_layout_of_a_trained_stack_is_derived_if_it_is_proved_and_a_wrong_one_rejected(
    optimizer: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    with TemporaryDirectory() as directory:
        check_stack(Path(directory), draw_stack(random, optimizer), random)

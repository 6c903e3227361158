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
    for statement in (None, list(stack.places)):
        for table, trained, place in zip(
            recognized(directory, stack, statement).tables, stack.tables, stack.places, strict=True
        ):
            rows = np.arange(len(trained.values))
            np.testing.assert_array_equal(
                stored_rows(table.layout, rows), place.stored_rows(len(rows))
            )
            assert table.proof is not None
            assert table.proof.decisive
    for draw in WRONG.values():
        statement = draw(random, stack)
        if is_right(stack, statement):
            continue
        with pytest.raises(NotConvertible, match="contradicts the ids of training"):
            recognized(directory, stack, statement)


@settings(max_examples=settings().max_examples // 3)
@given(optimizer=st.sampled_from(list(OPTIMIZERS)), seed=st.integers(0, 2**32 - 1))
def test_layout_of_a_trained_stack_is_derived_and_every_wrong_statement_rejected(
    optimizer: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    with TemporaryDirectory() as directory:
        check_stack(Path(directory), draw_stack(random, optimizer), random)

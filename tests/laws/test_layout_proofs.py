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
    Place,
    Stack,
    draw_stack,
    is_right,
    train,
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


GOLDEN = {
    "TPUEmbeddingV2, two chips of four cores": [
        (200, Place(8, 64, 0, 0)),
        (103, Place(8, 64, 32, 4)),
        (67, Place(8, 64, 48, 0)),
    ],
    "TPUEmbeddingV2, one table": [(55, Place(8, 8, 0, 0))],
    "TPUEmbeddingV2 without stacking": [(200, Place(8, 32, 0, 0))],
    "jax-tpu-embedding": [
        (100, Place(8, 32, 0, 0)),
        (30, Place(8, 32, 16, 2)),
        (9, Place(8, 32, 24, 4)),
    ],
    "keras-rs": [(100, Place(8, 24, 0, 0)), (30, Place(8, 24, 16, 2))],
    "a TPU slice of 2x2x2": [(2048, Place(32, 64, 0, 0))],
    "the same, converted for 2x2x1": [(2048, Place(16, 128, 0, 0))],
}
"""The stacks of tests/differential: rows of each table, and its place."""


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_layout_is_derived_once_it_is_trained_and_wrong_ones_rejected(
    name: str, optimizer: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(1)
    tables = []
    for rows, _ in GOLDEN[name]:
        is_read = random.random(rows) < 0.6
        tables.append(train(random, optimizer, np.where(is_read, random.integers(1, 4, rows), 0)))
    places = [place for _, place in GOLDEN[name]]
    check_stack(tmp_path, Stack(optimizer, tables, places), random)

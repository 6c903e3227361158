"""Rows and inputs that a reference model of activations takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.columns import Column
from export.front_end.interface import ReferenceInputs
from export.front_end.specs import Combiner, ModelSpec, TableFacts
from export.tensorflow_models.lookups.activations import Bag, PooledTable
from export.tensorflow_models.reference.inputs import dense_input, pooled, read_rows
from tests.units.export.traced_models import IDS, tower_recipe

ITEMS = TableFacts("items", "stored_items", 4, 2)
MODEL = ModelSpec({"items": ITEMS}, {}, {})
ROWS = np.array([[1, 10, 99], [2, 20, 99], [3, 30, 99], [4, 40, 99]], np.float32)
"""A third column belongs to another table of the same stack."""


def inputs(keyed: bool = False, **columns: Column) -> tuple[ReferenceInputs, list[Any]]:
    """Returns inputs of three examples, and a list of the rows that were read."""
    read: list[Any] = []

    def rows(table: str, wanted: NDArray[np.int64]) -> NDArray[np.float32]:
        read.append((table, wanted.tolist()))
        return ROWS[wanted % 100].copy()

    tables = frozenset({"items"} if keyed else ())
    return ReferenceInputs(3, columns, {"item": 7}, rows, tables), read


def test_read_rows_reads_each_row_once_and_gives_zeros_outside() -> None:
    reference_inputs, read = inputs()
    ids = np.array([[3, 0], [-1, 4], [3, 3]])
    assert read_rows(ITEMS, ids, reference_inputs).tolist() == [
        [[4, 40], [1, 10]],
        [[0, 0], [0, 0]],
        [[4, 40], [4, 40]],
    ]
    assert read == [("items", [0, 3])]


def test_read_rows_by_key_takes_keys_beyond_the_number_of_rows() -> None:
    reference_inputs, read = inputs(keyed=True)
    assert read_rows(ITEMS, np.array([302, 101, -1]), reference_inputs).tolist() == [
        [3, 30],
        [2, 20],
        [0, 0],
    ]
    assert read == [("items", [0, 101, 302])]


BAG = Column(np.array([0, 1, 3]), np.array([0, 2, 2, 3]))


@pytest.mark.parametrize(
    ("combiner", "weights", "first", "third"),
    [
        ("sum", None, 3.0, 4.0),
        ("mean", None, 1.5, 4.0),
        ("sqrtn", None, 3.0 / math.sqrt(2), 4.0),
        ("sum", [2.0, 3.0, 0.0], 8.0, 0.0),
        ("mean", [2.0, 3.0, 0.0], 1.6, 0.0),
        ("sqrtn", [2.0, 3.0, 0.5], 8.0 / math.sqrt(13), 4.0),
    ],
)
def test_pooled_combines_the_rows_of_each_example(
    combiner: Combiner, weights: list[float] | None, first: float, third: float
) -> None:
    columns: dict[str, Any] = {"bag": BAG}
    if weights is not None:
        columns["loads"] = Column(np.array(weights, np.float32), BAG.offsets)
    reference_inputs, _ = inputs(**columns)
    table = PooledTable("stored_items", 4, 2, combiner)
    activations = pooled(
        "bag", Bag(table, None if weights is None else "loads"), reference_inputs, MODEL
    )
    assert activations.dtype == np.float32
    expected = np.array([[first, 10 * first], [0, 0], [third, 10 * third]])
    np.testing.assert_allclose(activations, expected, rtol=1e-6)


def test_pooled_of_a_table_that_no_tower_needs_is_zeros() -> None:
    reference_inputs, read = inputs(bag=BAG)
    activations = pooled("bag", Bag(PooledTable("other", 9, 2, "sum")), reference_inputs, MODEL)
    assert activations.tolist() == [[0, 0]] * 3
    assert not read


def test_dense_input_is_filled_up_with_its_padding() -> None:
    job = tower_recipe("model.py:build", {"item": {**IDS, "shape": [2]}})
    reference_inputs, _ = inputs(item=Column(np.array([1, 2, 3]), np.array([0, 2, 3, 3])))
    ids = dense_input("item", job, reference_inputs)
    assert ids.dtype == np.int64
    assert ids.tolist() == [[1, 2], [3, 7], [7, 7]]

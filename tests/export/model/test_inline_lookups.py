"""Lookups as towers do them, against TensorFlow's own."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import BucketIds, Unknown
from export.frameworks.loading import load_tensorflow
from export.graph.specs import TableFacts
from export.lookups.ragged import dense_rows
from export.lookups.records import Lookup
from export.model.inline_lookups import look_up

tf = load_tensorflow()
ROWS, DIM, N = 20, 3, 9
FACTS = TableFacts("table", "table", ROWS, DIM)


def table() -> Any:
    return tf.Variable(np.random.default_rng(0).normal(0, 1, (ROWS, DIM)).astype(np.float32))


def bags(low: int) -> tuple[Any, Any]:
    """Ids of bags, empty ones at the beginning, within and at the end, and weights, some of them 0 or less."""
    random = np.random.default_rng(4)
    lengths = [0, 3, 1, 0, 5, 2, 4, 1, 0]
    values = random.integers(low, ROWS, sum(lengths))
    weights = random.choice([-1.0, 0.0, 0.5, 2.0], sum(lengths)).astype(np.float32)
    ids = tf.RaggedTensor.from_row_lengths(values, lengths)
    return ids, ids.with_values(tf.constant(weights))


def described(ids: Any, **how: Any) -> Lookup:
    plain: dict[str, Any] = {"weights": None, "combiner": None, "length": None}
    return Lookup(path="bag", table=FACTS, ids=(ids,), **(plain | how))


CASES = list(product(["sum", "mean", "sqrtn"], [False, True], [None, 0.7], [None, 5]))


@pytest.mark.parametrize(("combiner", "weighted", "max_norm", "empty_row"), CASES)
def test_sparse_bags_equal_the_safe_lookup(
    combiner: str, weighted: bool, max_norm: float | None, empty_row: int | None
) -> None:
    variable, (ids, weights) = table(), bags(-3)
    sparse, beside = ids.to_sparse(), weights.to_sparse() if weighted else None
    how = {"combiner": combiner, "max_norm": max_norm}
    expected = tf.nn.safe_embedding_lookup_sparse([variable], sparse, beside, default_id=empty_row, **how)
    told = described(
        sparse, variable=variable, weights=beside, kind="bag", encoding="sparse", empty_row=empty_row, **how
    )
    np.testing.assert_allclose(look_up(told), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("combiner", "weighted", "max_norm", "empty_row"), [each for each in CASES if not each[3]])
def test_ragged_bags_equal_the_plain_lookup_with_the_empty_bags_that_it_leaves_out(
    combiner: str, weighted: bool, max_norm: float | None, empty_row: int | None
) -> None:
    variable, (ids, weights) = table(), bags(0)
    weights = weights if weighted else None
    how = {"combiner": combiner, "max_norm": max_norm, "empty_row": empty_row}
    found = look_up(described(ids, variable=variable, weights=weights, kind="bag", encoding="ragged", **how))
    expected = tf.nn.embedding_lookup_sparse([variable], ids, weights, combiner=combiner, max_norm=max_norm).numpy()
    assert found.shape == (N, DIM)
    np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-6, atol=1e-6)
    assert not np.any(found[len(expected) :])


def test_padded_ids_of_a_column_leave_padding_out_and_take_a_row_for_unknown_ones() -> None:
    variable, ids = table(), tf.constant([[1, -1, 30], [-1, -1, -1], [4, 4, -2]], tf.int64)
    how: dict[str, Any] = {"kind": "bag", "encoding": "dense", "combiner": "mean", "padding": -1}
    found = look_up(described(ids, variable=variable, unknown=Unknown(rule="row", row=2), **how)).numpy()
    rows = variable.numpy()
    expected = [(rows[1] + rows[2]) / 2, np.zeros(DIM), (rows[4] + rows[4] + rows[2]) / 3]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_numbers_of_a_column_read_the_rows_of_its_rule() -> None:
    variable, rule = table(), BucketIds(boundaries=(0.0, 1.0))
    how: dict[str, Any] = {"kind": "single", "encoding": "dense", "rule": rule}
    found = look_up(described(tf.constant([-0.5, 0.0, 7.0]), variable=variable, **how))
    np.testing.assert_array_equal(found, variable.numpy()[:3])


@pytest.mark.parametrize("length", [None, 2, 7])
@pytest.mark.parametrize("kind", ["rows", "ids", "texts"])
def test_rows_made_dense_equal_to_tensor(length: int | None, kind: str) -> None:
    ids, _ = bags(1)
    values = {"rows": tf.gather(table(), ids.values), "ids": ids.values, "texts": tf.strings.as_string(ids.values)}
    rows, default = ids.with_values(values[kind]), {"rows": None, "ids": 9, "texts": "-"}[kind]
    expected = rows.to_tensor(default_value=default, shape=[None, length, *rows.shape[2:]])
    found = dense_rows(rows, length, default)
    assert found.shape == expected.shape
    assert bool(tf.reduce_all(found == expected))


def test_no_rows_at_all_made_dense_are_none() -> None:
    empty = tf.RaggedTensor.from_row_lengths(tf.zeros([0, DIM]), tf.constant([], tf.int64))
    assert dense_rows(empty, None).shape == (0, 0, DIM)
    nothing = tf.RaggedTensor.from_row_lengths(tf.zeros([0, DIM]), tf.constant([0, 0], tf.int64))
    assert dense_rows(nothing, 2).numpy().tolist() == np.zeros((2, 2, DIM)).tolist()


def test_ids_below_0_are_rows_from_the_end_where_the_layer_reads_so() -> None:
    variable, (ids, _) = table(), bags(-ROWS)
    variable.from_end = True
    plain = ids.with_values(ids.values % ROWS)
    dense = described(ids.values, variable=variable, kind="single", encoding="dense")
    np.testing.assert_array_equal(look_up(dense), tf.gather(variable, plain.values))
    listed = described(ids, variable=variable, kind="sequence", encoding="ragged", length=4)
    np.testing.assert_array_equal(look_up(listed), dense_rows(tf.gather(variable, plain), 4))
    bag = described(ids.to_sparse(), variable=variable, kind="bag", encoding="sparse", combiner="sum")
    expected = tf.nn.safe_embedding_lookup_sparse([variable], plain.to_sparse(), None, combiner="sum")
    np.testing.assert_allclose(look_up(bag), expected, rtol=1e-6, atol=1e-6)

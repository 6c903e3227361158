"""Ragged lookups: which rows a service combines or pads, and what TensorFlow computes as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.placeholders import redirect_gathers
from export.tensorflow_models.lookups.interception import lookups_intercepted
from export.tensorflow_models.lookups.ragged import dense_rows, look_up_ragged_by_row
from export.tensorflow_models.lookups.records import TracedLookup
from tests.units.export.tensorflow_models.lookups.interceptions import (
    DIM,
    RAGGED,
    ROWS,
    Call,
    intercept,
    table_of,
)


def rows_of(table: Any, features: Any) -> Any:
    return tf.nn.embedding_lookup(table, features["ids"])


def gathered(table: Any, features: Any) -> Any:
    return tf.gather(table, features["ids"])


def summed(**options: Any) -> Call:
    return lambda table, features: tf.reduce_sum(rows_of(table, features), **options)


def padded(*arguments: Any, **options: Any) -> Call:
    return lambda table, features: rows_of(table, features).to_tensor(*arguments, **options)


def described(lookup: TracedLookup) -> tuple[Any, ...]:
    return lookup.kind, lookup.encoding, lookup.combiner, lookup.length


@pytest.mark.parametrize(
    ("call", "combiner", "shape"),
    [
        (summed(axis=1), "sum", [None, DIM]),
        (summed(axis=-2), "sum", [None, DIM]),
        (summed(axis=[1]), "sum", [None, DIM]),
        (summed(axis=(1,)), "sum", [None, DIM]),
        (summed(axis=1, keepdims=True), "sum", [None, 1, DIM]),
        (
            lambda table, features: tf.reduce_mean(rows_of(table, features), axis=1),
            "mean",
            [None, DIM],
        ),
        (
            lambda table, features: tf.reduce_sum(gathered(table, features), axis=1),
            "sum",
            [None, DIM],
        ),
        (
            lambda table, features: tf.reduce_sum(
                tf.gather(table, features["ids"], axis=0), axis=1
            ),
            "sum",
            [None, DIM],
        ),
    ],
)
def test_rows_that_are_reduced_become_a_bag(call: Call, combiner: str, shape: list[Any]) -> None:
    intercepted = intercept(call, ids=RAGGED)
    (lookup,) = intercepted.combined
    assert described(lookup) == ("bag", "ragged", combiner, None)
    assert lookup.variable is intercepted.table
    assert isinstance(lookup.ids[0], tf.RaggedTensor)
    assert intercepted.result.shape.as_list() == shape
    (gather,) = intercepted.gathered
    assert gather.ids[0] is lookup.ids[0].values


@pytest.mark.parametrize(
    "call",
    [
        summed(axis=0),
        summed(axis=2),
        summed(),
        lambda table, features: tf.reduce_sum(
            tf.nn.embedding_lookup(table, features["ids"], max_norm=1.0), axis=1
        ),
        lambda table, features: tf.reduce_sum(2 * rows_of(table, features), axis=1),
        lambda table, features: tf.reduce_sum(rows_of(table * 1.0, features), axis=1),
        lambda table, features: tf.reduce_sum(tf.gather(table, features["ids"], axis=1)),
    ],
)
def test_rows_that_are_read_in_another_way_become_no_bag(call: Call) -> None:
    assert intercept(call, ids=RAGGED).combined == []


def test_rows_become_a_bag_only_where_a_service_looks_them_up() -> None:
    assert intercept(summed(axis=1), ids=RAGGED, gathers=False).combined == []


@pytest.mark.parametrize("options", [{"axis": 1}, {"batch_dims": 1}])
def test_rows_along_other_axes_are_no_lookup(options: dict[str, Any]) -> None:
    intercepted = intercept(
        lambda table, features: tf.gather(table, features["ids"], **options), ids=RAGGED
    )
    assert (intercepted.combined, intercepted.gathered) == ([], [])


def test_ragged_values_that_a_model_sums_while_it_is_built_are_those_of_tensorflow() -> None:
    with lookups_intercepted(lambda _: None, lambda _: None, lambda _: None):
        sums = tf.reduce_sum(tf.ragged.constant([[1.0, 2.0], []]), axis=1)
    np.testing.assert_array_equal(sums, [3, 0])


def test_rows_of_ids_in_several_ragged_dimensions_become_no_bag() -> None:
    ids = tf.RaggedTensorSpec([None, None, None], tf.int64, ragged_rank=2)
    assert intercept(summed(axis=1), ids=ids).combined == []


def test_rows_of_several_ids_in_each_place_become_no_bag() -> None:
    ids = tf.RaggedTensorSpec([None, None, 2], tf.int64, ragged_rank=1)
    assert intercept(summed(axis=1), ids=ids).combined == []


def test_rows_of_half_precision_become_no_bag() -> None:
    assert intercept(summed(axis=1), dtype=tf.float16, ids=RAGGED).combined == []


@pytest.mark.parametrize(
    ("call", "length"),
    [
        (padded(shape=[None, 3]), 3),
        (padded(shape=(None, 2, DIM)), 2),
        (padded(shape=tf.TensorShape([None, 3, DIM])), 3),
        (padded(default_value=0, shape=[None, 3]), 3),
        (lambda table, features: gathered(table, features).to_tensor(shape=[None, 3]), 3),
    ],
)
def test_rows_that_are_padded_to_a_length_become_a_sequence(call: Call, length: int) -> None:
    intercepted = intercept(call, ids=RAGGED)
    (lookup,) = intercepted.combined
    assert described(lookup) == ("sequence", "ragged", None, length)
    assert intercepted.result is intercepted.placeholders[-1]


@pytest.mark.parametrize(
    "call",
    [
        padded(),
        padded(shape=[None]),
        padded(shape=[None, None]),
        padded(shape=[None, None, DIM]),
        padded(1.0),
        padded(1.0, shape=[None, 3]),
    ],
)
def test_rows_of_any_length_or_with_other_padding_are_padded_by_operations_of_litert(
    call: Call,
) -> None:
    intercepted = intercept(call, ids=RAGGED)
    assert intercepted.combined == []
    assert "RaggedTensorToTensor" not in intercepted.operations
    assert intercepted.result.shape.as_list()[2] == DIM


def test_rows_that_are_padded_to_a_number_of_examples_are_padded_by_tensorflow() -> None:
    intercepted = intercept(padded(shape=[2, None, None]), ids=RAGGED)
    assert intercepted.combined == []
    assert "RaggedTensorToTensor" in intercepted.operations


def test_rows_that_are_padded_to_another_width_are_rejected_by_tensorflow() -> None:
    with pytest.raises(ValueError, match="are incompatible"):
        intercept(padded(shape=[None, None, DIM + 1]), ids=RAGGED)


@pytest.mark.parametrize("shape", [[None, None, None], [None, None, 2]])
def test_values_of_several_dimensions_are_padded_as_by_tensorflow(shape: list[Any]) -> None:
    rank = 2 if shape[2] is None else 1
    spec = tf.RaggedTensorSpec(shape, tf.int64, ragged_rank=rank)
    intercepted = intercept(lambda _, features: features["ids"].to_tensor(), ids=spec)
    assert ("RaggedTensorToTensor" in intercepted.operations) == (rank == 2)


def test_open_dimension_of_values_is_padded_by_tensorflow() -> None:
    spec = tf.RaggedTensorSpec([None, None, None], tf.int64, ragged_rank=1)
    intercepted = intercept(lambda _, features: features["ids"].to_tensor(), ids=spec)
    assert "RaggedTensorToTensor" in intercepted.operations


@pytest.mark.parametrize(
    ("length", "default", "expected"),
    [
        (None, None, [[[1, 2], [3, 4], [5, 6]], [[0, 0]] * 3, [[7, 8], [0, 0], [0, 0]]]),
        (2, None, [[[1, 2], [3, 4]], [[0, 0]] * 2, [[7, 8], [0, 0]]]),
        (4, None, [[[1, 2], [3, 4], [5, 6], [0, 0]], [[0, 0]] * 4, [[7, 8], *[[0, 0]] * 3]]),
        (2, 9, [[[1, 2], [3, 4]], [[9, 9]] * 2, [[7, 8], [9, 9]]]),
        (2, [8, 9], [[[1, 2], [3, 4]], [[8, 9]] * 2, [[7, 8], [8, 9]]]),
    ],
)
def test_dense_rows_are_padded_behind_each_examples_own(
    length: int | None, default: Any, expected: Any
) -> None:
    values = tf.constant([[1, 2], [3, 4], [5, 6], [7, 8]], tf.int64)
    rows = tf.RaggedTensor.from_row_lengths(values, tf.constant([3, 0, 1], tf.int64))
    function = tf.compat.v1.wrap_function(
        lambda rows: dense_rows(rows, length, default),
        [tf.RaggedTensorSpec([None, None, 2], tf.int64, ragged_rank=1)],
    )
    assert function.outputs[0].shape.as_list() == [None, length, 2]
    pruned = function.prune(function.inputs, function.outputs[0])
    padded_rows = pruned(rows.values, rows.row_splits)
    np.testing.assert_array_equal(padded_rows, expected, strict=False)


def test_dense_rows_of_a_known_number_of_examples_keep_it() -> None:
    function = tf.compat.v1.wrap_function(
        lambda rows: dense_rows(rows, None),
        [tf.RaggedTensorSpec([5, None, 2], tf.float32, ragged_rank=1)],
    )
    assert function.outputs[0].shape.as_list() == [5, None, 2]


def test_dense_rows_of_empty_examples_are_empty() -> None:
    empty = tf.RaggedTensor.from_row_lengths(tf.zeros([0, 2]), tf.constant([0, 0], tf.int64))
    function = tf.compat.v1.wrap_function(
        lambda rows: dense_rows(rows, None),
        [tf.RaggedTensorSpec([None, None, 2], tf.float32, ragged_rank=1)],
    )
    pruned = function.prune(function.inputs, function.outputs[0])
    assert pruned(empty.values, empty.row_splits).shape == [2, 0, 2]


IDS = tf.ragged.constant([[1, 2], []], dtype=tf.int64)
VALUES = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)


def by_row(call: Call) -> tuple[Any, int]:
    """Returns the result for IDS where gathers read VALUES, and the number of gathers."""
    reads: list[Any] = []

    def gather(_: Any, ids: Any) -> Any:
        reads.append(ids)
        return tf.gather(tf.constant(VALUES), ids)

    table = table_of()
    with Hooks() as hooks:
        redirect_gathers(hooks, gather)
        look_up_ragged_by_row(hooks)
        result = call(table, {"ids": IDS})
    return result, len(reads)


def test_reference_reads_single_rows_of_ragged_ids() -> None:
    for call in (rows_of, gathered):
        result, reads = by_row(call)
        assert reads == 1
        np.testing.assert_array_equal(result.values, VALUES[1:3])


def test_reference_gathers_along_other_axes_as_tensorflow_does() -> None:
    result, reads = by_row(lambda table, features: tf.gather(table, features["ids"], axis=1))
    assert reads == 0
    assert result.shape.as_list() == [ROWS, 2, None]


def test_reference_gathers_in_batches_as_tensorflow_does() -> None:
    ids = tf.ragged.constant([[0, 1]] * ROWS, dtype=tf.int64)
    result, reads = by_row(lambda table, _: tf.gather(table, ids, batch_dims=1))
    assert reads == 0
    assert result.shape[0] == ROWS


def test_reference_mean_of_an_empty_bag_is_zeros() -> None:
    result, _ = by_row(lambda table, features: tf.reduce_mean(rows_of(table, features), axis=1))
    np.testing.assert_array_equal(result, [VALUES[1:3].mean(axis=0), np.zeros(DIM)])


def test_reference_mean_of_other_rows_is_that_of_tensorflow() -> None:
    other_rows = tf.ragged.constant([[[1.0]], []], ragged_rank=1)
    result, _ = by_row(
        lambda table, features: (rows_of(table, features), tf.reduce_mean(other_rows, axis=1))[1]
    )
    np.testing.assert_array_equal(result, [[1], [np.nan]])


def test_reference_mean_over_the_dimensions_of_rows_stays_ragged() -> None:
    result, _ = by_row(lambda table, features: tf.reduce_mean(rows_of(table, features), axis=2))
    np.testing.assert_array_equal(result.values, VALUES[1:3].mean(axis=1))

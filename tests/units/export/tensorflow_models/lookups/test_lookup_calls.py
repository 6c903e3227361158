"""Calls of TensorFlow's and Keras' lookups: which of them a service computes, and how."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.placeholders import line_of_early, tables_unallocated
from export.tensorflow_models.lookups.interception import lookups_intercepted
from export.tensorflow_models.lookups.records import TracedLookup
from tests.units.export.tensorflow_models.graph.traced_calls import ids, numbers
from tests.units.export.tensorflow_models.lookups.interceptions import (
    DIM,
    RAGGED,
    ROWS,
    SPARSE,
    Call,
    intercept,
    table_of,
)

SPARSE_WEIGHTS = tf.SparseTensorSpec([None, None], tf.float32)
RAGGED_WEIGHTS = tf.RaggedTensorSpec([None, None], tf.float32, ragged_rank=1)


def look_up(table: Any, features: Any) -> Any:
    return tf.nn.embedding_lookup(table, features["ids"])


@pytest.mark.parametrize(
    ("shape", "kind", "length"),
    [((), "single", None), ((1,), "single", 1), ((3,), "sequence", 3), ((2, 3), "sequence", 6)],
)
def test_rows_of_a_fixed_number_of_ids_are_gathered_by_the_service(
    shape: tuple[int, ...], kind: str, length: int | None
) -> None:
    intercepted = intercept(look_up, ids=ids(*shape))
    (lookup,) = intercepted.gathered
    assert (lookup.kind, lookup.length, lookup.encoding) == (kind, length, "dense")
    assert lookup.variable is intercepted.table
    assert intercepted.result.shape.as_list() == [None, *shape, DIM]
    values = np.arange((length or 1) * DIM, dtype=np.float32)
    rows = values.reshape([1, DIM] if length is None else [1, length, DIM])
    np.testing.assert_array_equal(intercepted.run(rows), values.reshape([1, *shape, DIM]))


def test_rows_that_are_gathered_have_the_type_of_their_table() -> None:
    intercepted = intercept(look_up, dtype=tf.float16, ids=ids())
    assert len(intercepted.gathered) == 1
    assert intercepted.result.dtype == tf.float16


@pytest.mark.parametrize(
    "spec",
    [
        tf.TensorSpec([], tf.int64),
        tf.TensorSpec([3], tf.int64),
        tf.TensorSpec([None, None], tf.int64),
        tf.TensorSpec(None, tf.int64),
    ],
    ids=str,
)
def test_rows_of_ids_that_are_not_of_a_batch_are_gathered_in_the_tower(spec: Any) -> None:
    intercepted = intercept(look_up, ids=spec)
    assert intercepted.gathered == []
    assert "ResourceGather" in intercepted.operations


def test_rows_that_no_service_gathers_are_gathered_in_the_tower() -> None:
    intercepted = intercept(look_up, gathers=False, ids=ids(3))
    assert "ResourceGather" in intercepted.operations


def test_rows_that_are_read_while_a_model_is_built_tell_the_line() -> None:
    recorded: list[TracedLookup] = []
    table = table_of()
    with lookups_intercepted(lambda _: None, recorded.append, recorded.append):
        early = tf.gather(table, tf.constant([[1, 2, 3]]))
    assert early.shape == (1, 3, DIM)
    assert line_of_early(early.numpy()).startswith("test_lookup_calls.py:")
    assert recorded == []


def test_squeeze_keeps_the_batch_of_intercepted_models() -> None:
    intercepted = intercept(lambda _, features: tf.squeeze(features["ids"]), ids=ids(1))
    assert intercepted.result.shape.as_list() == [None]


def combined(name: str, **options: Any) -> Call:
    """Returns a call of `tf.nn.<name>` of ids and perhaps weights."""
    return lambda table, features: getattr(tf.nn, name)(
        table, features["ids"], features.get("weights"), **options
    )


@pytest.mark.parametrize(
    ("name", "encoding"),
    [("embedding_lookup_sparse", "ragged"), ("safe_embedding_lookup_sparse", "sparse")],
)
@pytest.mark.parametrize(("spec", "weights"), [(SPARSE, SPARSE_WEIGHTS), (RAGGED, RAGGED_WEIGHTS)])
def test_lookups_with_a_combiner_are_bags(
    name: str, encoding: str, spec: Any, weights: Any
) -> None:
    intercepted = intercept(combined(name, combiner="sqrtn"), ids=spec, weights=weights)
    (bag,) = intercepted.combined
    assert (bag.kind, bag.encoding, bag.combiner) == ("bag", encoding, "sqrtn")
    assert (bag.max_norm, bag.empty_row) == (None, None)
    assert type(bag.ids[0]) is type(bag.weights)
    assert bag.weights is not None
    assert bag.weights.dtype == tf.float32
    assert intercepted.gathered == []
    assert intercepted.result is intercepted.placeholders[0]


@pytest.mark.parametrize("name", ["embedding_lookup_sparse", "safe_embedding_lookup_sparse"])
def test_lookup_without_a_combiner_is_a_mean(name: str) -> None:
    (bag,) = intercept(combined(name), ids=SPARSE).combined
    assert (bag.combiner, bag.weights) == ("mean", None)


def test_largest_norm_of_rows_of_a_bag_is_left_to_the_service() -> None:
    intercepted = intercept(combined("embedding_lookup_sparse", max_norm=2), ids=SPARSE)
    (bag,) = intercepted.combined
    assert bag.max_norm == 2.0
    assert intercepted.result is intercepted.placeholders[0]


@pytest.mark.parametrize("row", [0, ROWS - 1])
def test_row_of_empty_bags_is_among_the_rows(row: int) -> None:
    intercepted = intercept(combined("safe_embedding_lookup_sparse", default_id=row), ids=SPARSE)
    assert [lookup.empty_row for lookup in intercepted.combined] == [row]


@pytest.mark.parametrize("row", [-1, ROWS])
def test_row_of_empty_bags_that_is_not_among_the_rows_is_rejected(row: int) -> None:
    message = f"lookup 'items' has default_id={row}, which is not among its 9 rows"
    with pytest.raises(NotConvertible, match=message):
        intercept(combined("safe_embedding_lookup_sparse", default_id=row), ids=SPARSE)


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_partition_strategy_of_a_lookup_is_remembered_with_its_table(strategy: str) -> None:
    def call(table: Any, features: Any) -> Any:
        first = tf.compat.v1.nn.embedding_lookup_sparse(
            table, features["ids"], None, partition_strategy=strategy, combiner="sum"
        )
        second = tf.nn.embedding_lookup_sparse(table, features["ids"], None, combiner="sum")
        return first + second

    assert intercept(call, ids=SPARSE).table.mod == (strategy == "mod")


def test_bags_of_several_dimensions_are_those_that_tensorflow_makes_of_them() -> None:
    spec = tf.SparseTensorSpec([None, 2, None], tf.int64)
    (bag,) = intercept(combined("safe_embedding_lookup_sparse"), ids=spec).combined
    assert (bag.encoding, bag.ids[0].shape.rank) == ("ragged", 2)


def test_bags_of_rows_that_are_computed_stay_in_the_tower() -> None:
    def call(table: Any, features: Any) -> Any:
        return tf.nn.embedding_lookup_sparse(table * 2, features["ids"], None)

    assert intercept(call, ids=SPARSE).combined == []


def test_bags_of_dense_ids_are_rejected_by_tensorflow() -> None:
    with pytest.raises(TypeError, match="SparseTensor"):
        intercept(combined("embedding_lookup_sparse"), ids=ids(2))


def keras_3_embedding(**options: Any) -> Any:
    keras = pytest.importorskip("keras")
    with tables_unallocated():
        layer = keras.layers.Embedding(ROWS, DIM, **options)
        layer.build()
    return layer


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (tf.TensorSpec([None], tf.int64), tf.int64),
        (tf.TensorSpec([None], tf.int32), tf.int32),
        (tf.TensorSpec([None], tf.float32), tf.int32),
        (tf.TensorSpec([None], tf.int16), tf.int32),
    ],
    ids=str,
)
def test_embedding_of_keras_3_gathers_from_its_table(spec: Any, dtype: Any) -> None:
    layer = keras_3_embedding()
    intercepted = intercept(lambda _, features: layer.call(features["ids"]), ids=spec)
    (lookup,) = intercepted.gathered
    assert lookup.variable is layer.embeddings.value
    assert lookup.outside.from_end
    assert not lookup.variable.outside.from_end
    assert lookup.ids[0].dtype == dtype
    assert "ReadVariableOp" not in intercepted.operations


def test_embedding_of_keras_3_returns_its_type() -> None:
    layer = keras_3_embedding(dtype="mixed_float16")
    intercepted = intercept(lambda _, features: layer.call(features["ids"]), ids=ids())
    assert intercepted.result.dtype == tf.float16


def test_sparse_ids_of_the_embedding_of_keras_3_read_row_zero_where_they_lack() -> None:
    layer = keras_3_embedding(dtype="mixed_float16")
    spec = tf.SparseTensorSpec([None], tf.int64)
    intercepted = intercept(lambda _, features: layer.call(features["ids"]), ids=spec)
    (bag,) = intercepted.combined
    assert (bag.combiner, bag.empty_row, bag.encoding) == ("mean", 0, "sparse")
    assert bag.ids[0].shape.as_list() == [None, 1]
    assert intercepted.result.shape.as_list() == [None, DIM]
    assert intercepted.result.dtype == tf.float16


def test_adapted_embedding_of_keras_3_stays_in_the_tower() -> None:
    layer = keras_3_embedding()
    table = layer.embeddings.value
    layer.enable_lora(2)
    intercepted = intercept(lambda _, features: layer.call(features["ids"]), ids=ids())
    assert intercepted.gathered == []
    assert not table.outside.from_end


def embed_reduce(**options: Any) -> Any:
    layers = pytest.importorskip("keras_rs").layers
    with tables_unallocated():
        layer = layers.EmbedReduce(ROWS, DIM, name="tags", **options)
        layer.build([None])
    return layer


@pytest.mark.parametrize("spec", [RAGGED, SPARSE], ids=["ragged", "sparse"])
@pytest.mark.parametrize("weighted", [False, True])
def test_layer_of_keras_rs_is_a_bag_without_pruning(spec: Any, weighted: bool) -> None:
    layer = embed_reduce(combiner="sqrtn", dtype="mixed_float16")
    weights = RAGGED_WEIGHTS if spec is RAGGED else SPARSE_WEIGHTS
    weight_inputs = {"weights": weights} if weighted else {}
    intercepted = intercept(
        lambda _, features: layer.call(features["ids"], features.get("weights")),
        ids=spec,
        **weight_inputs,
    )
    (bag,) = intercepted.combined
    assert (bag.path, bag.kind, bag.encoding, bag.combiner) == ("tags", "bag", "ragged", "sqrtn")
    assert (bag.weights is not None) == weighted
    assert bag.variable is layer.embeddings.value
    assert intercepted.result.dtype == tf.float16


def test_dense_ids_of_a_layer_of_keras_rs_are_gathered() -> None:
    layer = embed_reduce(combiner="sum")
    intercepted = intercept(lambda _, features: layer.call(features["ids"]), ids=ids(3))
    assert intercepted.combined == []
    assert [lookup.length for lookup in intercepted.gathered] == [3]
    assert intercepted.result.shape.as_list() == [None, DIM]


def test_weights_of_another_kind_than_the_ids_stay_in_the_tower() -> None:
    layer = embed_reduce(combiner="sum")
    intercepted = intercept(
        lambda _, features: layer.call(features["ids"], features["weights"]),
        ids=ids(3),
        weights=numbers(3),
    )
    assert intercepted.combined == []


@pytest.mark.parametrize(
    ("length", "clipped"), [(1, [[0.6, 0.8, 0, 0]]), (2, [[3, 4, 0, 0]])], ids=["one id", "bag"]
)
def test_largest_norm_of_single_rows_is_kept_in_the_tower(
    length: int, clipped: list[list[float]]
) -> None:
    column = tf.feature_column.embedding_column(
        tf.feature_column.categorical_column_with_identity("ids", ROWS), DIM, max_norm=1.0
    )
    layer = tf.keras.layers.DenseFeatures([column])
    intercepted = intercept(lambda _, features: layer(features), ids=ids(length))
    assert [lookup.max_norm for lookup in intercepted.combined] == [1.0]
    rows = [[3, 4, 0, 0], [0, 0.5, 0, 0]]
    expected = [*clipped, [0, 0.5, 0, 0]]
    np.testing.assert_allclose(intercepted.run(rows), expected, rtol=1e-6)

"""Calls of models that cannot become towers and features: what is refused, where, and the cure."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import ExportError, NotConvertible
from export.graphs.loading import tf
from tests.units.export.tensorflow_models.planning import (
    Tables,
    assert_says,
    planned,
    refusal,
    written,
)

E = tf.tpu.experimental.embedding
fc = tf.feature_column
INT64 = {"dtype": "int64"}
FLOAT32 = {"dtype": "float32"}
STRING = {"dtype": "string"}
INPUTS: dict[str, dict[str, Any]] = {
    "item": INT64,
    "other": INT64,
    "pair": {**INT64, "shape": [2]},
    "quad": {**INT64, "shape": [4]},
    "age": FLOAT32,
    "text": STRING,
    "word": STRING,
    "words": {**STRING, "shape": [2]},
    "bag": {**INT64, "kind": "ragged"},
    "loads": {**FLOAT32, "kind": "ragged"},
    "weights": {**FLOAT32, "kind": "ragged", "weights_for": "bag"},
    "tags": {**INT64, "kind": "sparse"},
    "tag_weights": {**FLOAT32, "kind": "sparse", "weights_for": "tags"},
}
Call = Callable[[Any, Any], Any]
"""(model with tables `items` and `small`, inputs by name) -> result."""
LINE = "(test_refused_calls.py:"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = Tables(lambda model, inputs: None, items=20, small=5)
    return written(tmp_path_factory.mktemp("saved"), model=model)


def message_of(error: type[ExportError], checkpoint: Path, call: Call) -> str:
    """Returns why a call is refused whose table `items` must leave the towers."""
    code = {"table_threshold": 10, "inline_bytes_max": 100}
    return refusal(
        error,
        lambda: Tables(call, items=20, small=5),
        checkpoint,
        INPUTS,
        object_path="model",
        code=code,
    )


def hashed(values: Any) -> Any:
    texts = values if values.dtype == tf.string else tf.strings.as_string(values)
    return tf.strings.to_hash_bucket_fast(texts, 20)


def replaced(pattern: str, by: str) -> Callable[[Any], Any]:
    return lambda f: hashed(tf.strings.regex_replace(f["text"], pattern, by))


@cache
def table_of(keys: tuple[Any, ...], positions: tuple[int, ...]) -> Any:
    with tf.init_scope():
        initial = tf.lookup.KeyValueTensorInitializer(
            tf.constant(keys), tf.constant(positions, tf.int64)
        )
        return tf.lookup.StaticHashTable(initial, -1)


def masked(condition: Any, rows: Any) -> Any:
    return tf.where(condition, tf.zeros_like(rows), rows)


def crossed(*values: Any) -> Any:
    sparse = tf.sparse.cross_hashed([tf.reshape(value, [-1, 1]) for value in values], 20)
    return tf.reshape(tf.sparse.to_dense(sparse), [-1])


IDS: list[tuple[str, Callable[[Any], Any]]] = [
    ("(Pow)", lambda f: f["item"] ** 2),
    ("(StringLower)", lambda f: hashed(tf.strings.lower(f["text"], encoding="utf-8"))),
    # A pattern that RE2 and Python may understand differently.
    ("(StaticRegexReplace)", replaced("[\u00e9]", "e")),
    # A text that is not in UTF-8, which no manifest holds.
    ("(Const)", lambda f: masked(tf.equal(f["text"], b"\xe9"), hashed(f["text"]))),
    # Positions that do not follow each other from 0 on.
    ("(LookupTableFindV2)", lambda f: table_of(("red", "blue"), (0, 2)).lookup(f["text"])),
    # Values of different examples meet, or results depend on the batch.
    ("(Mul)", lambda f: tf.reshape(f["item"][:, None] * f["item"][None, :], [-1]) % 7),
    ("(Max)", lambda f: f["item"] - tf.reduce_max(f["item"])),
    # Several values of an example.
    ("(ReduceJoin)", lambda f: hashed(tf.strings.reduce_join(f["words"], 1))),
    ("(SparseToDense)", lambda f: crossed(f["item"], f["other"] ** 2)),
]


@pytest.mark.parametrize(("operation", "ids"), IDS)
def test_ids_that_no_bundle_computes_name_the_operation_and_its_line(
    operation: str, ids: Callable[[Any], Any], checkpoint: Path
) -> None:
    message = message_of(
        NotConvertible, checkpoint, lambda model, f: tf.reduce_sum(_rows(model, ids(f)), -1)
    )
    assert_says(message, operation, LINE, "'items'")


def _rows(model: Any, ids: Any) -> Any:
    rows = tf.gather(model.items, ids)
    return rows if rows.shape.rank == 2 else tf.reshape(rows, [-1, rows.shape[1], 4])


def averaged(ids: Any, rows: Any, mask: Any = None) -> Any:
    layer = tf.keras.layers.GlobalAveragePooling1D()
    return layer.call(rows, mask=tf.not_equal(ids, 0) if mask is None else mask)


def average_masked_otherwise(mask: Callable[[Any], Any]) -> Call:
    """Returns the average of the rows of a text's words under another mask."""

    def call(model: Any, f: Any) -> Any:
        words = tf.strings.split(f["text"])
        padded = words.with_values(hashed(words.values) % 9 + 1).to_tensor()
        return averaged(padded, tf.nn.embedding_lookup(model.items, padded), mask(padded))

    return call


def sum_of_split(split: Callable[[Any], Any]) -> Call:
    """Returns the sum of the rows of what a text is split into."""
    return lambda model, f: tf.reduce_sum(
        tf.nn.embedding_lookup(model.items, split(f).with_values(hashed(split(f).values))), axis=1
    )


def ragged_rows(model: Any, f: Any) -> Any:
    return tf.nn.embedding_lookup(model.items, f["bag"])


DENSE_ROWS = ("whose ragged rows it reads", "to_tensor(shape=")
LOOKUPS: dict[str, tuple[Call, tuple[str, ...]]] = {
    "ids of parts of an example": (
        lambda model, f: tf.gather(model.items, tf.reshape(f["quad"], [-1, 2])),
        ("'quad'", "keep each example's ids together"),
    ),
    "ragged rows that are changed": (
        lambda model, f: tf.reduce_sum(tf.nn.relu(ragged_rows(model, f)), 1),
        DENSE_ROWS,
    ),
    "weights that the model computes": (
        lambda model, f: tf.nn.embedding_lookup_sparse(model.items, f["bag"], f["weights"] * 2.0),
        ("(Mul)", LINE, "an input of weights"),
    ),
    "weights that the model rounds": (
        lambda model, f: tf.nn.embedding_lookup_sparse(
            model.items, f["bag"], tf.cast(tf.cast(f["weights"], tf.float16), tf.float32)
        ),
        ("(Cast)", LINE, "an input of weights"),
    ),
    "split with a limit": (sum_of_split(lambda f: tf.strings.split(f["text"], maxsplit=2)), ()),
    "average under a comparison": (average_masked_otherwise(lambda ids: ids > 0), ()),
}


@pytest.mark.parametrize(("call", "words"), LOOKUPS.values(), ids=LOOKUPS)
def test_lookup_that_no_service_computes_is_refused_where_its_table_is_large(
    call: Call, words: tuple[str, ...], checkpoint: Path
) -> None:
    assert_says(message_of(NotConvertible, checkpoint, call), "items", *words)


@cache
def generator() -> Any:
    with tf.init_scope():
        return tf.random.Generator.from_seed(1)


def drawn(noise: Callable[[Any], Any]) -> Call:
    return lambda model, f: tf.gather(model.items, f["item"]) + noise(f["age"])


def dropped_out(model: Any, f: Any) -> Any:
    """Drops out as `tf.compat.v1.layers.dropout` does in training, whose switch is a tensor."""
    vector = tf.gather(model.items, f["item"])
    switch = tf.compat.v1.placeholder_with_default(True, [])
    return tf.compat.v1.cond(switch, lambda: tf.nn.dropout(vector, 0.5), lambda: vector)


def python_then_error(model: Any, f: Any) -> Any:
    negative = tf.numpy_function(np.negative, [f["age"]], tf.float32)
    raise ValueError(f"unknown rank of {negative.dtype.name}")


RANDOM = ("draws random numbers", LINE, "tf.random.stateless_")
CALLS: dict[str, tuple[type[ExportError], Call, tuple[str, ...]]] = {
    "error after Python code": (
        NotConvertible,
        python_then_error,
        ("unknown rank of float32", LINE, "tf.numpy_function"),
    ),
    "statement": (
        NotConvertible,
        lambda model, f: tf.stack(list(f["age"])),
        (LINE, "tf.unstack"),
    ),
    "wrong shape": (
        NotConvertible,
        lambda model, f: tf.matmul(f["age"][:, None], tf.ones([3, 2])),
        (LINE, "the recipe declares", "age as float32 [batch]"),
    ),
    "no input": (
        NotConvertible,
        lambda model, f: tf.ensure_shape(
            tf.compat.v1.placeholder_with_default(model.small[:, 0] * 2.0, [None]), [None]
        ),
        ("depend on no input",),
    ),
    "random numbers": (NotConvertible, drawn(lambda x: tf.random.normal([4])), RANDOM),
    "random numbers of a generator": (
        NotConvertible,
        drawn(lambda x: generator().normal([4])),
        RANDOM,
    ),
    "dropout in training": (NotConvertible, dropped_out, RANDOM),
}


@pytest.mark.parametrize(("error", "call", "words"), CALLS.values(), ids=CALLS)
def test_call_that_cannot_be_traced_is_refused_with_the_line_and_the_cure(
    error: type[ExportError], call: Call, words: tuple[str, ...], checkpoint: Path
) -> None:
    assert_says(message_of(error, checkpoint, call), *words)


def test_tower_that_draws_the_same_numbers_in_each_call_is_kept(checkpoint: Path) -> None:
    """The remedy of the message."""
    call = drawn(lambda x: tf.random.stateless_normal([4], (1, 2)))
    code = {"table_threshold": 10}
    model = lambda: Tables(call, items=20, small=5)  # noqa: E731
    planned(model, checkpoint, INPUTS, object_path="model", code=code)


def identity(size: int = 9) -> Any:
    return fc.categorical_column_with_identity("pair", size)


def embedded(column: Any, **options: Any) -> Any:
    return fc.embedding_column(column, 4, **options)


def buckets(source: str = "ages", size: int = 2, **options: Any) -> Any:
    return fc.bucketized_column(fc.numeric_column(source, size, **options), [1.0, 2.0])


COLUMNS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "normalizer that does not rise": (
        lambda: embedded(buckets(normalizer_fn=tf.sin)),
        ("'ages_bucketized'", "leave normalizer_fn out"),
    ),
    "cross of several ids twice": (
        lambda: embedded(fc.crossed_column([identity(), "pair"], 5)),
        ("declare it as sparse",),
    ),
    "weights without pruning": (
        lambda: embedded(
            fc.weighted_categorical_column(identity(), "weights"), use_safe_embedding_lookup=False
        ),
        ("use_safe_embedding_lookup=False",),
    ),
}
COLUMN_INPUTS = {
    "pair": INPUTS["pair"],
    "ages": {**FLOAT32, "shape": [2]},
    "weights": {**FLOAT32, "shape": [2]},
    "word": STRING,
}


@pytest.mark.parametrize(("column", "words"), COLUMNS.values(), ids=COLUMNS)
def test_feature_column_that_no_rule_describes_is_refused(
    column: Callable[[], Any], words: tuple[str, ...], checkpoint: Path
) -> None:
    def build() -> Any:
        layer = tf.keras.layers.DenseFeatures([column()])
        return Tables(lambda model, f: layer(f))

    assert_says(refusal(NotConvertible, build, checkpoint, COLUMN_INPUTS), *words)


def test_column_of_computed_ids_that_may_be_its_padding_is_refused(checkpoint: Path) -> None:
    def build() -> Any:
        column = fc.categorical_column_with_hash_bucket("made", 50, tf.int64)
        layer = tf.keras.layers.DenseFeatures([embedded(column)])
        return Tables(lambda model, f: layer({"made": tf.reshape(f["pair"][:, :1] - 1, [-1, 1])}))

    message = refusal(
        NotConvertible, build, checkpoint, COLUMN_INPUTS, code={"inline_bytes_max": 100}
    )
    assert_says(message, LINE, "may be -1", "a remainder")


TABLE = E.TableConfig(20, 4, name="items", combiner="sum")
FIXES_BATCH = {"output_shape": [5]}
TPU_FEATURES: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = [
    ("bag", "", FIXES_BATCH, ("output_shape=(5,)", "leave output_shape out")),
    ("pair", "", {"max_sequence_length": 2}, ("sequence feature", '"ragged" or "sparse"')),
    ("pair", "loads", {}, ("weighted feature", '"ragged" or "sparse"')),
    ("bag", "tag_weights", {}, ("a SparseTensor", "ids a RaggedTensor")),
]


@pytest.mark.parametrize(("ids", "weights", "options", "words"), TPU_FEATURES)
def test_feature_of_an_embedding_layer_that_no_bundle_supports_is_refused(
    ids: str, weights: str, options: dict[str, Any], words: tuple[str, ...], checkpoint: Path
) -> None:
    config = {"looked": E.FeatureConfig(TABLE, **options)}

    def call(model: Any, f: Any) -> Any:
        weights_of_ids = {"looked": f[weights]} if weights else None
        ids_of_inputs = {"looked": f[ids]}
        tables = {TABLE: model.items}
        return E.serving_embedding_lookup(ids_of_inputs, weights_of_ids, tables, config)["looked"]

    assert_says(message_of(NotConvertible, checkpoint, call), "'looked'", *words)

"""Generated feature configurations against every lookup that TensorFlow has, on a CPU, in one process.

Gathers must be equal bit for bit; combined vectors are float32 sums of the same products in another order. All of the
configurations are one call of thousands of ids to the reader, which gives the bits that each has alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.columns import Column, Place
from bundle.features.reader import FeatureReader
from bundle.format import manifest as entries
from bundle.tables.reader import ShardWriter, TableReader
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from tests.golden.feature_configurations import (
    BOUNDARIES,
    DIM,
    EXAMPLES,
    KEYS,
    ROWS,
    Configuration,
    column_of,
    generate,
    page_of,
    values_of,
)

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"
import tensorflow as tf

CONFIGURATIONS = generate()
NAMES = {f"{each.call}-{each}": each for each in CONFIGURATIONS}
STORED = np.random.default_rng(11).standard_normal((ROWS, DIM)).astype(np.float32)
STORED_TABLE = tf.constant(STORED)
embedding = tf.tpu.experimental.embedding


def inputs_of(name: str, each: Configuration) -> tuple[str, ...]:
    return tuple(f"{name}.{number}" for number in range(len(each.options[0]))) if each.rule == "cross" else (name,)


def columns_of(name: str, each: Configuration) -> dict[str, Column]:
    if each.rule != "cross":
        return {name: column_of(each)}
    random = np.random.default_rng(each.seed)
    found = {}
    for read, kind in zip(inputs_of(name, each), each.options[0], strict=True):
        rule, width = SENT.get(kind, ("hash", 0))
        lengths = np.full(EXAMPLES, width) if width else random.integers(0 if each.empty else 1, 4, EXAMPLES)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        negative = each.negative and (rule != "identity" or kind == "row or 5")
        values = values_of(Configuration("", "bag", "sparse", rule=rule, negative=negative), int(offsets[-1]), random)
        if kind == "padded":
            values[::4] = ""
        found[read] = Column(values, offsets)
    return found


SENT = {
    "string": ("hash strings", 0),
    "buckets": ("buckets", 1),
    "rows": ("identity", 0),
    "row or 5": ("identity", 0),
    "listed": ("identity", 0),
    "known": ("vocabulary strings", 0),
    "hashed": ("vocabulary strings", 0),
    "numbers": ("vocabulary", 0),
    "padded": ("vocabulary strings", 3),
}
"""What is sent for a key of a cross, and as how many values of each example; others as integers, any number."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureReader]:
    root = tmp_path_factory.mktemp("table")
    with ShardWriter(root / "t") as writer:
        writer.write(STORED.astype("<f4").tobytes())
    digest = writer.close()
    shard = entries.Shard(file="t", first_row=0, rows=ROWS, crc32c=digest.crc32c, blocks=digest.blocks)
    source = entries.TableSource(layout="plain", key="t")
    table = TableReader(root, entries.Table(rows=ROWS, dim=DIM, dtype="float32", shards=(shard,), source=source))
    vocabularies = {
        "integers": Vocabulary(IntegerKeys(np.array(KEYS))),
        "strings": Vocabulary(StringKeys([str(key) for key in KEYS])),
    }
    features = {name: page_of(each, inputs_of(name, each)) for name, each in NAMES.items()}
    opened = FeatureReader(features, {"t": table}, vocabularies)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def sent() -> dict[str, Column]:
    return {read: column for name, each in NAMES.items() for read, column in columns_of(name, each).items()}


@pytest.fixture(scope="module")
def found(reader: FeatureReader, sent: dict[str, Column]) -> dict[str, NDArray[np.float32]]:
    return {name: each.values for name, each in reader.activations(NAMES, sent, EXAMPLES).items()}


def encoded(each: Configuration, column: Column, values: Any) -> Any:
    """Returns a flat tensor as the tensor that a configuration gives to TensorFlow."""
    if each.encoding == "dense":
        return tf.reshape(values, [EXAMPLES] if each.kind == "single" else [EXAMPLES, -1])
    assert column.offsets is not None
    if each.encoding == "ragged":
        return tf.RaggedTensor.from_row_splits(values, column.offsets)
    lengths = np.diff(column.offsets)
    example = np.repeat(np.arange(EXAMPLES), lengths)
    place = np.arange(column.values.size) - column.offsets[example]
    return tf.SparseTensor(np.stack([example, place], 1).astype(np.int64), values, [EXAMPLES, lengths.max(initial=1)])


def tensors(each: Configuration, column: Column) -> tuple[Any, Any]:
    """Returns the ids, hashed by TensorFlow where the rule says so, and the weights."""
    values = tf.constant(column.values)
    if each.rule.startswith("hash") and each.call not in ("column", "indicator"):
        texts = values if values.dtype == tf.string else tf.strings.as_string(values)
        values = tf.strings.to_hash_bucket_fast(texts, ROWS)
    weights = None if column.weights is None else encoded(each, column, tf.constant(column.weights))
    return encoded(each, column, values), weights


def by_serving(each: Configuration, column: Column) -> Any:
    ids, weights = tensors(each, column)
    combiner = each.options[0] if each.options else each.combiner
    table = embedding.TableConfig(ROWS, DIM, combiner=combiner if combiner != "none" else "mean", name="t")
    length = (each.length or 0) if each.encoding != "dense" and each.call != "shaped" else 0
    shape = [EXAMPLES, each.length] if each.length else [EXAMPLES]
    config = embedding.FeatureConfig(
        table, max_sequence_length=length, output_shape=shape if each.call == "shaped" else None
    )
    return embedding.serving_embedding_lookup(
        [ids], None if weights is None else [weights], {table: tf.Variable(STORED)}, [config]
    )[0]


def by_safe_lookup(each: Configuration, column: Column) -> Any:
    ids, weights = tensors(each, column)
    return tf.nn.safe_embedding_lookup_sparse(
        STORED_TABLE, ids, weights, each.combiner, default_id=each.empty_row, max_norm=each.max_norm
    )


def by_plain_lookup(each: Configuration, column: Column) -> Any:
    ids, weights = tensors(each, column)
    return tf.nn.embedding_lookup_sparse(STORED_TABLE, ids, weights, each.combiner, max_norm=each.max_norm)


def by_embedding_layer(each: Configuration, column: Column) -> Any:
    layer = tf.keras.layers.Embedding(ROWS, DIM, weights=[STORED])
    return layer(tensors(each, column)[0])


def by_lookup_layer(each: Configuration, column: Column) -> Any:
    oov, masked, newer = each.options
    import keras

    layers = keras.layers if newer else tf.keras.layers
    texts = column.values.dtype == object
    known: Any = [str(key) for key in KEYS] if texts else list(KEYS)
    kind = layers.StringLookup if texts else layers.IntegerLookup
    layer = kind(vocabulary=known, num_oov_indices=oov, mask_token=("" if texts else 0) if masked else None)
    return tf.gather(STORED_TABLE, layer(tensors(each, column)[0]))


def by_arithmetic(each: Configuration, column: Column) -> Any:
    shift, divisor, buckets, truncated, first_row = each.options
    ids, _ = tensors(each, column)
    ids = (ids + shift) // divisor
    if buckets is not None:
        ids = tf.truncatemod(ids, tf.constant(buckets, tf.int64)) if truncated else ids % buckets
    return rows_within(ids + first_row)


def rows_within(ids: Any) -> Any:
    """Gathers rows; zeros of those beyond the table, which TensorFlow refuses on a CPU."""
    known = (ids >= 0) & (ids < ROWS)
    return tf.where(known[..., None], tf.gather(STORED_TABLE, tf.where(known, ids, tf.zeros_like(ids))), 0.0)


def by_hashing_layer(each: Configuration, column: Column) -> Any:
    masked, *keys = each.options
    import keras

    made = []
    for layers in (tf.keras.layers, keras.layers):
        mask = ("über" if "strings" in each.rule else 5) if masked else None
        layer = layers.Hashing(ROWS, mask_value=mask, salt=tuple(keys) or None)
        made.append(tf.gather(STORED_TABLE, layer(encoded(each, column, tf.constant(column.values)))))
    tf.debugging.assert_equal(*made)
    return made[0]


def by_column(each: Configuration, column: Column) -> Any:
    columns, texts = tf.feature_column, column.values.dtype == object
    known: Any = [str(key) for key in KEYS] if texts else list(KEYS)
    default = -1 if each.unknown is None else each.unknown
    if each.rule == "identity":
        category = columns.categorical_column_with_identity("f", ROWS, each.unknown)
    elif each.rule.startswith("hash"):
        category = columns.categorical_column_with_hash_bucket("f", ROWS, tf.string if texts else tf.int64)
    elif each.rule == "buckets":
        category = columns.bucketized_column(columns.numeric_column("f", (each.length,)), list(BOUNDARIES))
    elif "oov" in each.rule:
        category = columns.categorical_column_with_vocabulary_list("f", known, num_oov_buckets=ROWS - len(known))
    else:
        category = columns.categorical_column_with_vocabulary_list("f", known, default_value=default)
    ids, weights = tensors(each, column)
    if weights is not None:
        category = columns.weighted_categorical_column(category, "w")
    return densely(category, each, {"f": ids, "w": weights} if weights is not None else {"f": ids})


def by_crossed_column(each: Configuration, given: dict[str, Column]) -> Any:
    columns, (kinds, hash_key) = tf.feature_column, each.options
    listed = [str(row) for row in range(ROWS)]
    known: Any = [str(key) for key in KEYS]
    vocabulary = columns.categorical_column_with_vocabulary_list
    made: dict[str, Callable[[str], Any]] = {
        "row or 5": lambda read: columns.categorical_column_with_identity(read, ROWS, 5),
        "known": lambda read: vocabulary(read, known),
        "hashed": lambda read: vocabulary(read, known, num_oov_buckets=9),
        "numbers": lambda read: vocabulary(read, list(KEYS), default_value=3),
        "padded": lambda read: vocabulary(read, known),
        "buckets": lambda read: columns.bucketized_column(columns.numeric_column(read), list(BOUNDARIES)),
        "rows": lambda read: columns.categorical_column_with_identity(read, ROWS),
        "listed": lambda read: columns.categorical_column_with_vocabulary_list(read, listed),  # sent as its rows
    }
    keys = [made.get(kind, str)(read) for read, kind in zip(given, kinds, strict=True)]
    features = {
        read: tf.reshape(tf.constant(column.values), [EXAMPLES, -1])
        if kind in ("buckets", "padded")
        else encoded(each, column, tf.constant(column.values.astype(str) if kind == "listed" else column.values))
        for (read, column), kind in zip(given.items(), kinds, strict=True)
    }
    return densely(columns.crossed_column(keys, ROWS, hash_key), each, features)


def densely(category: Any, each: Configuration, features: dict[str, Any]) -> Any:
    if "indicator" in each.call:
        return tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(category)])(features)
    table = tf.constant(STORED[: category.num_buckets])
    column = tf.feature_column.embedding_column(
        category, DIM, each.combiner, lambda *_, **__: table, max_norm=each.max_norm
    )
    return tf.keras.layers.DenseFeatures([column])(features)


def stepped_rows(each: Configuration, numbers: Any) -> Any:
    """Rows that rise with a number, or fall: limits of what it is less than are those that it is more than, negated."""
    falling, first_row = each.options
    flat = tf.reshape(numbers, [-1])
    limits = -tf.constant(BOUNDARIES[::-1]) if falling else tf.constant(BOUNDARIES)
    found = tf.searchsorted(limits, -flat if falling else flat, side="left" if falling else "right")
    return tf.reshape(found, numbers.shape) + first_row


CALLS: dict[str, Callable[[Configuration, Any], Any]] = {
    "serving": by_serving,
    "shaped": by_serving,
    "safe": by_safe_lookup,
    "plain": by_plain_lookup,
    "embedding": by_embedding_layer,
    "lookup": by_lookup_layer,
    "computed": by_arithmetic,
    "stepped": lambda each, column: rows_within(stepped_rows(each, tensors(each, column)[0])),
    "hashing": by_hashing_layer,
    "column": by_column,
    "indicator": by_column,
    "crossed": by_crossed_column,
    "crossed indicator": by_crossed_column,
}


@pytest.mark.parametrize("name", NAMES)
def test_configuration_agrees_with_tensorflow(
    name: str, reader: FeatureReader, sent: dict[str, Column], found: dict[str, NDArray[np.float32]]
) -> None:
    each = NAMES[name]
    given = {read: sent[read] for read in inputs_of(name, each)}
    alone = reader.activation(name, given, EXAMPLES).values
    written = np.empty((EXAMPLES, alone.size // EXAMPLES), np.float32)
    reader.write([Place(written, (name,), (written.shape[1],))], given, EXAMPLES)
    for same in (alone, written):
        assert (same.view(np.uint32).ravel() == found[name].view(np.uint32).ravel()).all()
    expected = CALLS[each.call](each, given if each.rule == "cross" else given[name]).numpy()
    expected = expected.reshape(found[name].shape)
    if each.kind == "bag":  # the same products, added in another order
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=2e-5)
    else:
        assert (found[name].view(np.uint32) == expected.view(np.uint32)).all()
    if each.empty:
        assert (expected[0] == 0).all() or each.rule == "cross" or each.empty_row is not None

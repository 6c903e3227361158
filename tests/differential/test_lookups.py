"""Features against every lookup that TensorFlow has, on a CPU, in one process.

Gathers must be equal bit for bit; combined vectors are float32 sums of the same products in another
order. All of the cases are one call of thousands of ids to the reader, which gives the bits that
each has alone. A test compares all cases of a generator, and names those that differ.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.columns import Column, OutputBlock
from bundle.features.reader import FeatureReader
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from tests.bundles.tables import write_table
from tests.differential.lookup_cases import (
    BOUNDARIES,
    DIM,
    EXAMPLES,
    KEYS,
    ROWS,
    Case,
    columns_of,
    generate,
)

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

CASES = generate()
GROUPS = sorted({name.partition("-")[0] for name in CASES})
SENT = {name: columns_of(case, seed) for seed, (name, case) in enumerate(CASES.items())}
STORED = np.random.default_rng(11).standard_normal((ROWS, DIM)).astype(np.float32)
TABLE = tf.constant(STORED)
embedding = tf.tpu.experimental.embedding
fc = tf.feature_column
TEXTS = [str(key) for key in KEYS]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureReader]:
    root = tmp_path_factory.mktemp("table")
    table = TableReader(root, write_table(root, "t", STORED.astype("<f4"), "float32", []))
    vocabularies = {
        "integers": Vocabulary(IntegerKeys(np.array(KEYS))),
        "strings": Vocabulary(StringKeys(TEXTS)),
    }
    opened = FeatureReader(
        {name: case.entry for name, case in CASES.items()}, {"t": table}, vocabularies
    )
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def activations(reader: FeatureReader) -> dict[str, NDArray[np.float32]]:
    sent = {name: column for columns in SENT.values() for name, column in columns.items()}
    return {
        name: activation.values
        for name, activation in reader.activations(CASES, sent, EXAMPLES).items()
    }


def encoded(case: Case, column: Column, values: Any, place: int = 0) -> Any:
    """Returns flat values as the tensor that a case gives to TensorFlow."""
    if case.ids[place].width is not None:
        return tf.reshape(values, [EXAMPLES] if case.entry.kind == "single" else [EXAMPLES, -1])
    assert column.offsets is not None
    if case.entry.encoding == "ragged":
        return tf.RaggedTensor.from_row_splits(values, column.offsets)
    lengths = np.diff(column.offsets)
    example = np.repeat(np.arange(EXAMPLES), lengths)
    at = np.arange(column.values.size) - column.offsets[example]
    return tf.SparseTensor(
        np.stack([example, at], 1).astype(np.int64), values, [EXAMPLES, lengths.max(initial=1)]
    )


def ids_of(case: Case, column: Column) -> Any:
    """Returns the ids as tables take them, hashed by TensorFlow where the rule says so."""
    values = tf.constant(column.values)
    if case.rule == "hash":
        texts = values if values.dtype == tf.string else tf.strings.as_string(values)
        values = tf.strings.to_hash_bucket_fast(texts, ROWS)
    return encoded(case, column, values)


def weights_of(case: Case, column: Column) -> Any:
    return None if column.weights is None else encoded(case, column, tf.constant(column.weights))


def by_serving(case: Case, column: Column) -> Any:
    ids = ids_of(case, column)
    weights = weights_of(case, column)
    length = case.entry.length
    combiner = case.options[0] if case.options else case.entry.combiner or "mean"
    table = embedding.TableConfig(ROWS, DIM, combiner=combiner, name="t")
    shaped = case.call == "shaped"
    output_shape = None
    if shaped:
        output_shape = [EXAMPLES, length] if length else [EXAMPLES]
    config = embedding.FeatureConfig(
        table,
        max_sequence_length=(length or 0) if case.ids[0].width is None and not shaped else 0,
        output_shape=output_shape,
    )
    weighted = None if weights is None else [weights]
    return embedding.serving_embedding_lookup(
        [ids], weighted, {table: tf.Variable(STORED)}, [config]
    )[0]


def by_safe_lookup(case: Case, column: Column) -> Any:
    entry = case.entry
    weights = weights_of(case, column)
    return tf.nn.safe_embedding_lookup_sparse(
        TABLE,
        ids_of(case, column),
        weights,
        entry.combiner,
        default_id=entry.empty_row,
        max_norm=entry.max_norm,
    )


def by_plain_lookup(case: Case, column: Column) -> Any:
    entry = case.entry
    weights = weights_of(case, column)
    return tf.nn.embedding_lookup_sparse(
        TABLE, ids_of(case, column), weights, entry.combiner, max_norm=entry.max_norm
    )


def by_embedding_layer(case: Case, column: Column) -> Any:
    return tf.keras.layers.Embedding(ROWS, DIM, weights=[STORED])(ids_of(case, column))


def by_column(case: Case, column: Column) -> Any:
    text = case.ids[0].text
    default = case.entry.unknown.row
    if case.rule == "identity":
        category = fc.categorical_column_with_identity("f", ROWS, default)
    elif case.rule == "hash":
        category = fc.categorical_column_with_hash_bucket(
            "f", ROWS, tf.string if text else tf.int64
        )
    elif case.rule == "buckets":
        category = fc.bucketized_column(fc.numeric_column("f", (1,)), list(BOUNDARIES))
    else:
        how: Any = {"default_value": -1 if default is None else default}
        how = {"num_oov_buckets": ROWS - len(KEYS)} if case.rule == "oov" else how
        category = fc.categorical_column_with_vocabulary_list(
            "f", TEXTS if text else list(KEYS), **how
        )
    features = {"f": encoded(case, column, tf.constant(column.values))}
    if column.weights is not None:
        category = fc.weighted_categorical_column(category, "w")
        features["w"] = weights_of(case, column)
    return densely(category, case, features)


def by_crossed_column(case: Case, given: dict[str, Column]) -> Any:
    vocabulary = fc.categorical_column_with_vocabulary_list
    identity = fc.categorical_column_with_identity
    made: dict[str, Callable[[str], Any]] = {
        "row or 5": lambda read: identity(read, ROWS, 5),
        "known": lambda read: vocabulary(read, TEXTS),
        "hashed": lambda read: vocabulary(read, TEXTS, num_oov_buckets=9),
        "numbers": lambda read: vocabulary(read, list(KEYS), default_value=3),
        "padded": lambda read: vocabulary(read, TEXTS),
        "buckets": lambda read: fc.bucketized_column(fc.numeric_column(read), list(BOUNDARIES)),
        "rows": lambda read: identity(read, ROWS),
        "listed": lambda read: vocabulary(
            read, [str(row) for row in range(ROWS)]
        ),  # sent as its rows
    }
    kinds, hash_key = case.options
    keys = [made.get(kind, str)(read) for read, kind in zip(given, kinds, strict=True)]
    features = {}
    for place, (kind, (read, column)) in enumerate(zip(kinds, given.items(), strict=True)):
        values = column.values.astype(str) if kind == "listed" else column.values
        features[read] = encoded(case, column, tf.constant(values), place)
    return densely(fc.crossed_column(keys, ROWS, hash_key), case, features)


def densely(category: Any, case: Case, features: dict[str, Any]) -> Any:
    entry = case.entry
    if case.call == "indicator":
        return tf.keras.layers.DenseFeatures([fc.indicator_column(category)])(features)
    table = tf.constant(STORED[: category.num_buckets])
    column = fc.embedding_column(
        category, DIM, entry.combiner, lambda *_, **__: table, max_norm=entry.max_norm
    )
    return tf.keras.layers.DenseFeatures([column])(features)


CALLS: dict[str, Callable[[Case, Any], Any]] = {
    "serving": by_serving,
    "shaped": by_serving,
    "safe": by_safe_lookup,
    "plain": by_plain_lookup,
    "embedding": by_embedding_layer,
    "column": by_column,
    "indicator": by_column,
}


@pytest.mark.parametrize("group", GROUPS)
def test_features_agree_with_tensorflow(
    group: str, reader: FeatureReader, activations: dict[str, NDArray[np.float32]]
) -> None:
    problems = []
    for name in CASES:
        if name.startswith(f"{group}-"):
            try:
                assert_agrees(name, reader, activations[name])
            except AssertionError as problem:
                problems.append(f"{name}: {problem}")
    assert not problems, "\n".join(problems)


def assert_agrees(name: str, reader: FeatureReader, among_others: NDArray[np.float32]) -> None:
    """Compares what a feature gives among all others with what it gives alone, and TensorFlow."""
    case = CASES[name]
    sent = SENT[name]
    alone = reader.activation(name, sent, EXAMPLES).values
    written = np.empty((EXAMPLES, alone.size // EXAMPLES), np.float32)
    reader.write([OutputBlock(written, (name,), (written.shape[1],))], sent, EXAMPLES)
    for same in (alone, written):
        np.testing.assert_array_equal(bits_of(same), bits_of(among_others))
    if len(sent) > 1:
        expected = by_crossed_column(case, sent).numpy()
    else:
        expected = CALLS[case.call](case, sent[name]).numpy()
    if case.entry.kind == "bag":  # the same products, added in another order
        np.testing.assert_allclose(among_others.ravel(), expected.ravel(), rtol=1e-5, atol=2e-5)
    else:
        np.testing.assert_array_equal(bits_of(among_others), bits_of(expected))


def bits_of(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    return values.ravel().view(np.uint32)

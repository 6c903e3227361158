from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.errors import NotConvertible
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.lookups.feature_columns import intercept_columns, no_lengths
from export.tensorflow_models.lookups.records import Lookup

fc = tf.feature_column
v1 = tf.compat.v1


def dense(dtype: Any, *shape: int) -> Any:
    return tf.TensorSpec([None, *shape], dtype)


SPARSE = tf.SparseTensorSpec([None, None], tf.int64)


def by_column(columns: list[Any], inputs: dict[str, Any], layer: Any = None) -> dict[str, Lookup]:
    found: dict[str, Lookup] = {}

    def answer(lookup: Lookup) -> Any:
        found[lookup.path] = lookup
        return v1.placeholder(tf.float32, lookup.shape)

    with Hooks() as hooks:
        intercept_columns(hooks, answer, no_lengths)
        v1.wrap_function(layer or tf.keras.layers.DenseFeatures(columns), [inputs])
    return found


def embedded(column: Any, **how: Any) -> Any:
    return fc.embedding_column(column, 4, **how)


def identity(key: str) -> Any:
    return fc.categorical_column_with_identity(key, 9)


@pytest.fixture
def kinds(tmp_path: Path) -> str:
    """A vocabulary file of three keys."""
    file = tmp_path / "kinds.txt"
    file.write_text("x\ny é\nz\n", encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("size", "keys"), [(2, ("x", "y é")), (3, ("x", "y é", "z")), (None, ("x", "y é", "z"))]
)
def test_columns_intercepted_vocabulary_file_reads_its_first_keys(
    kinds: str, size: int | None, keys: tuple[str, ...]
) -> None:
    column = fc.categorical_column_with_vocabulary_file("kind", kinds, vocabulary_size=size)
    found = by_column([embedded(column)], {"kind": dense(tf.string)})
    assert found["kind_embedding"].keys == (keys,)


def test_columns_intercepted_vocabulary_file_with_too_few_keys_is_refused(kinds: str) -> None:
    column = fc.categorical_column_with_vocabulary_file("kind", kinds, vocabulary_size=4)
    with pytest.raises(NotConvertible, match="has 3 lines; vocabulary_size is 4"):
        by_column([embedded(column)], {"kind": dense(tf.string)})


def test_columns_intercepted_sequence_takes_the_declared_length() -> None:
    column = embedded(fc.sequence_categorical_column_with_identity("seen", 9))
    layer = tf.keras.experimental.SequenceFeatures([column])
    found = by_column([], {"seen": dense(tf.int64, 5)}, layer)["seen_embedding"]
    assert (found.kind, found.length, found.shape, found.combiner) == (
        "sequence",
        5,
        (None, 5, 4),
        None,
    )
    hashed = fc.indicator_column(
        fc.sequence_categorical_column_with_hash_bucket("seen", 5, tf.int64)
    )
    layer = tf.keras.experimental.SequenceFeatures([hashed])
    assert by_column([], {"seen": dense(tf.int64, 4)}, layer)["seen_indicator"].shape == (
        None,
        4,
        5,
    )


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            lambda: embedded(
                fc.crossed_column(
                    [fc.bucketized_column(fc.numeric_column("ids", 2), [1.0]), "ids"], 5
                )
            ),
            "its own column",
        ),
        (
            lambda: embedded(
                fc.bucketized_column(fc.numeric_column("ids", normalizer_fn=tf.square), [1.0])
            ),
            "leave normalizer_fn out",
        ),
        (lambda: embedded(fc.crossed_column([identity("ids"), "ids"], 5)), "declare it as sparse"),
        (
            lambda: embedded(
                fc.crossed_column(
                    [fc.sequence_categorical_column_with_identity("ids", 5), "ids"], 5
                )
            ),
            "crosses column 'ids', a SequenceCategoricalColumn; only inputs and columns of buckets",
        ),
        (
            lambda: fc.indicator_column(
                fc.categorical_column_with_hash_bucket("ids", 70_000, tf.int64)
            ),
            "'ids_indicator' is an indicator of 70000 numbers per example; at most 65536",
        ),
        (
            lambda: embedded(
                fc.weighted_categorical_column(identity("ids"), "w"),
                use_safe_embedding_lookup=False,
            ),
            "use_safe_embedding_lookup=False",
        ),
    ],
)
def test_columns_intercepted_unsupported_column_is_refused(column: Any, message: str) -> None:
    with pytest.raises(NotConvertible, match=message):
        by_column([column()], {"ids": dense(tf.int64, 2), "w": dense(tf.float32, 2)})


def test_columns_intercepted_sequence_without_a_length_is_refused() -> None:
    layer = tf.keras.experimental.SequenceFeatures(
        [embedded(fc.sequence_categorical_column_with_identity("seen", 9))]
    )
    with pytest.raises(NotConvertible, match="declare input 'seen' as dense"):
        by_column([], {"seen": SPARSE}, layer)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bundle.format.manifest import BucketIds, CrossedIds, IdentityIds, VocabularyIds
from export.errors import NotConvertible
from export.frameworks.hooks import Hooks
from export.frameworks.loading import load_tensorflow
from export.lookups.feature_columns import intercept_columns, no_lengths
from export.lookups.records import Lookup

tf = load_tensorflow()
fc, v1 = tf.feature_column, tf.compat.v1


def dense(dtype: Any, *shape: int) -> Any:
    return tf.TensorSpec([None, *shape], dtype)


SPARSE = tf.SparseTensorSpec([None, None], tf.int64)


def lookups_of(columns: list[Any], inputs: dict[str, Any], layer: Any = None) -> list[Lookup]:
    found: list[Lookup] = []

    def answer(lookup: Lookup) -> Any:
        found.append(lookup)
        return v1.placeholder(tf.float32, lookup.shape)

    with Hooks() as hooks:
        intercept_columns(hooks, answer, no_lengths)
        v1.wrap_function(layer or tf.keras.layers.DenseFeatures(columns), [inputs])
    return found


def by_column(columns: list[Any], inputs: dict[str, Any], layer: Any = None) -> dict[str, Lookup]:
    return {lookup.path: lookup for lookup in lookups_of(columns, inputs, layer)}


def embedded(column: Any, combiner: str = "mean", **how: Any) -> Any:
    return fc.embedding_column(column, 4, combiner=combiner, **how)


def identity(key: str, rows: int = 9, default: int | None = None) -> Any:
    return fc.categorical_column_with_identity(key, rows, default)


def test_columns_intercepted_buckets_of_several_numbers_are_a_row_of_each() -> None:
    sizes = fc.numeric_column("sizes", shape=(3,), normalizer_fn=lambda numbers: numbers - [1.0, 2.0, 3.0])
    column = embedded(fc.bucketized_column(sizes, [0.0, 5.0]), "sqrtn", max_norm=0.5)
    found = lookups_of([column], {"sizes": dense(tf.float32, 3)})
    assert [lookup.rule for lookup in found] == [
        BucketIds(boundaries=(1.0 + at, 6.0 + at), first_row=3 * at) for at in range(3)
    ]
    read = {(lookup.table.rows, lookup.kind, lookup.combiner, lookup.max_norm) for lookup in found}
    assert read == {(9, "single", None, 0.5)}


def test_columns_intercepted_cross_of_columns_tells_what_makes_rows_of_each_key() -> None:
    columns = [
        identity("near", default=2),
        fc.categorical_column_with_vocabulary_list("text", ["a", "b"]),
        fc.categorical_column_with_vocabulary_list("number", [7, 5], num_oov_buckets=3),
        "city",
    ]
    inputs = {"near": SPARSE, "text": dense(tf.string, 3), "number": dense(tf.int64, 1), "city": dense(tf.string)}
    cross = by_column([embedded(fc.crossed_column(columns, 30))], inputs)["city_X_near_X_number_X_text_embedding"]
    assert isinstance(cross.rule, CrossedIds)
    near, text, number, city = cross.rule.keys
    assert (near.ids, near.rows, near.unknown_row, near.padding) == (IdentityIds(), 9, 2, None)
    assert (text.dtype, text.rows, text.unknown_row, text.padding) == ("string", 2, None, "")
    assert isinstance(number.ids, VocabularyIds)
    assert (number.dtype, number.ids.oov_buckets, number.rows, number.padding) == ("int64", 3, 5, -1)
    assert (city.dtype, city.ids, city.padding) == ("string", None, None)
    assert cross.keys == (("a", "b"), (7, 5))


def test_columns_intercepted_vocabulary_file_reads_its_first_keys(tmp_path: Path) -> None:
    file = tmp_path / "kinds.txt"
    file.write_text("x\ny é\nz\n", encoding="utf-8")
    column = fc.categorical_column_with_vocabulary_file("kind", str(file), vocabulary_size=2)
    assert by_column([embedded(column)], {"kind": dense(tf.string)})["kind_embedding"].keys == (("x", "y é"),)


def test_columns_intercepted_sequence_takes_the_declared_length() -> None:
    column = embedded(fc.sequence_categorical_column_with_identity("seen", 9))
    layer = tf.keras.experimental.SequenceFeatures([column])
    found = by_column([], {"seen": dense(tf.int64, 5)}, layer)["seen_embedding"]
    assert (found.kind, found.length, found.shape, found.combiner) == ("sequence", 5, (None, 5, 4), None)
    hashed = fc.indicator_column(fc.sequence_categorical_column_with_hash_bucket("seen", 5, tf.int64))
    layer = tf.keras.experimental.SequenceFeatures([hashed])
    assert by_column([], {"seen": dense(tf.int64, 4)}, layer)["seen_indicator"].shape == (None, 4, 5)


def test_columns_intercepted_columns_of_tf1_share_their_table() -> None:
    with tf.Graph().as_default():  # TensorFlow makes them nowhere else
        columns = v1.feature_column.shared_embedding_columns([identity("a"), identity("b")], 4)
        columns.append(v1.tpu.experimental.embedding_column(identity("c"), 4))
    inputs = {"a": dense(tf.int64), "b": SPARSE, "c": dense(tf.int64, 2)}
    found = by_column([], inputs, lambda given: v1.feature_column.input_layer(given, columns))
    assert found["a_shared_embedding"].variable is found["b_shared_embedding"].variable
    names = {path: lookup.table.config_name for path, lookup in found.items()}
    assert names["a_shared_embedding"] == "input_layer/a_b_shared_embedding/embedding_weights"
    assert names["c_embedding"] == "input_layer/c_embedding/embedding_weights"


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed")
def test_columns_intercepted_linear_model_of_tf1_reads_crosses_of_columns_and_indicators() -> None:
    kind = fc.categorical_column_with_vocabulary_list("kind", ["a", "b"], num_oov_buckets=1)
    sizes = fc.bucketized_column(fc.numeric_column("sizes", shape=(2,)), [0.0, 5.0])
    columns = [
        sizes,
        fc.crossed_column([kind, "city"], 50),
        kind,
        fc.indicator_column(fc.crossed_column(["city", "seen"], 8)),
    ]
    inputs = {"kind": dense(tf.string), "city": dense(tf.string), "seen": SPARSE, "sizes": dense(tf.float32, 2)}
    found = by_column([], inputs, lambda given: v1.feature_column.linear_model(given, columns, units=2))
    last = found.pop("sizes_bucketized")
    assert (last.rule, last.kind, last.shape) == (BucketIds(boundaries=(0.0, 5.0), first_row=3), "single", (None, 2))
    assert {path: (lookup.table.rows, lookup.table.dim, lookup.kind) for path, lookup in found.items()} == {
        "city_X_kind": (50, 2, "bag"),
        "kind": (3, 2, "single"),
        "city_X_seen_indicator": (8, 8, "bag"),
    }
    assert found["city_X_kind"].keys == (("a", "b"),)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (
            lambda: embedded(fc.crossed_column([fc.bucketized_column(fc.numeric_column("ids", 2), [1.0]), "ids"], 5)),
            "its own column",
        ),
        (
            lambda: embedded(fc.bucketized_column(fc.numeric_column("ids", normalizer_fn=tf.square), [1.0])),
            "leave normalizer_fn out",
        ),
        (lambda: embedded(fc.crossed_column([identity("ids"), "ids"], 5)), "declare it as sparse"),
        (
            lambda: embedded(fc.crossed_column([fc.sequence_categorical_column_with_identity("ids", 5), "ids"], 5)),
            "crosses column 'ids', a SequenceCategoricalColumn; inputs, and columns of buckets",
        ),
        (
            lambda: fc.indicator_column(fc.categorical_column_with_hash_bucket("ids", 70_000, tf.int64)),
            "'ids_indicator' is an indicator of 70000 numbers an example, and at most 65536",
        ),
        (
            lambda: embedded(fc.weighted_categorical_column(identity("ids"), "w"), use_safe_embedding_lookup=False),
            "use_safe_embedding_lookup=False",
        ),
    ],
)
def test_columns_intercepted_what_no_feature_does_is_refused(column: Any, told: str) -> None:
    with pytest.raises(NotConvertible, match=told):
        by_column([column()], {"ids": dense(tf.int64, 2), "w": dense(tf.float32, 2)})


def test_columns_intercepted_sequence_of_any_length_is_refused() -> None:
    layer = tf.keras.experimental.SequenceFeatures([embedded(fc.sequence_categorical_column_with_identity("seen", 9))])
    with pytest.raises(NotConvertible, match="declare input 'seen' as dense"):
        by_column([], {"seen": SPARSE}, layer)

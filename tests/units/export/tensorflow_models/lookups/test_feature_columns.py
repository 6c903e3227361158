from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format.graph_builder import GraphBuilder
from bundle.format.manifest import (
    CrossedIds,
    CrossKey,
    GraphIds,
    Unknown,
)
from export.errors import NotConvertible
from export.graphs.loading import tf
from export.id_graphs.tensorflow_operations import rows_of
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.lookups.feature_columns import (
    WIDTH_MAX,
    intercept_columns,
    no_lengths,
)
from export.tensorflow_models.lookups.records import TracedLookup
from tests.id_graphs import bucket_ids, vocabulary_ids
from tests.units.export.tensorflow_models.lookups.interceptions import intercept

fc = tf.feature_column
v1 = tf.compat.v1


def dense(dtype: Any, *shape: int | None) -> Any:
    return tf.TensorSpec([None, *shape], dtype)


SPARSE = tf.SparseTensorSpec([None, None], tf.int64)


def by_column(
    columns: list[Any],
    inputs: dict[str, Any],
    layer: Any = None,
    *,
    recorded: list[TracedLookup] | None = None,
) -> dict[str, TracedLookup]:
    """Returns the lookups of columns by their names; all of them go to `recorded`, too."""
    lookups: dict[str, TracedLookup] = {}

    def placeholder(lookup: TracedLookup) -> Any:
        lookups[lookup.path] = lookup
        if recorded is not None:
            recorded.append(lookup)
        return v1.placeholder(tf.float32, lookup.shape)

    with Hooks() as hooks:
        intercept_columns(hooks, placeholder, no_lengths)
        v1.wrap_function(layer or tf.keras.layers.DenseFeatures(columns), [inputs])
    return lookups


def embedded(column: Any, **options: Any) -> Any:
    return fc.embedding_column(column, 4, **options)


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
    intercepted = by_column([embedded(column)], {"kind": dense(tf.string)})
    assert intercepted["kind_embedding"].keys == (keys,)


def test_columns_intercepted_vocabulary_file_with_too_few_keys_is_rejected(kinds: str) -> None:
    column = fc.categorical_column_with_vocabulary_file("kind", kinds, vocabulary_size=4)
    with pytest.raises(NotConvertible, match="has 3 lines; vocabulary_size is 4"):
        by_column([embedded(column)], {"kind": dense(tf.string)})


def test_columns_intercepted_sequence_takes_the_declared_length() -> None:
    column = embedded(fc.sequence_categorical_column_with_identity("seen", 9))
    layer = tf.keras.experimental.SequenceFeatures([column])
    intercepted = by_column([], {"seen": dense(tf.int64, 5)}, layer)["seen_embedding"]
    assert (intercepted.kind, intercepted.length, intercepted.shape, intercepted.combiner) == (
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
                fc.bucketized_column(fc.numeric_column("ids", normalizer_fn=tf.sin), [1.0])
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
def test_columns_intercepted_unsupported_column_is_rejected(column: Any, message: str) -> None:
    with pytest.raises(NotConvertible, match=message):
        by_column([column()], {"ids": dense(tf.int64, 2), "w": dense(tf.float32, 2)})


def test_columns_intercepted_sequence_without_a_length_is_rejected() -> None:
    layer = tf.keras.experimental.SequenceFeatures(
        [embedded(fc.sequence_categorical_column_with_identity("seen", 9))]
    )
    with pytest.raises(NotConvertible, match="declare input 'seen' as dense"):
        by_column([], {"seen": SPARSE}, layer)


@pytest.mark.parametrize(
    ("spec", "kind", "length", "encoding", "padding"),
    [
        (dense(tf.int64), "single", None, "dense", -1),
        (dense(tf.int64, 1), "single", None, "dense", -1),
        (dense(tf.int64, 2), "bag", None, "dense", -1),
        (SPARSE, "bag", None, "sparse", None),
    ],
)
def test_columns_intercepted_ids_are_one_or_a_bag(
    spec: Any, kind: str, length: int | None, encoding: str, padding: int | None
) -> None:
    intercepted = by_column([embedded(identity("ids"), combiner="sqrtn")], {"ids": spec})[
        "ids_embedding"
    ]
    assert (intercepted.kind, intercepted.length, intercepted.encoding, intercepted.padding) == (
        kind,
        length,
        encoding,
        padding,
    )
    assert intercepted.combiner == (None if kind == "single" else "sqrtn")
    assert (intercepted.table.rows, intercepted.table.dim) == (9, 4)


def test_columns_intercepted_missing_string_is_empty() -> None:
    column = fc.categorical_column_with_hash_bucket("city", 5)
    intercepted = by_column([embedded(column)], {"city": dense(tf.string, 2)})
    assert intercepted["city_embedding"].padding == ""


@pytest.mark.parametrize("spec", [dense(tf.int64, 1), SPARSE])
def test_columns_intercepted_weights_make_a_bag(spec: Any) -> None:
    column = embedded(fc.weighted_categorical_column(identity("ids"), "w"))
    weights = (
        tf.SparseTensorSpec([None, None], tf.float32) if spec is SPARSE else dense(tf.float32, 1)
    )
    (intercepted,) = by_column([column], {"ids": spec, "w": weights}).values()
    assert intercepted.kind == "bag"
    assert intercepted.weights is not None
    assert intercepted.weights.dtype == tf.float32


def test_columns_intercepted_unsafe_lookup_without_weights_is_a_bag() -> None:
    column = embedded(identity("ids"), use_safe_embedding_lookup=False)
    assert by_column([column], {"ids": SPARSE})["ids_embedding"].weights is None


@pytest.mark.parametrize(("oov", "default"), [(0, -1), (0, 0), (0, 1), (2, -1)])
@pytest.mark.parametrize(("keys", "dtype"), [(["x", "y", "z"], tf.string), ([7, 5, 3], tf.int64)])
def test_columns_intercepted_vocabulary_has_rows_for_other_keys(
    oov: int, default: int, keys: list[Any], dtype: Any
) -> None:
    column = fc.categorical_column_with_vocabulary_list(
        "kind", keys, num_oov_buckets=oov, default_value=default
    )
    intercepted = by_column([embedded(column)], {"kind": dense(dtype)})["kind_embedding"]
    assert intercepted.keys == (tuple(keys),)
    # What has no row, -1, is left out.
    assert intercepted.unknown == Unknown()
    assert isinstance(intercepted.rule, GraphIds)
    positions = tf.lookup.KeyValueTensorInitializer(keys, tf.range(3, dtype=tf.int64), dtype)
    vocabularies = {"kind": tf.lookup.StaticHashTable(positions, -1)}
    values = tf.constant([*keys, "9" if dtype == tf.string else 9], dtype)
    hashed = tf.strings.to_hash_bucket_fast("9", oov).numpy() if oov else 0
    rows = rows_of(intercepted.rule, values, vocabularies).numpy().tolist()
    assert rows == [0, 1, 2, 3 + hashed if oov else default]


@pytest.mark.parametrize(("default", "unknown"), [(None, None), (3, Unknown(rule="row", row=3))])
def test_columns_intercepted_identity_states_the_row_of_others(
    default: int | None, unknown: Unknown | None
) -> None:
    column = fc.categorical_column_with_identity("ids", 9, default)
    intercepted = by_column([embedded(column)], {"ids": dense(tf.int64)})["ids_embedding"]
    assert (intercepted.rule, intercepted.unknown) == (None, unknown)


def test_columns_intercepted_compressed_vocabulary_is_rejected(tmp_path: Path) -> None:
    column = fc.categorical_column_with_vocabulary_file(
        "kind", str(tmp_path / "keys"), 3, file_format="tfrecord_gzip"
    )
    message = "is a TFRecord file; write it as text, one key per line"
    with pytest.raises(NotConvertible, match=message):
        by_column([embedded(column)], {"kind": dense(tf.string)})


def bucketized(combiner: str = "mean", **options: Any) -> Any:
    numbers = fc.numeric_column("ages", 2, **options)
    return embedded(fc.bucketized_column(numbers, [1.0, 2.0]), combiner=combiner)


@pytest.mark.parametrize("normalizer", [None, lambda number: number / 2])
def test_columns_intercepted_buckets_of_each_number_follow_those_before(normalizer: Any) -> None:
    recorded: list[TracedLookup] = []
    column = bucketized(normalizer_fn=normalizer)
    by_column([column], {"ages": dense(tf.float32, 2)}, recorded=recorded)
    boundaries = (1.0, 2.0) if normalizer is None else (2.0, 4.0)
    assert [lookup.rule for lookup in recorded] == [
        bucket_ids(boundaries, first_row=0),
        bucket_ids(boundaries, first_row=3),
    ]
    assert [lookup.ids[0].shape.as_list() for lookup in recorded] == [[None], [None]]
    assert {lookup.table.rows for lookup in recorded} == {6}


def test_columns_intercepted_normalizer_of_one_number_gives_its_buckets() -> None:
    number = fc.numeric_column("age", normalizer_fn=lambda number: number - 1)
    column = embedded(fc.bucketized_column(number, [1.0]))
    intercepted = by_column([column], {"age": dense(tf.float32)})["age_bucketized_embedding"]
    assert intercepted.rule == bucket_ids((2.0,))


def test_columns_intercepted_normalizer_that_mixes_numbers_is_rejected() -> None:
    column = bucketized(normalizer_fn=lambda numbers: tf.reverse(numbers, [1]))
    with pytest.raises(NotConvertible, match="leave normalizer_fn out"):
        by_column([column], {"ages": dense(tf.float32, 2)})


@pytest.mark.parametrize(
    ("combiner", "divisor"), [("sum", 1), ("mean", 2), ("sqrtn", math.sqrt(2))]
)
def test_columns_intercepted_rows_of_several_numbers_are_combined(
    combiner: str, divisor: float
) -> None:
    layer = tf.keras.layers.DenseFeatures([bucketized(combiner)])
    intercepted = intercept(lambda _, features: layer(features), ages=dense(tf.float32, 2))
    result = intercepted.run([[1, 2, 3, 4]], [[10, 20, 30, 40]])
    expected = np.array([[11, 22, 33, 44]]) / divisor
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_columns_intercepted_indicator_is_as_wide_as_a_service_supports() -> None:
    hashed = fc.categorical_column_with_hash_bucket("ids", WIDTH_MAX, tf.int64)
    intercepted = by_column([fc.indicator_column(hashed)], {"ids": dense(tf.int64)})
    assert intercepted["ids_indicator"].shape == (None, WIDTH_MAX)


def test_columns_intercepted_indicator_of_buckets_stays_in_the_tower() -> None:
    column = fc.indicator_column(fc.bucketized_column(fc.numeric_column("age"), [1.0]))
    assert by_column([column], {"age": dense(tf.float32)}) == {}


@pytest.mark.filterwarnings("ignore:`layer.add_variable` is deprecated")
def test_columns_intercepted_linear_model_reads_a_weight_per_id() -> None:
    intercepted = by_column(
        [],
        {"ids": dense(tf.int64, 2)},
        lambda features: v1.feature_column.linear_model(
            features, [identity("ids")], units=3, sparse_combiner="mean"
        ),
    )["ids"]
    assert (intercepted.table.rows, intercepted.table.dim, intercepted.combiner) == (9, 3, "mean")


def test_columns_intercepted_while_building_have_no_lengths() -> None:
    lengths = no_lengths(tf.ones([3, 5]))
    assert lengths.dtype == tf.int64
    assert lengths.numpy().tolist() == [0, 0, 0]


CITY = {"city": dense(tf.string, 1), "ids": dense(tf.int64, 1), "seen": SPARSE}


def cross(keys: list[Any], **options: Any) -> TracedLookup:
    columns = [embedded(fc.crossed_column(keys, 50, **options))]
    (intercepted,) = by_column(columns, {**CITY, "age": dense(tf.float32)}).values()
    return intercepted


def test_columns_intercepted_cross_of_inputs_has_their_types() -> None:
    intercepted = cross(["city", "ids"], hash_key=7)
    assert intercepted.rule == CrossedIds(
        keys=(CrossKey(dtype="string"), CrossKey(dtype="int64")), buckets=50, hash_key=7
    )
    assert (intercepted.kind, intercepted.encoding, intercepted.padding) == ("bag", "dense", None)
    assert len(intercepted.ids) == 2


def test_columns_intercepted_cross_has_the_hash_key_of_tensorflow() -> None:
    rule = cross(["city", "ids"]).rule
    assert isinstance(rule, CrossedIds)
    assert rule.hash_key == 0xDECAFCAFFE


def test_columns_intercepted_cross_takes_sparse_keys_first() -> None:
    intercepted = cross(["city", "seen", identity("ids")])
    assert intercepted.rule == CrossedIds(
        keys=(
            CrossKey(dtype="int64"),
            CrossKey(dtype="int64", padding=-1),
            CrossKey(dtype="string"),
        ),
        buckets=50,
    )
    assert intercepted.encoding == "sparse"


def test_columns_intercepted_cross_of_columns_has_their_rules() -> None:
    listed = fc.categorical_column_with_vocabulary_list("city", ["x", "y"], num_oov_buckets=1)
    identity_column = fc.categorical_column_with_identity("seen", 9, 3)
    bucket = fc.bucketized_column(fc.numeric_column("age"), [1.0])
    intercepted = cross([listed, identity_column, bucket])
    within = GraphBuilder("int64")
    within.replaced(within.last, 9, 3)
    assert intercepted.rule == CrossedIds(
        keys=(
            CrossKey(
                dtype="string",
                padding="",
                ids=vocabulary_ids("city", oov_buckets=1, oov_first_row=2),
            ),
            CrossKey(dtype="int64", ids=within.graph()),
            CrossKey(dtype="float32", ids=bucket_ids((1.0,))),
        ),
        buckets=50,
    )
    assert intercepted.keys == (("x", "y"),)


def test_columns_intercepted_nested_crosses_are_one() -> None:
    nested = fc.crossed_column(["city", "ids"], 7)
    assert len(cross([nested, "seen"]).ids) == 3


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (dense(tf.int64, 2, 3), r"a dense tensor of shape \[None, 2, 3\]; \[batch\] or"),
        (dense(tf.int64, None), r"a dense tensor of shape \[None, None\]; \[batch\] or"),
        (tf.TensorSpec(None, tf.int64), "a dense tensor of shape None; "),
    ],
)
def test_columns_intercepted_dense_ids_of_another_shape_are_rejected(spec: Any, shape: str) -> None:
    column = embedded(identity("ids"))
    with pytest.raises(NotConvertible, match=f"'ids_embedding' was given {shape}"):
        by_column([column], {"ids": spec})


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_columns_intercepted_shared_columns_of_tf1_read_one_table() -> None:
    keys = ("seen", "liked")
    with tf.Graph().as_default():
        shared = v1.feature_column.shared_embedding_columns([identity(key) for key in keys], 4)
    alone = v1.feature_column.embedding_column(identity("ids"), 4)
    intercepted = by_column(
        [],
        {key: dense(tf.int64, 2) for key in (*keys, "ids")},
        lambda features: v1.feature_column.input_layer(features, [*shared, alone]),
    )
    assert len(intercepted) == 3
    assert len({id(lookup.variable) for lookup in intercepted.values()}) == 2
    seen, liked = (lookup for name, lookup in intercepted.items() if "shared" in name)
    assert seen.variable is liked.variable
    assert (seen.table.rows, seen.table.dim) == (9, 4)

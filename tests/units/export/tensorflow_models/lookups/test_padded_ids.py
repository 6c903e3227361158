"""Padded words of texts: which rows of theirs a service pads, and which it averages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.lookups.padded_ids import average_empty_as_zeros
from tests.units.export.tensorflow_models.graph.traced_calls import texts
from tests.units.export.tensorflow_models.lookups.interceptions import (
    DIM,
    RAGGED,
    Call,
    Intercepted,
    intercept,
)

Ids = Callable[[Any], Any]
"""(words) -> their ids."""


def hashed(words: Any, buckets: int = 8) -> Any:
    return tf.strings.to_hash_bucket_fast(words, buckets)


def from_one(words: Any) -> Any:
    return hashed(words) + 1


def padded(features: Any, ids: Ids = from_one, **options: Any) -> Any:
    """Returns the ids of a title's words, padded."""
    words = tf.strings.split(features["title"])
    return words.with_values(ids(words.values)).to_tensor(**options)


def averaged(ids: Any, rows: Any, *, masked_id: int = 0, **options: Any) -> Any:
    layer = tf.keras.layers.GlobalAveragePooling1D(**options)
    return layer.call(rows, mask=tf.not_equal(ids, masked_id))


def average(ids: Ids, **options: Any) -> Intercepted:
    """Intercepts the average of rows of padded words."""

    def call(table: Any, features: Any) -> Any:
        padded_ids = padded(features, ids)
        return averaged(padded_ids, tf.nn.embedding_lookup(table, padded_ids), **options)

    return intercept(call, title=texts())


def looked_up(keys: list[str], first: int, default: int) -> Ids:
    """Returns ids by a vocabulary, whose keys have rows from `first` on."""
    values = tf.range(first, first + len(keys), dtype=tf.int64)
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(keys), values), default
    )
    return table.lookup  # type: ignore[no-any-return]


def with_oov(first: int, oov_first: int) -> Ids:
    """Returns ids by a vocabulary, with two rows for other words from `oov_first` on."""

    look_up = looked_up(["a", "b"], first, -1)

    def ids(words: Any) -> Any:
        positions = look_up(words)
        return tf.where(tf.equal(positions, -1), hashed(words, 2) + oov_first, positions)

    return ids


@pytest.mark.parametrize("options", [{}, {"default_value": 0}])
def test_words_of_a_length_are_padded_by_the_service(options: dict[str, Any]) -> None:
    intercepted = intercept(
        lambda _, features: padded(features, shape=[None, 3], **options), title=texts()
    )
    (numbers,) = intercepted.combined
    assert (numbers.kind, numbers.encoding, numbers.length) == ("sequence", "ragged", 3)
    assert (numbers.table.rows, numbers.table.dim, numbers.variable) == (9, 1, None)
    assert (intercepted.result.dtype, intercepted.result.shape.as_list()) == (tf.int64, [None, 3])
    np.testing.assert_array_equal(intercepted.run([[[1], [8], [0]]]), [[1, 8, 0]])


@pytest.mark.parametrize(
    ("ids", "options"),
    [
        pytest.param(from_one, {}, id="no length"),
        pytest.param(from_one, {"shape": [None, 3], "default_value": 5}, id="other padding"),
        pytest.param(
            lambda words: tf.cast(from_one(words), tf.float32), {"shape": [None, 3]}, id="floats"
        ),
        pytest.param(lambda words: from_one(words) ** 2, {"shape": [None, 3]}, id="no rule"),
        pytest.param(
            lambda words: hashed(words, (1 << 24) + 1), {"shape": [None, 3]}, id="no exact float"
        ),
    ],
)
def test_other_words_are_padded_in_the_tower(ids: Ids, options: dict[str, Any]) -> None:
    intercepted = intercept(lambda _, features: padded(features, ids, **options), title=texts())
    assert intercepted.combined == []


def test_as_many_rows_as_floats_count_exactly_are_padded_by_the_service() -> None:
    intercepted = intercept(
        lambda _, features: padded(features, lambda words: hashed(words, 1 << 24), shape=[None, 3]),
        title=texts(),
    )
    assert [lookup.table.rows for lookup in intercepted.combined] == [1 << 24]


def test_words_inside_a_function_of_tensorflow_are_padded_in_the_tower() -> None:
    inside = tf.function(lambda title: padded({"title": title}, shape=[None, 3]), autograph=False)
    intercepted = intercept(lambda _, features: inside(features["title"]), title=texts())
    assert intercepted.combined == []


def test_ids_that_are_no_words_are_padded_in_the_tower() -> None:
    intercepted = intercept(
        lambda _, features: features["ids"].to_tensor(shape=[None, 3]), ids=RAGGED
    )
    assert intercepted.combined == []


def test_rows_of_words_of_a_length_become_a_sequence() -> None:
    intercepted = intercept(
        lambda table, features: tf.nn.embedding_lookup(table, padded(features, shape=[None, 3])),
        title=texts(),
    )
    numbers, rows = intercepted.combined
    assert rows.variable is intercepted.table
    assert (rows.kind, rows.encoding, rows.length, rows.filler_row) == ("sequence", "ragged", 3, 0)
    assert rows.ids == numbers.ids
    assert intercepted.gathered == []
    assert intercepted.result.shape.as_list() == [None, 3, DIM]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(tf.identity, id="identity"),
        pytest.param(lambda ids: tf.cast(ids, tf.int32), id="cast"),
    ],
)
def test_rows_of_unchanged_words_become_a_sequence(change: Ids) -> None:
    intercepted = intercept(
        lambda table, features: tf.nn.embedding_lookup(
            table, change(padded(features, shape=[None, 3]))
        ),
        title=texts(),
    )
    assert [lookup.length for lookup in intercepted.combined] == [3, 3]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda ids: ids + 1, id="sum"),
        pytest.param(lambda ids: tf.expand_dims(ids, 2), id="other shape"),
    ],
)
def test_rows_of_changed_words_are_gathered(change: Ids) -> None:
    intercepted = intercept(
        lambda table, features: tf.nn.embedding_lookup(
            table, change(padded(features, shape=[None, 3]))
        ),
        title=texts(),
    )
    assert [lookup.filler_row for lookup in intercepted.combined] == [None]
    assert [lookup.length for lookup in intercepted.gathered] == [3]


def test_rows_of_half_precision_of_words_are_gathered() -> None:
    intercepted = intercept(
        lambda table, features: tf.nn.embedding_lookup(table, padded(features, shape=[None, 3])),
        dtype=tf.float16,
        title=texts(),
    )
    assert [lookup.table.dim for lookup in intercepted.combined] == [1]
    assert intercepted.result.dtype == tf.float16


@pytest.mark.parametrize(
    ("ids", "length"),
    [
        pytest.param(from_one, None, id="hash"),
        pytest.param(with_oov(3, 1), None, id="vocabulary with other words"),
        pytest.param(looked_up(["a"], 1, 5), None, id="vocabulary with one row for others"),
        pytest.param(looked_up(["a"], 1, -1), None, id="vocabulary without others"),
    ],
)
def test_average_of_masked_words_becomes_a_bag(ids: Ids, length: int | None) -> None:
    intercepted = average(ids)
    (bag,) = intercepted.combined
    assert bag.variable is intercepted.table
    assert (bag.kind, bag.encoding, bag.combiner, bag.ids_max) == ("bag", "ragged", "mean", length)
    assert isinstance(bag.ids[0], tf.RaggedTensor)
    assert intercepted.result.shape.as_list() == [None, DIM]


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(hashed, id="hash from row 0"),
        pytest.param(
            lambda words: tf.where(
                tf.equal(words, "a"), tf.constant(0, tf.int64), hashed(words, 8) + 1
            ),
            id="masked hash",
        ),
        pytest.param(with_oov(0, 2), id="vocabulary from row 0"),
        pytest.param(with_oov(2, 0), id="other words from row 0"),
        pytest.param(looked_up(["a"], 1, 0), id="row 0 for others"),
        pytest.param(looked_up(["a"], 0, 5), id="vocabulary from row 0 with a row for others"),
    ],
)
def test_average_of_words_that_may_have_row_zero_stays_in_the_tower(ids: Ids) -> None:
    assert average(ids).combined == []


def test_average_of_words_of_a_length_takes_as_many_at_most() -> None:
    def call(table: Any, features: Any) -> Any:
        ids = padded(features, shape=[None, 3])
        return averaged(ids, tf.nn.embedding_lookup(table, ids))

    intercepted = intercept(call, title=texts())
    assert [(lookup.kind, lookup.ids_max) for lookup in intercepted.combined] == [
        ("sequence", None),
        ("sequence", None),
        ("bag", 3),
    ]


def test_average_keeps_a_dimension_if_the_layer_does() -> None:
    intercepted = average(from_one, keepdims=True)
    assert intercepted.result.shape.as_list() == [None, 1, DIM]


def test_average_has_the_type_of_the_rows() -> None:
    def call(table: Any, features: Any) -> Any:
        ids = padded(features)
        rows = tf.nn.embedding_lookup(table, ids)
        return averaged(ids, tf.cast(rows, tf.float64), dtype="float64")

    intercepted = intercept(call, title=texts())
    assert [lookup.kind for lookup in intercepted.combined] == ["bag"]
    assert intercepted.result.dtype == tf.float64


def rows_and_ids(table: Any, features: Any) -> tuple[Any, Any]:
    ids = padded(features)
    return tf.nn.embedding_lookup(table, ids), ids


def without_mask(table: Any, features: Any) -> Any:
    rows, _ = rows_and_ids(table, features)
    return tf.keras.layers.GlobalAveragePooling1D().call(rows)


def masked_by_comparison(table: Any, features: Any) -> Any:
    rows, ids = rows_and_ids(table, features)
    return tf.keras.layers.GlobalAveragePooling1D().call(rows, mask=ids > 0)


def masked_by_other_words(table: Any, features: Any) -> Any:
    rows, _ = rows_and_ids(table, features)
    other_ids = padded({"title": features["other"]})
    return averaged(other_ids, rows)


def masked_by_changed_words(table: Any, features: Any) -> Any:
    rows, ids = rows_and_ids(table, features)
    return averaged(ids + 1, rows)


def of_changed_rows(table: Any, features: Any) -> Any:
    rows, ids = rows_and_ids(table, features)
    return averaged(ids, rows * 2)


def masked_by_number(table: Any, features: Any) -> Any:
    rows, ids = rows_and_ids(table, features)
    return averaged(ids, rows, masked_id=1)


@pytest.mark.parametrize(
    "call",
    [
        without_mask,
        masked_by_comparison,
        masked_by_other_words,
        masked_by_changed_words,
        masked_by_number,
        of_changed_rows,
    ],
)
def test_average_under_another_mask_stays_in_the_tower(call: Call) -> None:
    assert intercept(call, title=texts(), other=texts()).combined == []


def test_average_over_the_last_dimension_stays_in_the_tower() -> None:
    def call(table: Any, features: Any) -> Any:
        rows, _ = rows_and_ids(table, features)
        layer = tf.keras.layers.GlobalAveragePooling1D(data_format="channels_first")
        return layer.call(rows)

    assert intercept(call, title=texts()).combined == []


@pytest.mark.parametrize(("layer", "shape"), [({}, (2, DIM)), ({"keepdims": True}, (2, 1, DIM))])
def test_reference_average_of_masked_rows_alone_is_zeros(
    layer: dict[str, Any], shape: tuple[int, ...]
) -> None:
    rows = tf.ones([2, 3, DIM])
    mask = tf.constant([[True, False, True], [False, False, False]])
    pooling = tf.keras.layers.GlobalAveragePooling1D(**layer)
    with Hooks() as hooks:
        average_empty_as_zeros(hooks)
        averages = pooling.call(rows, mask=mask)
    expected = np.zeros(shape, np.float32)
    expected[0] = 1
    np.testing.assert_array_equal(averages, expected, strict=True)


def test_reference_average_without_a_mask_is_that_of_the_layer() -> None:
    with Hooks() as hooks:
        average_empty_as_zeros(hooks)
        averages = tf.keras.layers.GlobalAveragePooling1D().call(tf.fill([1, 2, DIM], 3.0))
    np.testing.assert_array_equal(averages, np.full((1, DIM), 3, np.float32), strict=True)

"""Indicator columns that a tower computes, of numbers that it takes. Of all other columns, services count the ids.

Source: TensorFlow 2.20, python/feature_column/feature_column_v2.py, IndicatorColumn._transform_id_weight_pair.
"""

from __future__ import annotations

from typing import Any

from export.errors import NotConvertible
from export.frameworks.loading import load_tensorflow
from export.lookups.column_rules import ColumnRule, Read, column_rule, is_a, rows_of

WIDTH_MAX = 1 << 16
"""As `indicator` of a feature's page: a request takes so many numbers for each example."""


def check_width(column: Any) -> int:
    """Returns how many numbers an indicator column gives for an example.

    Raises:
      NotConvertible: they are more than a service makes.
    """
    rows = rows_of(column.categorical_column)
    if rows > WIDTH_MAX:
        raise NotConvertible(
            f"column {column.name!r} is an indicator of {rows} numbers an example, and at most {WIDTH_MAX} are made: "
            "train an embedding_column of it; where one dense layer reads it, as the wide part of a model, that with "
            "combiner='sum', and that layer's rows as its table, gives the same"
        )
    return rows


def multi_hot(column: Any, read: Read) -> Any:
    """Returns what an indicator column gives, computed of dense numbers: TensorFlow's own way is sparse.

    None: its ids are hashed, crossed, weighted, strings or no dense input.
    """
    tf = load_tensorflow()
    ids_of = column.categorical_column
    rows = rows_of(ids_of)
    if is_a(ids_of, "Bucketized"):
        buckets = tf.cast(read(ids_of), tf.int32)
        numbers = buckets.shape[-1]
        return tf.reduce_sum(tf.one_hot(buckets + tf.range(numbers) * (rows // numbers), rows), axis=-2)
    listed = is_a(ids_of, "VocabularyListCategorical", "VocabularyFileCategorical")
    ids = read(ids_of.key) if listed or is_a(ids_of, "IdentityCategorical") else None
    whole = ids is not None and not isinstance(ids, tf.SparseTensor) and ids.dtype.is_integer
    if ids is None or not whole or (listed and ids_of.num_oov_buckets):
        return None
    if listed:
        return _listed(ids, column_rule(ids_of, read), rows)
    if ids_of.default_value is not None:
        outside = ((ids < 0) | (ids >= rows)) & tf.not_equal(ids, -1)
        ids = tf.where(outside, tf.constant(ids_of.default_value, ids.dtype), ids)
    return tf.reduce_sum(tf.one_hot(ids, rows), axis=-2)


def _listed(ids: Any, told: ColumnRule, rows: int) -> Any:
    tf = load_tensorflow()
    given = tf.not_equal(ids, tf.constant(-1, ids.dtype))
    hits = tf.equal(tf.cast(ids, tf.int64)[..., tf.newaxis], tf.constant(told.keys[0], tf.int64))
    found = tf.cast(hits & given[..., tf.newaxis], tf.float32)
    if told.unknown is not None and told.unknown.row is not None:
        missing = tf.cast(given & ~tf.reduce_any(hits, axis=-1), tf.float32)
        found += missing[..., tf.newaxis] * tf.one_hot(told.unknown.row, rows)
    return tf.reduce_sum(found, axis=-2)

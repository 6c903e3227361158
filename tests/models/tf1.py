"""A ranker as a program of TF1 builds it in its model_fn: columns of every kind, partitioned
tables, a cross layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

PARTS = 3


def columns() -> list[Any]:
    fc = tf.feature_column
    user = fc.categorical_column_with_identity("user", 100, default_value=0)
    city = fc.categorical_column_with_hash_bucket("city", 97)
    zone = fc.categorical_column_with_hash_bucket("zone", 53, tf.int64)
    kind = fc.categorical_column_with_vocabulary_list("kind", ["a", "b", "c"], num_oov_buckets=2)
    tags = fc.weighted_categorical_column(
        fc.categorical_column_with_identity("tags", 40), "tags_weights"
    )
    seen, liked = (fc.categorical_column_with_identity(name, 50) for name in ("seen", "liked"))
    age = fc.bucketized_column(fc.numeric_column("years"), [18.0, 40.0, 65.0])
    ad = fc.categorical_column_with_identity("ad", 30)
    return [
        fc.embedding_column(user, 8, combiner="sum"),
        fc.embedding_column(city, 4),
        fc.embedding_column(zone, 4),
        fc.embedding_column(kind, 4, combiner="sqrtn"),
        fc.embedding_column(tags, 4),
        fc.embedding_column(age, 2),
        fc.embedding_column(fc.crossed_column([age, "city"], 61), 4),
        *fc.shared_embedding_columns([seen, liked], 8),
        tf.tpu.experimental.embedding_column(ad, 8, combiner="sum"),
        fc.numeric_column("years", normalizer_fn=lambda years: years / 50.0),
    ]


def crossing() -> list[Any]:
    """What the wide part takes."""
    fc = tf.feature_column
    age = fc.bucketized_column(fc.numeric_column("years"), [30.0, 50.0])
    return [
        fc.categorical_column_with_hash_bucket("zone", 71, tf.int64),
        fc.crossed_column(["city", age], 37),
        fc.numeric_column("years"),
    ]


def build() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns what builds the graph of the model in PREDICT mode."""
    made = columns()

    def ranker(features: Mapping[str, Any]) -> dict[str, Any]:
        with tf.variable_scope("deep", partitioner=tf.fixed_size_partitioner(PARTS)):
            joined = tf.feature_column.input_layer(features, made)
            shops = tf.get_variable("shops", [31, 4])
        near = tf.nn.embedding_lookup(shops, features["shop"], partition_strategy="mod")
        joined = tf.concat([joined, near], 1)
        width = joined.shape.as_list()[1]
        with tf.variable_scope("cross"):
            kernel = tf.get_variable("kernel", [width, width])
            bias = tf.get_variable("bias", [width], initializer=tf.ones_initializer())
        crossed = joined * (tf.matmul(joined, kernel) + bias) + joined
        logits = tf.nn.xw_plus_b(
            tf.nn.relu(crossed),
            tf.get_variable("heads", [width, 2]),
            tf.get_variable("shift", [2]),
            "logits",
        )
        tf.train.get_or_create_global_step()
        wide = tf.feature_column.linear_model(features, crossing(), sparse_combiner="mean")
        logits += wide
        return {"click": tf.sigmoid(logits[:, 0]), "buy": tf.sigmoid(logits[:, 1])}

    return ranker


def build_with_behavior_of_tf1() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns the same from a program that switches TensorFlow 2 off, as most of TF1 do."""
    tf.disable_v2_behavior()
    return build()

"""A Wide & Deep model of Keras: deep on DenseFeatures and SequenceFeatures, wide on Embedding layers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import tensorflow as tf

fc = tf.feature_column
CATEGORIES = {"shop": 40, "brand": 30, "tags": 25}
PLACES = 5


def columns() -> list[Any]:
    identity = fc.categorical_column_with_identity
    return [
        fc.numeric_column("price", normalizer_fn=tf.tanh),
        fc.numeric_column("size", shape=(2,)),
        fc.embedding_column(identity("shop", CATEGORIES["shop"], default_value=1), 4),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("brand", 64, tf.int64), 8),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("tags", 32, tf.int64), 4, combiner="sqrtn"),
        fc.embedding_column(fc.categorical_column_with_vocabulary_list("color", ["red", "blue"], default_value=0), 2),
        fc.embedding_column(fc.weighted_categorical_column(identity("labels", 12), "labels_weights"), 2),
        fc.bucketized_column(fc.numeric_column("price"), [1.0, 10.0]),
        fc.indicator_column(identity("day", 7)),
    ]


class WideAndDeep(tf.keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        history = fc.sequence_categorical_column_with_identity("history", 50)
        self.deep_columns = tf.keras.layers.DenseFeatures(columns())
        self.sequence_columns = tf.keras.experimental.SequenceFeatures([fc.embedding_column(history, 4)])
        self.wide = {name: tf.keras.layers.Embedding(rows, 1) for name, rows in CATEGORIES.items()}
        self.deep = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1)])

    def call(self, inputs: Mapping[str, Any]) -> Any:
        given = dict(inputs)
        history, lengths = self.sequence_columns({"history": given["history"]})
        taken = tf.sequence_mask(lengths, PLACES, tf.float32)[:, :, tf.newaxis]
        mean = tf.reduce_sum(history * taken, 1) / tf.maximum(tf.reduce_sum(taken, 1), 1.0)
        deep = self.deep(tf.concat([self.deep_columns(given), mean], 1))[:, 0]
        wide = [tf.reduce_sum(layer(given[name]), axis=[-2, -1]) for name, layer in self.wide.items()]
        return {"score": tf.sigmoid(deep + tf.add_n(wide))}


def build() -> Any:
    return WideAndDeep()

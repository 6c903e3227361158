"""A Wide & Deep model of Keras: deep on DenseFeatures and SequenceFeatures, wide on Embedding layers and indicators."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import tensorflow as tf

fc = tf.feature_column
CATEGORIES = {"shop": 40, "brand": 30, "tags": 25}
PLACES = 5


def wide_columns() -> list[Any]:
    """What no tower computes: indicators of strings, of hashes, with weights, and of crosses of all."""
    color = fc.categorical_column_with_vocabulary_list("color", ["red", "green"], num_oov_buckets=2)
    price = fc.bucketized_column(fc.numeric_column("price"), [2.0, 9.0])
    crossed = fc.crossed_column([color, price, "brand"], 40)
    listed = fc.categorical_column_with_vocabulary_list("tags", [1, 5, 7], default_value=2)
    return [
        fc.indicator_column(color),
        fc.indicator_column(fc.categorical_column_with_hash_bucket("day", 5, tf.int64)),
        fc.indicator_column(
            fc.weighted_categorical_column(fc.categorical_column_with_identity("labels", 12), "labels_weights")
        ),
        fc.indicator_column(crossed),
        fc.indicator_column(fc.crossed_column([listed, crossed], 30)),
    ]


def columns() -> list[Any]:
    crossed = fc.crossed_column([fc.categorical_column_with_vocabulary_list("color", ["red", "blue"]), "brand"], 90)
    identity = fc.categorical_column_with_identity
    scaled = fc.bucketized_column(
        fc.numeric_column("price", normalizer_fn=lambda price: (price - 8.0) / 3.0), [-1.0, 0.5]
    )
    return [
        fc.numeric_column("price", normalizer_fn=tf.tanh),
        fc.numeric_column("size", shape=(2,)),
        fc.embedding_column(identity("shop", CATEGORIES["shop"], default_value=1), 4),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("brand", 64, tf.int64), 8),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("tags", 32, tf.int64), 4, "sqrtn", max_norm=0.5),
        fc.embedding_column(fc.categorical_column_with_vocabulary_list("color", ["red", "blue"], default_value=0), 2),
        fc.embedding_column(fc.weighted_categorical_column(identity("labels", 12), "labels_weights"), 2),
        fc.bucketized_column(fc.numeric_column("price"), [1.0, 10.0]),
        fc.indicator_column(identity("day", 7)),
        fc.embedding_column(crossed, 4, max_norm=0.4),
        fc.embedding_column(scaled, 3),
        fc.embedding_column(fc.crossed_column([scaled, "brand"], 20), 2),
        fc.embedding_column(
            fc.bucketized_column(fc.numeric_column("size", (2,)), [0.2, 0.6]), 3, "sqrtn", max_norm=0.5
        ),
    ]


def computed_columns() -> list[Any]:
    """Of ids that the model computes: a remainder, and a place in a vocabulary."""
    tenth = fc.categorical_column_with_vocabulary_list("tenth", [3, 1, 4], default_value=2)
    hashed = fc.categorical_column_with_hash_bucket("place", 9, tf.int64)
    return [fc.embedding_column(each, 2) for each in (tenth, hashed, fc.crossed_column([tenth, "place"], 20))]


class WideAndDeep(tf.keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        history = fc.sequence_categorical_column_with_identity("history", 50)
        self.deep_columns = tf.keras.layers.DenseFeatures(columns())
        self.sequence_columns = tf.keras.experimental.SequenceFeatures([fc.embedding_column(history, 4)])
        self.wide = {name: tf.keras.layers.Embedding(rows, 1) for name, rows in CATEGORIES.items()}
        self.wide_columns = tf.keras.layers.DenseFeatures(wide_columns())
        self.computed_columns = tf.keras.layers.DenseFeatures(computed_columns())
        self.words = tf.keras.layers.StringLookup(vocabulary=["red", "blue"])
        self.pairs = tf.keras.layers.Embedding(3000, 2)
        self.linear = tf.keras.layers.Dense(1)
        self.sites = [tf.keras.layers.Embedding(rows, 4) for rows in (100, 60)]
        self.deep = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1)])

    def call(self, inputs: Mapping[str, Any]) -> Any:
        given = dict(inputs)
        history, lengths = self.sequence_columns({"history": given["history"]})
        taken = tf.sequence_mask(lengths, PLACES, tf.float32)[:, :, tf.newaxis]
        mean = tf.reduce_sum(history * taken, 1) / tf.maximum(tf.reduce_sum(taken, 1), 1.0)
        sites = [layer(given["sites"][:, place]) for place, layer in enumerate(self.sites)]
        computed = self.computed_columns({"tenth": given["brand"] % 10, "place": self.words(given["color"])})
        pair = tf.strings.lower(given["color"]) + "_" + tf.strings.as_string(given["day"] // 2)
        pairs = self.pairs(tf.strings.to_hash_bucket_fast(pair, 3000))
        deep = self.deep(tf.concat([self.deep_columns(given), mean, *sites, computed, pairs], 1))[:, 0]
        deep += self.linear(self.wide_columns(given))[:, 0]
        wide = [tf.reduce_sum(layer(given[name]), axis=[-2, -1]) for name, layer in self.wide.items()]
        return {"score": tf.sigmoid(deep + tf.add_n(wide))}

"""Rankers in the shape of public code, as users write them: ids wrapped and limited, numbers in logarithms."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import keras
import tensorflow as tf

GENDERS, OCCUPATIONS = ["m", "f"], [f"o{place}" for place in range(20)]


class MMoE(tf.keras.Model):  # type: ignore[misc]
    """Experts with a gate for each task; strings become rows in the model, ids beyond the table its last row."""

    def __init__(self) -> None:
        super().__init__()
        layers = tf.keras.layers
        self.lookups = {
            "gender": layers.StringLookup(vocabulary=GENDERS, mask_token=None),
            "occupation": layers.StringLookup(vocabulary=OCCUPATIONS, mask_token=None),
        }
        self.words = {name: layers.Embedding(each.vocabulary_size(), 4) for name, each in self.lookups.items()}
        self.hashed, self.users, self.items = layers.Hashing(3000), layers.Embedding(3000, 8), layers.Embedding(4000, 8)
        self.experts = [tf.keras.Sequential([layers.Dense(16, "relu"), layers.Dense(8, "relu")]) for _ in range(3)]
        self.gates = [layers.Dense(3, "softmax") for _ in range(2)]
        self.heads = [layers.Dense(1) for _ in range(2)]

    def call(self, inputs: Mapping[str, Any]) -> Any:
        words = [table(self.lookups[name](inputs[name])) for name, table in self.words.items()]
        ids = [self.users(self.hashed(inputs["user"])), self.items(tf.minimum(inputs["item"], 3999))]
        hidden = tf.concat([*words, *ids, tf.math.log1p(inputs["price"])[:, None]], 1)
        experts = tf.stack([expert(hidden) for expert in self.experts], 1)
        mixed = [tf.einsum("be,bed->bd", gate(hidden), experts) for gate in self.gates]
        return {name: head(each)[:, 0] for name, head, each in zip(("finish", "like"), self.heads, mixed, strict=True)}


class Cross(tf.keras.Model):  # type: ignore[misc]
    """Fields that share one table: each id is wrapped or limited first, then put behind the field before it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = tf.keras.layers.Embedding(10_000, 8), tf.keras.layers.Dense(1)

    def build(self, _: Any) -> None:
        self.kernels = [self.add_weight(f"kernel_{place}", (33, 1)) for place in range(2)]
        self.built = True

    def call(self, inputs: Mapping[str, Any]) -> Any:
        firsts = [inputs["a"] % 1000, tf.abs(inputs["b"]) % 1000 + 1000]
        lasts = [tf.clip_by_value(inputs["c"], 0, 999) + 2000, 9_999 - inputs["d"] * 7 % 6000]
        hidden = tf.concat([tf.reshape(self.table(tf.stack(firsts + lasts, 1)), [-1, 32]), inputs["n"][:, None]], 1)
        crossed = hidden
        for kernel in self.kernels:
            crossed = hidden * (crossed @ kernel) + crossed
        return {"score": tf.sigmoid(self.out(crossed))[:, 0]}


class Recurrent(tf.keras.Model):  # type: ignore[misc]
    """What a user did last, read by a GRU whatever the batch: its loop is beyond LiteRT."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.gru = tf.keras.layers.Embedding(2000, 8), tf.keras.layers.GRU(8)

    def call(self, inputs: Mapping[str, Any]) -> Any:
        return {"score": tf.reduce_sum(self.gru(self.items(inputs["last"])) * self.items(inputs["item"]), 1)}


class Wide(tf.keras.Model):  # type: ignore[misc]
    """Wide and deep, with the crosses that its wide part is of: by a layer, and of strings put together by hand."""

    def __init__(self) -> None:
        super().__init__()
        layers = tf.keras.layers
        self.cities = layers.StringLookup(vocabulary=OCCUPATIONS, mask_token=None)
        self.hours = layers.Discretization([6.0, 12.0, 18.0])
        self.crossing, self.hashing = layers.HashedCrossing(3000), layers.Hashing(2000)
        self.crossed, self.joined, self.prefixed = (layers.Embedding(rows, 4) for rows in (3000, 2000, 500))
        self.words, self.out = layers.Embedding(21, 4), layers.Dense(1)

    def call(self, inputs: Mapping[str, Any]) -> Any:
        city, item = inputs["city"], tf.strings.as_string(inputs["item"])
        crossed = self.crossed(self.crossing((self.hours(inputs["hour"]), city, inputs["item"])))
        joined = self.joined(self.hashing(tf.strings.join([city, item], "_X_")))
        prefixed = self.prefixed(tf.strings.to_hash_bucket_fast("item=" + item, 500))
        deep = self.words(self.cities(city))
        return {"score": tf.sigmoid(self.out(tf.concat([crossed, joined, prefixed, deep], 1)))[:, 0]}


class Watched(keras.Model):  # type: ignore[misc]
    """Of Keras 3: a Sequential that begins with its table, so that ids pass through floats; blocks in a list; a mean
    over what was watched, which is none of nothing; and a country that is not known is its table's last row."""

    def __init__(self) -> None:
        super().__init__()
        layers = keras.layers
        self.users = keras.Sequential([layers.Embedding(3000, 8), layers.Dense(8, "relu")])
        self.items, self.countries = layers.Embedding(4000, 8), layers.Embedding(4, 3)
        known = tf.lookup.KeyValueTensorInitializer(["de", "fr", "pe"], [0, 1, 2])
        self.country = tf.lookup.StaticHashTable(known, -1)
        self.blocks = [(layers.Dense(16, "silu"), layers.LayerNormalization(), layers.Dense(16)) for _ in range(2)]
        self.out = layers.Dense(1)

    def call(self, inputs: Mapping[str, Any]) -> Any:
        watched, ops = inputs["watched"], keras.ops
        mask = ops.cast(ops.not_equal(watched, 0), "float32")[..., None]
        mean = ops.sum(self.items(watched) * mask, axis=1) / ops.sum(mask, axis=1)
        country = self.countries(self.country.lookup(inputs["country"]))
        hidden = ops.concatenate([self.users(inputs["user"]), mean, country, self.items(inputs["item"])], axis=1)
        for first, norm, last in self.blocks:
            hidden = last(norm(first(hidden)))
        return {"score": self.out(hidden)}


def watched() -> Any:
    """Lets an attribute hold the blocks, too: of Keras 3, tf.train.Checkpoint passes over those in a list."""
    model = Watched()
    model.saved = tf.train.Checkpoint(layers=model.layers)
    return model

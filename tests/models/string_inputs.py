"""Models that take strings in ways that report another dtype differently, as a user would write
them: nothing here imports rowcast.
"""

# mypy: ignore-errors

import keras
import tensorflow as tf


def functional(layers, model):
    title = layers.Input((), dtype="string", name="title")
    item = layers.Input((), dtype="int64", name="item")
    rows = layers.StringLookup(vocabulary=["a", "b"])(title)
    found = layers.Concatenate()([layers.Embedding(3, 4)(rows), layers.Embedding(9, 4)(item)])
    return model({"title": title, "item": item}, layers.Dense(2)(found))


def build_2():
    return functional(tf.keras.layers, tf.keras.Model)


def build_3():
    return functional(keras.layers, keras.Model)


class Hashed(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.titles = tf.keras.layers.Embedding(50, 4)
        self.items = tf.keras.layers.Embedding(9, 4)

    def call(self, features):
        rows = tf.strings.to_hash_bucket_fast(features["title"], 50)
        return self.titles(rows) + self.items(features["item"])


def build_hashed():
    return Hashed()

"""Models whose calls lose or make shapes while they are traced, as a user would write them: without rowcast."""

# mypy: ignore-errors

import tensorflow as tf


def build_reads_early():
    layers = tf.keras.layers
    item = tf.keras.Input((1,), dtype="int64", name="item")
    positions = layers.Embedding(4, 2)(tf.range(4))
    return tf.keras.Model(
        {"item": item}, layers.Flatten()(layers.Embedding(99, 2)(item) + positions)
    )


class Squeezed(tf.keras.Model):
    """Axes of one value that are squeezed without being named, and a lookup table without a static shape."""

    def __init__(self):
        super().__init__()
        keys = tf.constant([4, 9], tf.int64)
        self.numbers = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys), 1)

    def call(self, features):
        item = features["item"]
        number = tf.cast(self.numbers.lookup(item * item), tf.float32)
        score = tf.cast(item, tf.float32)[:, None, None]
        return {"number": number, "whole": tf.squeeze(number), "score": tf.squeeze(score)}


def build_squeezed():
    return Squeezed()

"""User models whose calls lose shapes while they are traced: nothing here imports rowcast."""

# mypy: ignore-errors

import tensorflow as tf


def build_reads_early():
    """Looks rows up while the model is made."""
    layers = tf.keras.layers
    item = tf.keras.Input((1,), dtype="int64", name="item")
    positions = layers.Embedding(4, 2)(tf.range(4))
    return tf.keras.Model(
        {"item": item}, layers.Flatten()(layers.Embedding(99, 2)(item) + positions)
    )


class Squeezed(tf.keras.Model):
    """Squeezes axes without naming them, and reads a lookup table without a static shape."""

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


class UnknownShape(tf.keras.Model):
    """Gives a layer of Keras a tensor without a known last dimension, which the layer rejects."""

    def __init__(self):
        super().__init__()
        self.out = tf.keras.Sequential([tf.keras.layers.Dense(3)])

    def call(self, features):
        number = tf.cast(features["item"], tf.float32)
        return self.out(tf.reshape(number, tf.stack([-1, tf.size(number)])))


def build_unknown_shape():
    return UnknownShape()

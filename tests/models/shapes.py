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

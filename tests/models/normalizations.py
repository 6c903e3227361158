"""A model with a Normalization layer, which its factory does not adapt."""

# mypy: ignore-errors

import keras
import tensorflow as tf


class Normalized(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = keras.layers.Normalization(axis=-1)
        self.out = tf.keras.layers.Dense(1)

    def call(self, features):
        return self.out(self.norm(features["n"]))


def build_plain_3():
    return Normalized()

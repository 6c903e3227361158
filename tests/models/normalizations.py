"""Models with a Normalization layer, which their factories adapt or not."""

# mypy: ignore-errors

import keras
import numpy as np
import tensorflow as tf


def numbers(seed):
    return np.random.default_rng(seed).normal(5 + seed, 3, (64, 2)).astype(np.float32)


class Normalized(tf.keras.Model):
    def __init__(self, layers, seed=None):
        super().__init__()
        self.norm = layers.Normalization(axis=-1)
        self.out = tf.keras.layers.Dense(1)
        if seed is not None:
            self.norm.adapt(numbers(seed))

    def call(self, features):
        return self.out(self.norm(features["n"]))


def build_plain_2():
    return Normalized(tf.keras.layers)


def build_plain_3():
    return Normalized(keras.layers)


def build_adapted_2():
    return Normalized(tf.keras.layers, 1)


def build_adapted_3():
    return Normalized(keras.layers, 1)

"""User models that encode ids as numbers: one-hot, multi-hot, counted."""

# mypy: ignore-errors

import keras
import tensorflow as tf

WORDS = ["red", "green", "blue"]


class Encoded(tf.keras.Model):
    def __init__(self, made):
        super().__init__()
        self.made = made
        self.out = tf.keras.layers.Dense(2)

    def call(self, features):
        return self.out(tf.concat([tf.cast(made(features), tf.float32) for made in self.made.values()], 1))


def encodings(layers):
    """Returns what layers of Keras 2 or 3 make of inputs."""
    hot = layers.StringLookup(vocabulary=WORDS, output_mode="multi_hot", num_oov_indices=2)
    counted = layers.IntegerLookup(vocabulary=[7, 5], output_mode="count")
    one = layers.StringLookup(vocabulary=WORDS, output_mode="one_hot")
    words, counts = layers.StringLookup(vocabulary=WORDS), layers.CategoryEncoding(4, output_mode="count")
    hashed = layers.Hashing(9, output_mode="one_hot")
    ages = layers.Discretization([1.0, 5.0], output_mode="one_hot")
    crossed = layers.HashedCrossing(30, output_mode="one_hot")
    tenth, pair = (
        layers.CategoryEncoding(10, output_mode="one_hot"),
        layers.CategoryEncoding(10, output_mode="multi_hot"),
    )
    listed = layers.IntegerLookup(vocabulary=[7, 5], output_mode="one_hot")
    return {
        "hot": lambda given: hot(given["words"]),
        "counted": lambda given: counted(given["numbers"]),
        "one": lambda given: one(given["color"]),
        "counts": lambda given: counts(words(given["words"])),
        "hashed": lambda given: hashed(given["item"]),
        "ages": lambda given: ages(given["age"]),
        "tenth": lambda given: tenth(given["item"] % 10),
        "raw": lambda given: pair(given["pair"]),
        "listed": lambda given: listed(given["item"] % 8),
        "crossed": lambda given: crossed((given["color"], given["item"])),
    }


def build():
    return Encoded(encodings(tf.keras.layers))


def build_3():
    return Encoded(encodings(keras.layers))

"""User models whose tables are read by crosses: ids made of several inputs together."""

# mypy: ignore-errors

import keras
import tensorflow as tf

ROWS = 20_000
WORDS = ["red", "green", "blue"]


class Crosses(tf.keras.Model):
    """Looks up in a table of its own by each cross that it is given, a function of the inputs."""

    def __init__(self, made):
        super().__init__()
        self.tables = {name: tf.keras.layers.Embedding(ROWS, 4, name=f"{name}_table") for name in made}
        self.made = made
        self.out = tf.keras.layers.Dense(2)

    def call(self, features):
        vectors = [self.tables[name](made(features)) for name, made in self.made.items()]
        return self.out(tf.concat([tf.reshape(each, [-1, 4]) for each in vectors], 1))


def by_layer(layers):
    """Returns what a HashedCrossing of Keras 2 or 3 makes of inputs, and of what other layers make of them."""
    plain, column, three, few = (layers.HashedCrossing(bins) for bins in (ROWS, 300, 1000, 77))
    crossed, known = layers.HashedCrossing(500), layers.HashedCrossing(600)
    ages, places = layers.Discretization([0.5, 2.0, 30.0]), layers.Discretization([-10.0, 10.0])
    words, numbers = layers.StringLookup(vocabulary=WORDS), layers.IntegerLookup(vocabulary=[7, 5], num_oov_indices=3)
    hashing = layers.Hashing(10)
    return {
        "plain": lambda given: plain((given["city"], given["item"])),
        "column": lambda given: column((given["one"], given["other"])),
        "three": lambda given: three([given["item"], given["city"], given["shop"]]),
        "few": lambda given: few((given["shop"], tf.cast(given["item"], tf.int64) % 100)),
        "crossed": lambda given: crossed((ages(given["age"]), places(given["place"]))),
        "known": lambda given: known((words(given["city"]), numbers(given["item"]), hashing(given["shop"]))),
    }


def build():
    return Crosses(by_layer(tf.keras.layers))


def build_3():
    return Crosses(by_layer(keras.layers))


def build_twice():
    layer = tf.keras.layers.HashedCrossing(ROWS)
    return Crosses({"twice": lambda given: layer((given["item"], given["item"]))})


def build_negative():
    layer = tf.keras.layers.HashedCrossing(ROWS)
    return Crosses({"negative": lambda given: layer((given["item"] - 5, given["city"]))})

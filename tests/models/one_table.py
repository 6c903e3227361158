"""User models of one input, `item`, and one table: nothing here imports rowcast."""

# mypy: ignore-errors

import random
from functools import partial

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

E = tf.tpu.experimental.embedding
ROWS = 20_000
TERABYTE_ROWS = 1 << 36


def dense(units, **options):
    layer = tf.keras.layers.Dense(units, bias_initializer="ones", **options)
    layer.build((None, 4))
    return layer


class TpuTable(tf.keras.Model):
    """A table of a TPU embedding layer."""

    def __init__(self, rows=20):
        super().__init__()
        config = {"item": E.FeatureConfig(E.TableConfig(rows, 4, name="items"))}
        self.embedding = tfrs.layers.embedding.TPUEmbedding(config, None)
        self.embedding.build(None)

    def look(self, item):
        return self.embedding({"item": item})["item"]


RAISING = {
    "takes values": lambda features, vector: vector * vector.numpy().max(),
    "takes an array": lambda features, vector: vector * np.exp(vector),
    "decides": lambda features, vector: vector if bool(tf.reduce_any(vector > 0)) else -vector,
    "wants another input": lambda features, vector: vector * features["hour"],
    "runs Python": lambda features, vector: tf.nn.softmax(
        tf.py_function(np.negative, [vector], tf.float32), 1
    ),
}


class One(TpuTable):
    """A plain lookup, and what `way` selects besides."""

    def __init__(self, way, rows=20):
        super().__init__(rows)
        self.way = way
        if way == "reads a hash table":
            self.known = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        self.out = dense(2)

    def call(self, features):
        way = self.way
        item = features["item"]
        if way == "computed ids":
            item = tf.cast(tf.raw_ops.PopulationCount(x=item), item.dtype)
        if way == "in a condition":
            return self.out(
                tf.cond(tf.reduce_sum(item) > 0, lambda: self.look(item), lambda: self.look(item))
            )
        vector = self.look(item)
        if way == "reads the table":
            return self.out(vector) + tf.reduce_mean(
                next(iter(self.embedding.embedding_tables.values()))
            )
        if way == "reads a hash table":
            return self.out(vector * tf.reshape(self.known.lookup(item), [-1, 1]))
        if way == "raises":
            raise ValueError("no such way")
        if way in RAISING:
            return self.out(RAISING[way](features, vector))
        if way == "a fixed batch":
            return tf.reshape(self.out(vector), [4, 2])
        return self.out(vector)


def build_plain():
    return One("")


def build_terabyte():
    return One("", TERABYTE_ROWS)


WAYS = (
    "computed ids",
    "in a condition",
    "reads the table",
    "reads a hash table",
    "raises",
    "a fixed batch",
    *RAISING,
)
for way in WAYS:  # build_computed_ids and so on
    globals()[f"build_{way.lower().replace(' ', '_')}"] = partial(One, way)


class Rooted(TpuTable):
    """Takes the root of a number that has the given sign."""

    def __init__(self, sign):
        super().__init__()
        self.sign = sign

    def call(self, features):
        return self.look(features["item"]) * tf.sqrt(self.sign * features["age"])[:, None]


def build_root_of_positive():
    return Rooted(1.0)


def build_root_of_negative():
    return Rooted(-1.0)


class Half(TpuTable):
    """Mixed precision, as on TPUs: float32 weights, bfloat16 arithmetic."""

    def __init__(self):
        super().__init__()
        self.out = dense(8, dtype=tf.keras.mixed_precision.Policy("mixed_bfloat16"))

    def call(self, features):
        return self.out(self.look(features["item"]))


def build_half():
    return Half()


class WithContent(TpuTable):
    """Reads vectors of content from a constant."""

    def __init__(self):
        super().__init__()
        self.content = tf.constant(np.ones((20, 4), np.float32))

    def call(self, features):
        return self.look(features["item"]) + tf.gather(self.content, features["item"])


def build_with_content():
    return WithContent()


class Coupled(TpuTable):
    """Computes an example from others of its batch, or from a random number."""

    def __init__(self, couple):
        super().__init__()
        self.couple = couple

    def call(self, features):
        return self.couple(self.look(features["item"]))


def build_coupled_to_earlier():
    return Coupled(tf.cumsum)


def build_coupled_to_all():
    return Coupled(lambda vector: vector - tf.reduce_mean(vector))


def build_timed():
    return Coupled(lambda vector: vector * tf.cast(tf.timestamp() > 0, tf.float32))


def build_random():
    return Coupled(lambda vector: vector * random.random())


class OneAtATime(TpuTable):
    """Computes one example at a time: it cannot be called as others are, so it has no plan."""

    def call(self, features):
        return self.look(features["item"]) * tf.squeeze(features["age"], axis=0)


def one_at_a_time():
    return OneAtATime()


class KerasTable(tf.keras.Model):
    """A Keras Embedding."""

    def __init__(self):
        super().__init__()
        self.items = tf.keras.layers.Embedding(ROWS, 4)
        self.items.build(None)
        self.out = dense(4)

    def call(self, features):
        return self.out(self.items(features["item"]))


def build_large_keras_table():
    return KerasTable()

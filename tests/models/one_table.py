"""User models of one input, `item`, and one table: nothing here imports rowcast."""

# mypy: ignore-errors

import random
from functools import partial

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

E = tf.tpu.experimental.embedding
ROWS = 20_000
HUGE_ROWS = 1_000_000_000
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
    "goes through": lambda features, vector: tf.stack(list(vector)),
    "decides": lambda features, vector: vector if bool(tf.reduce_any(vector > 0)) else -vector,
    "wants another input": lambda features, vector: vector * features["hour"],
    "wants another shape": lambda features, vector: tf.matmul(vector, tf.ones([3, 2])),
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
        if way == "reads the ids":
            return self.out(vector * tf.cast(item, tf.float32)[:, None])
        if way == "reads a hash table":
            return self.out(vector * tf.reshape(self.known.lookup(item), [-1, 1]))
        if way == "looks up twice":
            return self.out(vector + self.look(item))
        if way == "odd operation":
            return self.out(tf.math.betainc(tf.abs(vector), 2.0, 0.5))
        if way == "loop":
            steps = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[None, 4])
            for step in tf.range(tf.shape(vector)[0]):
                steps = steps.write(step, vector)
            return self.out(tf.reduce_sum(steps.stack(), axis=0))
        if way == "raises":
            raise ValueError("no such way")
        if way in RAISING:
            return self.out(RAISING[way](features, vector))
        if way == "a fixed batch":
            return tf.reshape(self.out(vector), [4, 2])
        return self.out(vector)


def build_plain():
    return One("")


def build_huge():
    return One("", HUGE_ROWS)


def build_terabyte():
    return One("", TERABYTE_ROWS)


WAYS = (
    "computed ids",
    "in a condition",
    "reads the table",
    "reads a hash table",
    "reads the ids",
    "looks up twice",
    "odd operation",
    "loop",
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


def build_coupled_to_later():
    return Coupled(partial(tf.cumsum, reverse=True))


def build_coupled_to_all():
    return Coupled(lambda vector: vector - tf.reduce_mean(vector))


def build_coupled_by_product():
    return Coupled(lambda v: tf.matmul(tf.matmul(v, v, transpose_b=True), v))


def build_timed():
    return Coupled(lambda vector: vector * tf.cast(tf.timestamp() > 0, tf.float32))


def build_random():
    return Coupled(lambda vector: vector * random.random())


class OneAtATime(TpuTable):
    """Computes one example at a time."""

    def call(self, features):
        return self.look(features["item"]) * tf.squeeze(features["age"], axis=0)


def build_one_at_a_time():
    return OneAtATime()


class KerasTable(tf.keras.Model):
    """A Keras Embedding."""

    def __init__(self, rows=ROWS):
        super().__init__()
        self.items = tf.keras.layers.Embedding(rows, 4)
        self.items.build(None)
        self.out = dense(4)

    def call(self, features):
        return self.out(self.items(features["item"]))


def build_small_keras_table():
    return KerasTable(100)


def build_large_keras_table():
    return KerasTable()


def build_called_keras_table():
    model = KerasTable()
    model({"item": tf.constant([1])})
    return model


class Shifted(KerasTable):
    """Looks up the row behind that of an id."""

    def call(self, features):
        return self.out(self.items(features["item"] + 1))


def build_shifted():
    return Shifted()


class Tied(KerasTable):
    """One table as input and output weights."""

    def call(self, features):
        return tf.matmul(
            self.out(self.items(features["item"])), self.items.embeddings, transpose_b=True
        )


def build_tied():
    return Tied()


def build_tied_huge():
    return Tied(2 * HUGE_ROWS)


class Hidden(KerasTable):
    """Looks rows up where no placeholder can stand for them."""

    def call(self, features):
        item = features["item"]
        return self.out(
            tf.cond(tf.reduce_sum(item) > 0, lambda: self.items(item), lambda: self.items(item + 1))
        )


def build_hidden():
    return Hidden()

"""User models over wide inputs: many ids in one matrix, a table of all fields, buckets of numbers, ids among floats."""

# mypy: ignore-errors

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

FIELDS, ROWS = 6, 20_000
SIZES = np.array([100, 3000, 7, 50, 9000, 400])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)[:-1]])
LIMITS = [-1.0, 0.0, 0.25, 0.5, 3.0]


class Way(tf.keras.Model):
    """Looks up in one table, of one column more than the other, in the way that it is given."""

    def __init__(self, way):
        super().__init__()
        self.table = tf.keras.layers.Embedding(ROWS, 3)
        self.rows = self.add_weight(name="rows", shape=(ROWS, 3))
        self.offsets = tf.constant(OFFSETS, tf.int64)
        self.many = tf.constant(np.arange(300) * 60)
        self.out = tf.keras.layers.Dense(2)
        self.way = way

    def call(self, features):
        found = self.way(self, features)
        return self.out(tf.reshape(found, [-1, int(np.prod(found.shape[1:]))]))


def ids(model, features):
    return tf.cast(features["x"], tf.int64)


def part(model, features):
    return model.table(ids(model, features)[:, 2:5])


def part_whole(model, features):
    return model.table(ids(model, features)[:, 1:3] % 100) + model.table(ids(model, features)[:, 1:2])


def gathered(model, features):
    return model.table(tf.gather(features["x"], [0, 3, 5], axis=1))


def split(model, features):
    first, second = tf.split(features["x"], 2, axis=1)
    return tf.concat([model.table(first), model.table(second) * 2.0], 1)


def unstacked(model, features):
    columns = tf.unstack(features["x"], axis=1)
    return tf.stack([model.table(column) for column in columns[::-1]], 1)


def shuffled(model, features):
    return model.table(tf.reverse(tf.reshape(features["x"], [-1, 2, 3]), [1])[:, :, 1:])


def offset(model, features):
    return model.table(features["x"] + model.offsets)


def offset_numpy(model, features):
    return model.table(tf.cast(features["x"], tf.int32) + OFFSETS.astype(np.int32)[np.newaxis])


def offset_computed(model, features):
    sizes = tf.constant(SIZES)
    return model.table(tf.cast(tf.cumsum(sizes, exclusive=True), tf.int64) + features["x"])


def offset_flat(model, features):
    flat = tf.reshape(features["x"] + model.offsets, [-1])
    return tf.reshape(tf.gather(model.rows, flat), [-1, FIELDS, 3])


def offset_each(model, features):
    return tf.stack([model.table(features["x"][:, place] + first) for place, first in enumerate(OFFSETS)], 1)


def offset_part(model, features):
    return model.table((features["x"] % SIZES + model.offsets)[:, 1::2])


def offset_many(model, features):
    return model.table(features["x"][:, :1] + model.many)


def flat(model, features):
    rows = tf.gather(model.rows, tf.reshape(features["x"], [-1]))
    return tf.reshape(rows, [tf.shape(features["x"])[0], FIELDS, 3])


def transposed(model, features):
    return model.table(tf.transpose(tf.reshape(features["x"], [-1, 2, 3]), [0, 2, 1]))


def stacked(model, features):
    both = tf.stack([features["a"], features["b"], features["x"][:, 4]], axis=1)
    return model.table(both + tf.constant([5, 1000, 10_000], tf.int64))


def joined(model, features):
    both = tf.concat([features["a"][:, tf.newaxis], features["x"][:, 3:], features["b"][:, tf.newaxis]], -1)
    return model.table(both + tf.range(5, dtype=tf.int64) * 3000)


def cast(model, features):
    return model.table(tf.cast(features["n"], tf.int32))


def cast_down(model, features):
    return model.table(tf.cast(tf.floor(features["n"][:, 1:4]), tf.int64) + model.offsets[1:4])


def cast_nearest(model, features):
    return model.table(tf.cast(tf.round(features["n"][:, 1]), tf.int32) % 1000)


def cast_hash(model, features):
    texts = tf.strings.as_string(tf.cast(features["n"][:, 2], tf.int64))
    return model.table(tf.strings.to_hash_bucket_fast(texts, ROWS))


def cast_some(model, features):
    rows = model.table(tf.cast(features["n"][:, 3:], tf.int32))
    return tf.concat([tf.reshape(rows, [-1, 9]), features["n"][:, :3]], 1)


def bucketized(model, features):
    return model.table(tf.keras.layers.Discretization(LIMITS)(features["n"]))


def bucketized_offset(model, features):
    buckets = tf.keras.layers.Discretization(LIMITS)(features["n"][:, :4])
    return model.table(tf.cast(buckets, tf.int64) + tf.range(4, dtype=tf.int64) * 6)


def searched(model, features):
    return model.table(tf.searchsorted(LIMITS, features["n"][:, 2], side="right"))


def searched_left(model, features):
    flat = tf.searchsorted(LIMITS, tf.reshape(features["n"], [-1]))
    return model.table(tf.reshape(flat, [-1, FIELDS]) + tf.range(FIELDS) * 10)


def searched_ages(model, features):
    return model.table(tf.searchsorted(tf.constant([18, 25, 60], tf.int64), features["a"], side="left"))


def normalised(model, features):
    mean, deviation = np.linspace(-1, 1, FIELDS, dtype=np.float32), np.linspace(0.3, 3, FIELDS, dtype=np.float32)
    rows = model.table(tf.searchsorted(LIMITS, tf.reshape((features["n"] - mean) / deviation, [-1])))
    return tf.reshape(rows, [-1, FIELDS, 3])


def normalised_layer(model, features):
    number = tf.keras.layers.Normalization(mean=0.3, variance=2.0)(features["n"][:, :3])
    return model.table(tf.keras.layers.Discretization(LIMITS)(number))


def logarithms(model, features):
    known = tf.math.log1p(tf.maximum(features["n"], 0.0)) * 10.0
    return model.table(tf.minimum(tf.cast(known, tf.int32), 40) + tf.range(FIELDS) * 41)


def negated(model, features):
    return model.table(tf.searchsorted(LIMITS, -features["n"][:, 0]))


def since(model, features):
    years = tf.clip_by_value((2.5 - features["n"]) / 0.3, 0.0, 30.0)
    return model.table(tf.cast(years, tf.int32) + tf.range(FIELDS) * 31)


def unguarded(model, features):
    return model.table(tf.searchsorted(LIMITS, tf.math.log(features["n"][:, 0]), side="right"))


def multiplied(model, features):
    return model.table((features["x"] * features["x"] + model.offsets)[:, 3:])


def variable(model, features):
    if not hasattr(model, "firsts"):
        model.firsts = tf.Variable(OFFSETS, trainable=False)
    return model.table(features["x"] + model.firsts)


class Layer(tf.keras.Model):
    """An embedding layer of TPUs that is given several columns at once."""

    def __init__(self):
        super().__init__()
        api = tf.tpu.experimental.embedding
        table = api.FeatureConfig(api.TableConfig(ROWS, 3, name="table", combiner="mean"))
        self.embedding = tfrs.layers.embedding.TPUEmbedding({"few": table, "one": table}, api.SGD(0.1))
        self.out = tf.keras.layers.Dense(2)

    def call(self, features):
        few = features["x"][:, 2:5] + tf.constant(OFFSETS[2:5])
        found = self.embedding({"few": few, "one": features["x"][:, 1]})
        return self.out(tf.concat([tf.reshape(found["few"], [-1, 9]), found["one"]], 1))


def build_layer():
    return Layer()


def builder(way):
    return lambda: Way(way)


WAYS = [name for name, way in globals().items() if getattr(way, "__code__", None) and way.__code__.co_argcount == 2]
globals().update({f"build_{name}": builder(way) for name, way in list(globals().items()) if name in WAYS})

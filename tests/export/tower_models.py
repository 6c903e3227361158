"""User models to export, as a user would write them: nothing here imports rowcast."""

# mypy: ignore-errors

from functools import partial

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
from tensorflow.tpu.experimental.embedding import (
    serving_embedding_lookup,
)  # bound before anything is intercepted

E = tf.tpu.experimental.embedding
HUGE_ROWS = 1_000_000_000
TERABYTE_ROWS = 1 << 36


def dense(units, activation=None):
    return tf.keras.layers.Dense(
        units, activation, kernel_initializer="glorot_normal", bias_initializer="ones"
    )


class Movies(tf.keras.Model):
    """Two towers and a ranker over one call of one embedding layer; the movie table is shared."""

    FEATURES = ("user_id", "history", "hour", "movie_id", "genres")

    def __init__(self):
        super().__init__()
        users, hours = E.TableConfig(50, 8, name="users"), E.TableConfig(24, 4, name="hours")
        movies = E.TableConfig(40, 8, name="movies", combiner="mean")
        genres = E.TableConfig(9, 4, name="genres/all", combiner="sum")
        tables = dict(zip(self.FEATURES, (users, movies, hours, movies, genres), strict=True))
        config = {name: E.FeatureConfig(table) for name, table in tables.items()}
        self.embedding = tfrs.layers.embedding.TPUEmbedding(config, E.Adagrad(0.1))
        self.query_tower = tf.keras.Sequential([dense(64, "relu"), dense(8)])
        self.candidate_tower = tf.keras.Sequential([dense(16, "relu"), dense(8)])
        self.dropout = tf.keras.layers.Dropout(0.5)
        self.cross = tfrs.layers.dcn.Cross()
        self.head = dense(1)

    def call(self, features, training=False):
        found = self.embedding({name: features[name] for name in self.FEATURES})
        query = self.query_tower(tf.concat([found["user_id"], found["history"], found["hour"]], 1))
        year = tf.expand_dims(features["year"], 1)
        candidate = self.candidate_tower(tf.concat([found["movie_id"], found["genres"], year], 1))
        pair = self.dropout(tf.concat([query, candidate, found["user_id"]], 1), training=training)
        return {"query": query, "candidate": candidate, "score": self.head(self.cross(pair))[:, 0]}


def build_movies():
    model = Movies()
    one, bag = tf.constant([0]), tf.ragged.constant([[0, 1]])
    model(
        {
            "user_id": one,
            "history": bag,
            "hour": one,
            "movie_id": one,
            "genres": bag,
            "year": tf.constant([1.0]),
        }
    )
    return model


def build_movies_without_head():
    model = build_movies()
    model.head = dense(3)
    model.head.build((None, 24))
    return model


class Ads(tf.Module):
    """The mid-level API: weights, a sequence, a sparse bag, one id in a dimension of its own, calls as tf.functions."""

    def __init__(self):
        super().__init__()
        ads = E.TableConfig(30, 4, name="ads", combiner="mean")
        self.words = E.FeatureConfig(E.TableConfig(100, 6, name="words", combiner="sqrtn"))
        self.config = {
            "ad": E.FeatureConfig(ads),
            "clicks": E.FeatureConfig(ads),
            "recent": E.FeatureConfig(ads, max_sequence_length=3),
        }
        self.tables = E.TPUEmbedding({**self.config, "words": self.words}, E.SGD(0.1))
        self.tables.build()
        self.near = E.TPUEmbeddingForServing(
            {"slots": E.FeatureConfig(E.TableConfig(7, 2, name="slots"))}, None
        )
        self.near.build()
        self.kernel = tf.Variable(tf.random.normal([30, 5]), name="kernel")
        self.scale = tf.Variable(tf.ones([5]), name="scale")
        self.unused = tf.Variable(tf.ones([2]), name="unused")

    @tf.function
    def context(self, inputs):
        return tf.nn.relu(self.activations(inputs) @ self.kernel)

    @tf.function
    def activations(self, inputs):
        tables = self.tables.embedding_tables
        ids = {
            "ad": tf.expand_dims(inputs["ad"], 1),
            "clicks": inputs["clicks"],
            "recent": inputs["recent"],
        }
        weights = {"ad": None, "clicks": inputs["click_weights"], "recent": None}
        found = serving_embedding_lookup(ids, weights, tables, self.config)
        words = serving_embedding_lookup(
            inputs["words"], inputs["word_weights"], tables, self.words
        )
        slots = tf.reshape(self.near({"slots": inputs["slots"]})["slots"], [-1, 4])
        n = tf.shape(inputs["ad"])[0]
        recent = tf.reshape(found["recent"], [n, 12])
        return tf.concat([found["ad"][:, 0], found["clicks"], recent, words, slots], 1)

    def rank(self, inputs):
        hidden = self.context(inputs)
        if tf.reduce_any(hidden > 1e9):  # needs AutoGraph
            hidden = tf.zeros_like(hidden)
        return {"click": tf.reduce_sum(hidden * self.scale, 1), "hidden": hidden}


def build_ads():
    return Ads()


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


class One(tf.keras.Model):
    """One table; `way` selects what the model does besides a plain lookup."""

    def __init__(self, way, rows=20):
        super().__init__()
        self.way = way
        self.embedding = tfrs.layers.embedding.TPUEmbedding(
            {"item": E.FeatureConfig(E.TableConfig(rows, 4, name="items"))}, None
        )
        self.embedding.build(None)
        if way == "reads a hash table":
            self.known = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        self.out = dense(2)
        self.out.build((None, 4))

    def call(self, features):
        way, item = self.way, features["item"]
        if way == "computed ids":
            item = item * item
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

    def look(self, item):
        return self.embedding({"item": item})["item"]


def build_plain():
    return One("")


def build_huge():
    return One("", HUGE_ROWS)


def build_terabyte():
    return One("", TERABYTE_ROWS)


WAYS = (
    *(
        "computed ids",
        "in a condition",
        "reads the table",
        "reads a hash table",
        "reads the ids",
        "looks up twice",
    ),
    *("odd operation", "loop", "raises", "a fixed batch", *RAISING),
)
for way in WAYS:  # build_computed_ids and so on
    globals()[f"build_{way.lower().replace(' ', '_')}"] = partial(One, way)


class TwoLayers(tf.keras.Model):
    """A layer for each tower, whose tables have one name; `call` takes two arguments, `pair` returns a tuple."""

    def __init__(self):
        super().__init__()
        tables = [E.TableConfig(rows, 4, name="things") for rows in (30, 20)]
        self.users = tfrs.layers.embedding.TPUEmbedding({"user": E.FeatureConfig(tables[0])}, None)
        self.items = tfrs.layers.embedding.TPUEmbedding({"item": E.FeatureConfig(tables[1])}, None)

    def call(self, user, item):
        return self.users({"user": user})["user"] * self.items({"item": item})["item"]

    def query(self, features):
        return self.users({"user": features["user"]})["user"]

    def candidate(self, features):
        return self.items({"item": features["item"]})["item"]

    def pair(self, features):
        return self.query(features), features["user"]

    def wrong_key(self, features):
        return self.items({"itme": features["item"]})


def build_two_layers():
    return TwoLayers()


class UnknownShape(tf.keras.Model):
    """Hands a layer of Keras what has no known last dimension, which the layer refuses."""

    def __init__(self):
        super().__init__()
        self.out = tf.keras.Sequential([tf.keras.layers.Dense(3)])

    def call(self, features):
        number = tf.cast(features["item"], tf.float32)
        return self.out(tf.reshape(number, tf.stack([-1, tf.size(number)])))


def build_unknown_shape():
    return UnknownShape()


class Rooted(tf.keras.Model):
    """Takes the root of a number that is never negative."""

    def __init__(self, sign):
        super().__init__()
        config = {"item": E.FeatureConfig(E.TableConfig(20, 4, name="items"))}
        self.embedding, self.sign = tfrs.layers.embedding.TPUEmbedding(config, None), sign
        self.embedding.build(None)

    def call(self, features):
        return (
            self.embedding({"item": features["item"]})["item"]
            * tf.sqrt(self.sign * features["age"])[:, None]
        )


def build_rooted():
    return Rooted(1.0)


def build_never():
    return Rooted(-1.0)


class Half(tf.keras.Model):
    """Mixed precision, as on TPUs: float32 weights, bfloat16 arithmetic."""

    def __init__(self):
        super().__init__()
        self.embedding = tfrs.layers.embedding.TPUEmbedding(
            {"item": E.FeatureConfig(E.TableConfig(20, 4, name="items"))}, None
        )
        self.embedding.build(None)
        self.out = tf.keras.layers.Dense(8, dtype=tf.keras.mixed_precision.Policy("mixed_bfloat16"))
        self.out.build((None, 4))

    def call(self, features):
        return self.out(self.embedding({"item": features["item"]})["item"])


def build_half():
    return Half()


class KerasTable(tf.keras.Model):
    """A Keras Embedding: small ones stay inside."""

    def __init__(self, rows):
        super().__init__()
        self.table = tf.keras.layers.Embedding(rows, 3)
        self.table.build(None)
        self.out = dense(2)
        self.out.build((None, 3))

    def call(self, features):
        return self.out(self.table(features["item"]))


def build_small_keras_table():
    return KerasTable(100)


def build_large_keras_table():
    return KerasTable(20_000)


def build_called_keras_table():
    model = KerasTable(20_000)
    model({"item": tf.constant([1])})
    return model

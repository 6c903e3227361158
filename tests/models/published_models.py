"""Models with what published recommenders have in common, as their authors write them. Nothing here
imports rowcast.
"""

# mypy: ignore-errors

import keras
import keras_rs
import numpy as np
import tensorflow as tf
import tf_keras
from keras import ops

STEPS = 6
USERS = 300
MOVIES = 400
DIM = 4
DAY_S = 86_400
TIMES = [800_000_000 + DAY_S * day for day in range(50)]
"""Boundaries of buckets, in seconds since 1970."""


def functional():
    """Returns a functional model, ready to be trained."""
    user = keras.Input((), dtype="int32", name="user")
    vector = keras.layers.Dense(DIM)(keras.layers.Embedding(USERS, DIM, name="users")(user))
    model = keras.Model({"user": user}, vector)
    model.compile("adam", loss="mse", metrics=["mae"])
    return model


class SequentialRetrieval(keras.Model):
    """Reads a masked history by recurrent layers, the first one backwards. Its retrieval has the
    table of the candidates.
    """

    def __init__(self):
        super().__init__()
        backwards = {"go_backwards": True, "return_sequences": True, "zero_output_for_mask": True}
        self.query_model = keras.Sequential(
            [
                keras.layers.Embedding(MOVIES, DIM, mask_zero=True),
                keras.layers.LSTM(DIM, **backwards),
                keras.layers.GRU(DIM, reset_after=False),
            ]
        )
        self.candidate_model = keras.layers.Embedding(MOVIES, DIM)
        self.retrieval = keras_rs.layers.BruteForceRetrieval(k=10, return_scores=False)

    def build(self, input_shape):
        self.query_model.build(input_shape)
        self.candidate_model.build(input_shape)
        self.retrieval.candidate_embeddings = self.candidate_model.embeddings
        self.retrieval.build(input_shape)
        super().build(input_shape)

    def call(self, inputs, training=False):
        return self.retrieval(self.query_model(inputs))

    def query(self, inputs):
        return self.query_model(inputs["history"])

    def candidate(self, inputs):
        return self.candidate_model(inputs["movie"])


def sequential_retrieval():
    """Returns the model as the training program makes it: compiled."""
    model = SequentialRetrieval()
    model.build((None, STEPS))
    model.compile(keras.optimizers.Adagrad(0.1), loss="mse", metrics=["mae"])
    return model


class PrivateTowers(tf_keras.Model):
    """Keeps its towers in private attributes, and masks what pads a history."""

    def __init__(self):
        super().__init__()
        self._query_model = tf_keras.Sequential(
            [
                tf_keras.layers.Embedding(MOVIES, DIM, mask_zero=True),
                tf_keras.layers.GRU(DIM, return_sequences=True, reset_after=False),
                tf_keras.layers.LSTM(DIM),
            ]
        )
        self._candidate_model = tf_keras.Sequential([tf_keras.layers.Embedding(MOVIES, DIM)])

    def query(self, inputs):
        return self._query_model(inputs["history"])

    def candidate(self, inputs):
        return self._candidate_model(inputs["movie"])


class Rating(tf_keras.Model):
    """Buckets timestamps, and takes the length of a list, which it does not need."""

    def __init__(self):
        super().__init__()
        self.movie = tf_keras.layers.Embedding(MOVIES, DIM)
        self.timestamp = tf_keras.Sequential(
            [tf_keras.layers.Discretization(TIMES), tf_keras.layers.Embedding(len(TIMES) + 2, DIM)]
        )
        self.normalized = tf_keras.layers.Normalization(
            axis=None, mean=TIMES[25], variance=float(10 * DAY_S) ** 2
        )
        self.rating = tf_keras.Sequential(
            [tf_keras.layers.Dense(8, "relu"), tf_keras.layers.Dense(1)]
        )

    def call(self, inputs):
        liked = tf.reduce_mean(self.movie(inputs["history"]), axis=1)
        time = tf.reshape(self.normalized(inputs["timestamp"]), (-1, 1))
        parts = [liked, self.movie(inputs["movie"]), self.timestamp(inputs["timestamp"]), time]
        return self.rating(tf.concat(parts, axis=1))


class Listwise(keras.Model):
    """Scores a list of movies, each by itself."""

    def __init__(self):
        super().__init__()
        self.user_embedding = keras.layers.Embedding(USERS, DIM)
        self.candidate_embedding = keras.layers.Embedding(MOVIES, DIM)
        self.ratings = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])

    def build(self, input_shape):
        self.user_embedding.build(input_shape["user_id"])
        self.candidate_embedding.build(input_shape["movie_id"])
        self.ratings.build((None, None, 2 * DIM))

    def call(self, inputs):
        candidates = self.candidate_embedding(inputs["movie_id"])
        users = ops.expand_dims(self.user_embedding(inputs["user_id"]), axis=1)
        repeated = ops.repeat(users, ops.shape(inputs["movie_id"])[-1], axis=1)
        scores = self.ratings(ops.concatenate([repeated, candidates], axis=-1))
        return ops.squeeze(scores, axis=-1)


class ListwiseOfTfrs(tf_keras.Model):
    """Scores a list of titles, whose length it knows."""

    def __init__(self):
        super().__init__()
        titles = [f"title {number}" for number in range(50)]
        self.user_embeddings = tf_keras.layers.Embedding(USERS, DIM)
        self.movie_embeddings = tf_keras.Sequential(
            [tf_keras.layers.StringLookup(vocabulary=titles), tf_keras.layers.Embedding(51, DIM)]
        )
        self.score_model = tf_keras.Sequential([tf_keras.layers.Dense(1)])

    def call(self, features):
        users = self.user_embeddings(features["user_id"])
        movies = self.movie_embeddings(features["movie_title"])
        length = features["movie_title"].shape[1]
        repeated = tf.repeat(tf.expand_dims(users, 1), [length], axis=1)
        return self.score_model(tf.concat([repeated, movies], 2))


class Indexed(keras.Model):
    """Fills its index in the constructor, with vectors that `predict` computes."""

    def __init__(self):
        super().__init__()
        self.query_layer = keras.layers.Embedding(USERS, DIM)
        self.candidate_model = keras.Sequential(
            [keras.layers.Embedding(MOVIES, DIM), keras.layers.Dense(DIM)]
        )
        self.retrieval = keras_rs.layers.BruteForceRetrieval(k=5, return_scores=False)
        self.update_candidates()

    def update_candidates(self):
        vectors = self.candidate_model.predict(np.arange(40), verbose=0)
        self.retrieval.update_candidates(vectors)

    def call(self, inputs, training=False):
        query = self.query_layer(inputs["user"])
        best = self.retrieval(query)
        return {"query": query, "best": ops.cast(best, "float32")}


class KeepsNumbers(keras.Model):
    """Keeps what an untrained layer computes of rows in the constructor."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(USERS, DIM)
        self.dense = keras.layers.Dense(DIM)
        self.vectors = self.dense(self.embedding(np.arange(3)))

    def call(self, inputs):
        return ops.matmul(self.embedding(inputs["user"]), ops.transpose(self.vectors))


class KeepsSavedNumbers(KeepsNumbers):
    """Keeps the same in a variable, which is saved."""

    def __init__(self):
        super().__init__()
        self.vectors = keras.Variable(self.vectors, trainable=False)


class LastPosition(keras.Model):
    """Takes the last of a history that is padded at its end: an empty one has none."""

    def __init__(self):
        super().__init__()
        self.movies = keras.layers.Embedding(MOVIES, DIM)
        self.dense = keras.layers.Dense(DIM)

    def positions(self, inputs):
        return self.dense(self.movies(inputs["history"]))

    def call(self, inputs):
        last = ops.sum(ops.cast(inputs["history"] != 0, "int32"), axis=1) - 1
        return tf.gather(self.positions(inputs), last, batch_dims=1)


class TiedHead(keras.layers.Layer):
    """Computes with the kernel of another layer, and a bias of its own."""

    def __init__(self, source, **how):
        super().__init__(**how)
        self.source = source

    def build(self, input_shape):
        self.kernel = self.source.kernel
        self.bias = self.add_weight(shape=(DIM,), initializer="ones", name="bias")

    def call(self, inputs):
        return ops.matmul(inputs, self.kernel) + self.bias


class Tied(keras.Model):
    """Two layers share a kernel."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(USERS, DIM)
        self.dense = keras.layers.Dense(DIM)
        self.head = TiedHead(self.dense)

    def call(self, inputs):
        return self.head(self.dense(self.embedding(inputs["user"])))


class FM_Product(tf_keras.layers.Layer):  # noqa: N801 (published names are of many styles)
    """Makes a layer in its call, as a helper of its package does."""

    def call(self, vectors):
        user, movie = vectors
        return tf_keras.layers.Concatenate()([user * movie, user])


class Dense_1(tf_keras.layers.Dense):  # noqa: N801
    pass


class _Scale(tf_keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight("scale", shape[-1:], initializer="uniform")

    def call(self, vectors):
        return vectors * self.scale


class GRU4Rec(tf_keras.Model):
    """Its layers have the names of their classes."""

    def __init__(self):
        super().__init__()
        self.tables = [
            tf_keras.layers.Embedding(USERS, DIM),
            tf_keras.layers.Embedding(MOVIES, DIM),
        ]
        self.product = FM_Product()
        self.joined = tf_keras.layers.Concatenate()
        self.top = [Dense_1(DIM, "relu"), _Scale(), Dense_1(1)]

    def call(self, inputs):
        users, movies = self.tables
        user = users(inputs["user"])
        vectors = self.joined([self.product([user, movies(inputs["movie"])]), user])
        for layer in self.top:
            vectors = layer(vectors)
        return vectors

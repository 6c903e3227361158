"""A two-tower model that must be built with eager execution off: one of its layers reads a tensor
of another one.
"""

# mypy: ignore-errors

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

USERS = 300
MOVIES = 400
STEPS = 4
DIM = 8


def two_towers():
    tf.compat.v1.disable_eager_execution()
    keras = tf.keras
    tf.compat.v1.keras.backend.set_session(tf.compat.v1.Session())

    class SampledSoftmax(keras.layers.Layer):
        def build(self, shapes):
            self.zeros = self.add_weight("bias", (MOVIES,), initializer="zeros", trainable=False)

        def call(self, inputs):
            weights, user, movie = inputs
            labels = tf.cast(movie, tf.int64)
            loss = tf.nn.sampled_softmax_loss(weights, self.zeros, labels, user, 5, MOVIES)
            return tf.expand_dims(loss, 1)

    user = keras.Input((1,), dtype="int32", name="user")
    history = keras.Input((STEPS,), dtype="int32", name="history")
    movie = keras.Input((1,), dtype="int32", name="movie")
    start = np.random.default_rng(1).normal(size=(MOVIES, DIM)).astype(np.float32)
    movies = keras.layers.Embedding(MOVIES, DIM, weights=[start])
    users = keras.layers.Embedding(USERS, DIM)

    watched = keras.layers.GlobalAveragePooling1D()(movies(history))
    joined = keras.layers.Concatenate()([keras.layers.Flatten()(users(user)), watched])
    hidden = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(joined))
    query = keras.layers.Dense(DIM, "tanh")(hidden)
    every_movie = keras.layers.Lambda(lambda _: tf.range(MOVIES))(movie)
    vectors = keras.layers.Lambda(lambda rows: tf.nn.l2_normalize(rows, -1))(movies(every_movie))
    candidate = keras.layers.Lambda(lambda ids: tf.squeeze(tf.gather(vectors, ids), 1))(movie)
    loss = SampledSoftmax()([vectors, query, movie])
    return SimpleNamespace(
        trained=keras.Model([user, history, movie], loss),
        query=keras.Model([user, history], query),
        candidate=keras.Model(movie, candidate),
    )


def train(folder):
    """Trains the model in a session, and saves it with what it predicts."""
    random = np.random.default_rng(2)
    inputs = {
        "user": random.integers(0, USERS, 64),
        "history": random.integers(0, MOVIES, (64, STEPS)),
        "movie": random.integers(0, MOVIES, 64),
    }
    models = two_towers()
    models.trained.compile("adam", loss=lambda _, loss: tf.reduce_mean(loss))
    models.trained.fit(inputs, np.zeros(64), batch_size=16, epochs=3, verbose=0)
    models.trained.save_weights(folder / "weights.h5")
    query = models.query.predict([inputs["user"], inputs["history"]])
    candidate = models.candidate.predict(inputs["movie"])
    np.savez(folder / "expected.npz", **inputs, query=query, candidate=candidate)

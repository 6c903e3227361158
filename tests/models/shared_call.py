"""A model whose one call computes both towers and a score, each over tables of its own, as a user
would write it: nothing here imports rowcast.
"""

# mypy: ignore-errors

import tensorflow as tf

ROWS = 300


class SharedCall(tf.keras.Model):
    """Tables of every kind: of one tower, of the score alone, inside a tower, and of no tower."""

    def __init__(self):
        super().__init__()
        layers = tf.keras.layers
        self.users = layers.Embedding(ROWS, 4, name="users")
        self.items = layers.Embedding(ROWS, 4, name="items")
        self.biases = layers.Embedding(ROWS, 1, name="biases")
        self.hours = layers.Embedding(24, 4, name="hours")
        self.topics = layers.Embedding(ROWS, 4, name="topics")
        self.query = layers.Dense(4)
        self.candidate = layers.Dense(4)

    def call(self, features):
        hour = self.hours(features["hour"])
        query = self.query(self.users(features["user"]) + hour)
        item = self.items(features["item"])
        candidate = self.candidate(item)
        score = tf.reduce_sum(query * candidate, 1) + self.biases(features["item"])[:, 0]
        return {
            "query": query,
            "candidate": candidate,
            "score": score,
            "topic": self.topics(features["item"]),  # no tower: a task of training
        }


def build():
    return SharedCall()


def build_called():
    model = SharedCall()
    ids = tf.constant([0])
    model({"user": ids, "item": ids, "hour": ids})
    return model

"""A model of a user whose large tables a parameter server trained: nothing here imports rowcast."""

# mypy: ignore-errors

import tensorflow as tf
import tensorflow_recommenders as tfrs

E = tf.tpu.experimental.embedding


class Shop(tf.keras.Model):
    """Users wide and deep by one input, items as candidate and as history, hours of the day from
    the checkpoint.
    """

    def __init__(self, users, items):
        super().__init__()
        self.users = tf.keras.layers.Embedding(users, 8)
        self.user_bias = tf.keras.layers.Embedding(users, 1)
        table = E.TableConfig(items, 8, name="items", combiner="mean")
        features = {"item": E.FeatureConfig(table), "history": E.FeatureConfig(table)}
        self.items = tfrs.layers.embedding.TPUEmbedding(features, E.SGD(0.1))
        self.hours = tf.keras.layers.Embedding(24, 4)
        self.deep = tf.keras.Sequential(
            [tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1)]
        )

    def call(self, features):
        found = self.items({"item": features["item"], "history": features["history"]})
        parts = [
            self.users(features["user"]),
            found["history"],
            found["item"],
            self.hours(features["hour"]),
        ]
        return self.deep(tf.concat(parts, 1))[:, 0] + self.user_bias(features["user"])[:, 0]


def build(users: int = 16, items: int = 16) -> tf.keras.Model:
    """Sizes are no bound: a dynamic table grows as it is trained."""
    model = Shop(users, items)
    one = tf.constant([0], tf.int64)
    model(
        {"user": one, "hour": one, "item": one, "history": tf.ragged.constant([[0, 1]], tf.int64)}
    )
    return model

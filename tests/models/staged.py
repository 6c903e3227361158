"""A recommender with two ranking towers, as a user would write it: nothing here imports rowcast."""

# mypy: ignore-errors

import tensorflow as tf


class Films(tf.keras.Model):
    """Vectors of users and films; their product and the popularity, which cost little; and a
    network that reads more of both.
    """

    def __init__(self):
        super().__init__()
        self.users = tf.keras.layers.Embedding(30, 8)
        self.hours = tf.keras.layers.Embedding(24, 4)
        self.films = tf.keras.layers.Embedding(60, 8)
        for layer in (self.users, self.hours, self.films):
            layer.build((None,))
        self.trend = tf.keras.layers.Dense(1)
        self.trend.build((None, 2))
        self.network = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(32, "relu"),
                tf.keras.layers.Dense(1),
            ]
        )
        self.network.build((None, 20))

    def query(self, features):
        return self.users(features["user"])

    def candidate(self, features):
        return self.films(features["film"])

    def quick(self, features):
        product = tf.reduce_sum(self.users(features["user"]) * self.films(features["film"]), 1)
        trend = self.trend(tf.stack([features["popularity"], features["patience"]], 1))
        return product + trend[:, 0] * features["popularity"]

    def rank(self, features):
        user = self.users(features["user"])
        hour = self.hours(features["hour"])
        return self.network(tf.concat([user, hour, self.films(features["film"])], 1))[:, 0]


def build_films():
    return Films()

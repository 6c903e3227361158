"""User models of two towers: nothing here imports rowcast."""

# mypy: ignore-errors

import tensorflow as tf
import tensorflow_recommenders as tfrs

E = tf.tpu.experimental.embedding


def dense(units, activation=None):
    return tf.keras.layers.Dense(
        units, activation, kernel_initializer="glorot_normal", bias_initializer="ones"
    )


class Movies(tf.keras.Model):
    """Two towers and a ranker over one call of one embedding layer; the movie table is shared."""

    FEATURES = ("user_id", "history", "hour", "movie_id", "genres")

    def __init__(self):
        super().__init__()
        users = E.TableConfig(50, 8, name="users")
        hours = E.TableConfig(24, 4, name="hours")
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
    one = tf.constant([0])
    bag = tf.ragged.constant([[0, 1]])
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


class TwoLayers(tf.keras.Model):
    """A layer for each tower, whose tables have one name; `call` takes two arguments, `pair`
    returns a tuple.
    """

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

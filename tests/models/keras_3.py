"""Models of Keras 3 that run on every backend, as a user would write them: JAX trains them, the
exporter builds them on TensorFlow. Nothing here imports rowcast, TensorFlow or JAX.
"""

# mypy: ignore-errors

import keras
from keras import ops

USERS = 60
MOVIES = 90
GENRES = 9
DIM = 4
SLOTS = 3


class TwoTower(keras.Model):
    """Towers whose layers have the names that Keras gives them, two of them in a list."""

    def __init__(self, names=(None, None, None, None), **how):
        super().__init__(**how)
        self.users = keras.layers.Embedding(USERS, DIM, name="users")
        self.movies = keras.layers.Embedding(MOVIES, DIM)
        self.genres = keras.layers.Embedding(GENRES, DIM)
        self.ages = keras.layers.Normalization(axis=None, name="ages")  # counts in an integer
        first, second, third, fourth = names
        layers = [keras.layers.Dense(6, "gelu", name=first), keras.layers.Dense(DIM, name=second)]
        self.query_layers = keras.Sequential([*layers, keras.layers.BatchNormalization()])
        self.dropout = keras.layers.Dropout(0.2)
        self.candidate_layers = [
            keras.layers.Dense(6, "relu", name=third),
            keras.layers.Dense(DIM, name=fourth),
        ]

    def query(self, inputs):
        ages = self.ages(inputs["age"][:, None])
        return self.query_layers(ops.concatenate([self.users(inputs["user"]), ages], axis=-1))

    def candidate(self, inputs):
        genres = ops.mean(self.genres(inputs["genres"]), axis=1)
        found = ops.concatenate([self.movies(inputs["movie"]), genres], axis=-1)
        for layer in self.candidate_layers:
            found = layer(found)
        return found

    def call(self, inputs, training=False):
        query = self.dropout(self.query(inputs), training=training)
        return ops.sum(query * self.candidate(inputs), axis=-1)


def build():
    return TwoTower(name="two_tower")


def build_called():
    """Makes all variables."""
    model = build()
    ids = ops.zeros((1,), "int32")
    genres = ops.zeros((1, SLOTS), "int32")
    model({"user": ids, "age": ops.zeros((1,)), "movie": ids, "genres": genres})
    return model


def build_as_second():
    """Names its layers as the second model of a process has them."""
    model = TwoTower(("dense_4", "dense_5", "dense_6", "dense_7"), name="two_tower")
    model.movies.name = "embedding_2"
    model.genres.name = "embedding_3"
    model.query_layers.name = "sequential_1"
    model.query_layers.layers[-1].name = "batch_normalization_1"
    model.dropout.name = "dropout_1"
    return model


def build_with_more():
    """Has a layer that was not trained."""

    class Shifted(TwoTower):
        def __init__(self, names=(None, None, None, None), **how):
            super().__init__(names, **how)
            self.shift = keras.layers.Dense(DIM, name="shift")

        def query(self, inputs):
            return self.shift(super().query(inputs))

    return Shifted(name="two_tower")


def build_shorter():
    """Has one layer less in its list."""

    class Shorter(TwoTower):
        def __init__(self, **how):
            super().__init__(**how)
            self.candidate_layers = self.candidate_layers[:1]

    return Shorter(name="two_tower")


def build_query_layers():
    """Returns one part of the model."""
    return build().query_layers


def build_function():
    """Returns no model of Keras."""
    return lambda inputs: inputs["age"]


class Twins(keras.Model):
    """Two parts with one structure, which only their names distinguish."""

    def __init__(self, names=("left", "right"), **how):
        super().__init__(**how)
        self.parts = [self.part(name) for name in names]

    @staticmethod
    def part(name):
        return keras.Sequential([keras.layers.Dense(3, name="deep")], name=name)

    def call(self, inputs):
        parts = sorted(self.parts, key=lambda part: part.name)
        left, right = (part(inputs["numbers"]) for part in parts)
        return ops.sum(left - right, axis=-1)


def build_twins():
    return Twins(name="twins")


def build_exchanged():
    """Makes the parts in another order."""
    return Twins(("right", "left"), name="twins")


def build_left():
    """A layer that could be either of two."""

    class Left(keras.Model):
        def __init__(self):
            super().__init__()
            self.deep = keras.layers.Dense(3, name="deep")

        def left(self, inputs):
            return self.deep(inputs["numbers"])

    return Left()


def build_ranker():
    """A ranker over a DistributedEmbedding of keras-rs, whose placement depends on the machine."""
    import keras_rs

    def feature(name, rows):
        table = keras_rs.layers.TableConfig(f"{name}_table", rows, DIM, combiner="mean")
        return keras_rs.layers.FeatureConfig(name, table, (8, SLOTS), (8, DIM))

    features = {"user": feature("user", USERS), "movie": feature("movie", MOVIES)}

    class Ranker(keras.Model):
        def __init__(self, **how):
            super().__init__(**how)
            self.embed = keras_rs.layers.DistributedEmbedding(features, name="embed")
            self.top = keras.Sequential(
                [keras.layers.Dense(6, "relu"), keras.layers.Dense(1, "sigmoid")]
            )

        def call(self, inputs):
            rows = self.embed({name: inputs[name] for name in features})
            return self.top(ops.concatenate([rows["user"], rows["movie"]], axis=-1))[:, 0]

    return Ranker(name="ranker")

"""Models of both generations of Keras whose training saves HDF5, as a user would write them:
nothing here imports rowcast.
"""

# mypy: ignore-errors

import keras
import tensorflow as tf
import tf_keras

ROWS = 300


def graph(library):
    """A graph of layers with two tables of one shape, and a model inside."""
    user = library.Input((), dtype="int32", name="user")
    item = library.Input((), dtype="int32", name="item")
    users = library.layers.Embedding(ROWS, 4, name="users")(user)
    items = library.layers.Embedding(ROWS, 4, name="items")(item)
    dense = [library.layers.Dense(4, activation="relu"), library.layers.BatchNormalization()]
    tower = library.Sequential([*dense, library.layers.Dense(4)], name="tower")
    hidden = tower(library.layers.Concatenate()([users, items]))
    return library.Model({"user": user, "item": item}, library.layers.Dense(2)(hidden))


def build_2():
    return graph(tf_keras)


def build_3():
    return graph(keras)


class Ranker(tf_keras.Model):
    """Layers in a list and a dict, and a weight of its own."""

    def __init__(self):
        super().__init__()
        self.users = tf_keras.layers.Embedding(ROWS, 4)
        self.items = tf_keras.layers.Embedding(ROWS, 4)
        self.hidden = [tf_keras.layers.Dense(8, "relu"), tf_keras.layers.Dense(8, "relu")]
        self.heads = {"score": tf_keras.layers.Dense(2)}
        self.scale = self.add_weight(name="scale", shape=(2,), initializer="ones")

    def call(self, inputs):
        values = tf.concat([self.users(inputs["user"]), self.items(inputs["item"])], axis=-1)
        for layer in self.hidden:
            values = layer(values)
        return self.heads["score"](values) * self.scale


def build_subclassed():
    return Ranker()


def build_parts():
    """The model that was trained, and the part of it that is served."""
    model = build_2()
    parts = tf.Module()
    parts.trained = model
    parts.served = tf_keras.Model(model.inputs, model.layers[-1].input)
    return parts

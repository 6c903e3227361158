"""Functional models of both generations of Keras whose loss is inside, and their two towers, built
beside them as retrieval packages do: nothing here imports rowcast.
"""

# mypy: ignore-errors

from collections import namedtuple
from functools import partial
from types import SimpleNamespace

import keras
import tensorflow as tf
import tf_keras

LIBRARIES = {"keras": keras, "tf_keras": tf_keras}
USERS = ITEMS = 300
Parts = namedtuple("Parts", ["model", "user_model", "item_model"])


def parts(library):
    """Two tables of one shape, and a model of both towers."""
    library = LIBRARIES[library]
    layers = library.layers
    user = library.Input((1,), dtype="int32", name="user_id")
    item = library.Input((1,), dtype="int32", name="item_id")
    users = layers.Flatten()(layers.Embedding(USERS, 4)(user))
    items = layers.Flatten()(layers.Embedding(ITEMS, 4)(item))
    user_vector = layers.Dense(4)(users)
    item_vector = layers.Dense(4)(items)
    score = layers.Dense(1)(layers.Multiply()([user_vector, item_vector]))
    return Parts(
        library.Model([user, item], score),
        library.Model({"user_id": user}, user_vector),
        library.Model({"item_id": item}, item_vector),
    )


def build_namespace(library):
    return SimpleNamespace(**parts(library)._asdict())


def build_dict(library):
    return parts(library)._asdict()


def build_named_tuple(library):
    return parts(library)


def build_module(library):
    """The towers alone, each saved by itself."""
    built = parts(library)
    towers = tf.Module()
    towers.user_model = built.user_model
    towers.item_model = built.item_model
    return towers


def build_attributes(library):
    built = parts(library)
    built.model.user_model = built.user_model
    built.model.item_model = built.item_model
    return built.model


def build_functions(library):
    built = parts(library)
    # An attribute that Keras does not take for a layer.
    built.model.user_model = partial(built.user_model)
    built.model.item_model = partial(built.item_model)
    return built.model

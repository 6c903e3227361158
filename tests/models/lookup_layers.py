"""A model of each Keras with lookup layers in front of its embeddings, as a user would write it:
nothing here imports rowcast.
"""

# mypy: ignore-errors

import keras
import tensorflow as tf

STRINGS = ["red", "green", "blue"]
INTEGERS = [7, 5, 9]
ROWS = 9


class Lookups:
    """The layers of both: strings and integers, with several rows for other keys, and masks."""

    def __init__(self, layers, **integer):
        super().__init__()
        self.layers_of = {}
        self.tables = {}
        for count in (1, 2, 5):
            for mask in (None, ""):
                name = f"string_{count}_{'masked' if mask is not None else 'plain'}"
                self.layers_of[name] = layers.StringLookup(
                    vocabulary=STRINGS, num_oov_indices=count, mask_token=mask
                )
            for mask in (None, 0):
                name = f"integer_{count}_{'masked' if mask is not None else 'plain'}"
                self.layers_of[name] = layers.IntegerLookup(
                    vocabulary=INTEGERS, num_oov_indices=count, mask_token=mask
                )
        if integer:
            self.layers_of["integer_hashed"] = layers.IntegerLookup(
                vocabulary=INTEGERS, num_oov_indices=4, **integer
            )
        for name in self.layers_of:
            # As attributes, which both generations save.
            setattr(self, name, layers.Embedding(ROWS, 4, name=name))

    def call(self, features):
        found = {}
        for name, layer in self.layers_of.items():
            ids = layer(features["text" if name.startswith("string") else "number"])
            found[name] = getattr(self, name)(ids)
        return found


class Model2(Lookups, tf.keras.Model):
    pass


class Model3(Lookups, keras.Model):
    pass


def build_2():
    return called(Model2(tf.keras.layers))


def build_3():
    return called(Model3(keras.layers, oov_method="farmhash"))


class Strict:
    """Layers that reject every key outside their vocabularies."""

    def __init__(self, layers):
        super().__init__()
        self.layers_of = {
            "string": layers.StringLookup(vocabulary=STRINGS, num_oov_indices=0),
            "integer": layers.IntegerLookup(vocabulary=INTEGERS, num_oov_indices=0),
        }
        self.string = layers.Embedding(len(STRINGS), 4, name="string")
        self.integer = layers.Embedding(len(INTEGERS), 4, name="integer")

    def call(self, features):
        return {
            "string": self.string(self.layers_of["string"](features["text"])),
            "integer": self.integer(self.layers_of["integer"](features["number"])),
        }


class Strict2(Strict, tf.keras.Model):
    pass


class Strict3(Strict, keras.Model):
    pass


def build_strict_2():
    return called(Strict2(tf.keras.layers))


def build_strict_3():
    return called(Strict3(keras.layers))


def called(model):
    model({"text": tf.constant(["red"]), "number": tf.constant([7], tf.int64)})
    return model

"""The same model in both generations of Keras, and in the one that tf.keras is, as a user would
write it: nothing here imports rowcast.
"""

# mypy: ignore-errors

import tensorflow as tf

ROWS = 300


def build(keras):
    item = keras.Input((), dtype="int64", name="item")
    rows = keras.layers.Embedding(ROWS, 4, name="items")(item)
    hidden = keras.layers.Dense(8, activation="relu")(rows)
    return keras.Model({"item": item}, keras.layers.Dense(2)(hidden))


def build_2():
    import tf_keras

    return build(tf_keras)


def build_3():
    import keras

    return build(keras)


def build_default():
    return build(tf.keras)

"""A ranker over one table in each Keras, and training that keeps moving averages as the Keras of its day does."""

# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import keras as keras_3
import tensorflow as tf
import tf_keras as keras_2

ROWS = 60


def _ranker(keras):
    class Ranker(keras.Model):
        def __init__(self):
            super().__init__()
            self.items = keras.layers.Embedding(ROWS, 4, name="items")
            self.norm = keras.layers.BatchNormalization(name="norm")
            self.deep = keras.layers.Dense(1, name="deep")

        def call(self, features):
            found = tf.concat([self.items(features["item"]), features["price"][:, None]], 1)
            return self.deep(self.norm(found, training=False))[:, 0]

    model = Ranker()
    model({"item": tf.constant([0], tf.int64), "price": tf.constant([0.0])})
    return model


def build() -> Any:
    return _ranker(keras_2)


def build_keras_3() -> Any:
    return _ranker(keras_3)


class Averaging(keras_2.optimizers.legacy.Adam):
    """Keeps averages as slots, as the optimizers of TensorFlow Addons and of the Model Garden do."""

    def _create_slots(self, var_list):
        super()._create_slots(var_list)
        for variable in var_list:
            self.add_slot(variable, "average", variable.read_value())

    def apply_gradients(self, grads_and_vars, **how):
        pairs = list(grads_and_vars)
        super().apply_gradients(pairs, **how)
        for _, variable in pairs:
            average = self.get_slot(variable, "average")
            average.assign(0.9 * average + 0.1 * variable)

    def finalize_variable_values(self, variables):
        for variable in variables:
            variable.assign(self.get_slot(variable, "average"))


def optimizer_of(kind: str) -> Any:
    if kind == "slots":
        return Averaging(0.1)
    keras = keras_3 if kind == "keras 3" else keras_2
    return keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.9)


def model_of(kind: str) -> Any:
    return build_keras_3() if kind == "keras 3" else build()


def train(model: Any, optimizer: Any, steps: int = 6) -> None:
    """Trains on what ids and prices say, without what ends Keras' `fit`: there variables become their averages."""
    for step in range(steps):
        items = tf.range(step, ROWS, 2, tf.int64)
        prices = tf.cast(items % 7, tf.float32)
        with tf.GradientTape() as tape:
            scores = model({"item": items, "price": prices})
            loss = tf.reduce_mean((scores - prices * tf.cast(items % 3, tf.float32)) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

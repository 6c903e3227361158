"""A ranker in TF1 and each Keras, whose training keeps moving averages as the library of its day
does.
"""

# mypy: ignore-errors

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras as keras_3
import numpy as np
import tensorflow as tf
import tf_keras as keras_2

ROWS = 60
PARTS = 3
ITEMS = np.arange(ROWS)
PRICES = np.linspace(-1, 1, ROWS, dtype=np.float32)
v1 = tf.compat.v1


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
    """Keeps averages as slots, as the optimizers of TensorFlow Addons and of the Model
    Garden do.
    """

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


def build_tf1() -> Any:
    def ranker(features):
        with v1.variable_scope("ranker", partitioner=v1.fixed_size_partitioner(PARTS)):
            items = v1.get_variable("items", [ROWS, 4])
        found = tf.concat(
            [v1.nn.embedding_lookup(items, features["item"]), features["price"][:, None]], 1
        )
        kernel = v1.get_variable("kernel", [5, 1])
        scale = v1.get_variable(
            "scale", [], trainable=False, initializer=v1.constant_initializer(0.5)
        )
        return tf.matmul(found, kernel)[:, 0] * scale

    return ranker


FACTORIES = {"keras 2": "build", "keras 3": "build_keras_3", "slots": "build", "tf1": "build_tf1"}


def train(kind: str, prefix: Path) -> dict[bool, Any]:
    """Trains and saves; returns what is predicted by the last values (False), and by the averages
    (True).
    """
    return _train_tf1(prefix) if kind == "tf1" else _train_keras(kind, prefix)


def _train_keras(kind: str, prefix: Path, steps: int = 6) -> dict[bool, Any]:
    model = globals()[FACTORIES[kind]]()
    keras = keras_3 if kind == "keras 3" else keras_2
    optimizer = (
        Averaging(0.1)
        if kind == "slots"
        else keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.9)
    )
    for step in range(steps):  # not by `fit`, at whose end variables become their averages
        items = tf.range(step, ROWS, 2, tf.int64)
        prices = tf.cast(items % 7, tf.float32)
        with tf.GradientTape() as tape:
            scores = model({"item": items, "price": prices})
            loss = tf.reduce_mean((scores - prices * tf.cast(items % 3, tf.float32)) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(prefix))
    given = {"item": tf.constant(ITEMS), "price": tf.constant(PRICES)}
    last = model(given).numpy()
    optimizer.finalize_variable_values(model.trainable_variables)
    return {False: last, True: model(given).numpy()}


def _train_tf1(prefix: Path, steps: int = 5) -> dict[bool, Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        scores = build_tf1()({"item": tf.constant(ITEMS), "price": tf.constant(PRICES)})
        averages = tf.train.ExponentialMovingAverage(0.9)
        with tf.control_dependencies(
            [v1.train.AdagradOptimizer(0.5).minimize(tf.reduce_sum(scores**2))]
        ):
            step = averages.apply()
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            session.run(step)
        v1.train.Saver().save(session, str(prefix))
        last = session.run(scores)
        session.run(
            [variable.assign(averages.average(variable)) for variable in v1.trainable_variables()]
        )
        return {False: last, True: session.run(scores)}

"""A ranker of TF1 over a partitioned table, whose training keeps moving averages of what it trains."""

# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

ROWS, PARTS = 40, 3


def build() -> Any:
    def ranker(features: dict[str, Any]) -> Any:
        with tf.variable_scope("ranker", partitioner=tf.fixed_size_partitioner(PARTS)):
            items = tf.get_variable("items", [ROWS, 4])
        found = tf.concat([tf.nn.embedding_lookup(items, features["item"]), features["price"][:, None]], 1)
        kernel = tf.get_variable("kernel", [5, 1])
        scale = tf.get_variable("scale", [], trainable=False, initializer=tf.constant_initializer(0.5))
        return {"score": tf.matmul(found, kernel)[:, 0] * scale}

    return ranker

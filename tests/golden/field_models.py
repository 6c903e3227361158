"""Factorisation machines as users write them: one matrix of all ids, one table of all fields, ids among floats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import numpy as np
import tensorflow as tf

FIELDS, NUMBERS = 26, 13
SIZES = np.array([50 + 37 * (field % 7) for field in range(FIELDS)])
FIRSTS = np.concatenate([[0], np.cumsum(SIZES)[:-1]])
ROWS = int(SIZES.sum())
LIMITS = [0.5, 1.0, 2.0, 3.0, 5.0]


class FM(tf.keras.Model):  # type: ignore[misc]
    """Second-order factorisation machine over fields that share a table, each behind the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = tf.keras.layers.Embedding(ROWS, 1)
        self.factors = tf.keras.layers.Embedding(ROWS, 8)
        self.firsts = tf.constant(FIRSTS, tf.int64)

    def call(self, inputs: Mapping[str, Any]) -> Any:
        ids = inputs["ids"] + self.firsts
        factors = self.factors(ids)
        pairs = tf.reduce_sum(factors, 1) ** 2 - tf.reduce_sum(factors**2, 1)
        first = tf.reduce_sum(self.linear(ids), axis=[1, 2])
        return {"score": tf.sigmoid(first + 0.5 * tf.reduce_sum(pairs, 1))}


class DeepFM(tf.keras.Model):  # type: ignore[misc]
    """All of an example in one row of floats, as of a CSV file: numbers first, which are buckets too, then ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table = self.add_weight("table", shape=(ROWS, 8))
        self.buckets = tf.keras.layers.Embedding(NUMBERS * (len(LIMITS) + 1), 8)
        self.deep = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1)])

    def call(self, inputs: Mapping[str, Any]) -> Any:
        numbers, ids = inputs["row"][:, :NUMBERS], tf.cast(inputs["row"][:, NUMBERS:], tf.int32)
        known = tf.math.log1p(tf.maximum(numbers, 0.0))
        flat = tf.reshape(ids + FIRSTS.astype(np.int32), [-1])
        factors = tf.reshape(tf.nn.embedding_lookup(self.table, flat), [-1, FIELDS, 8])
        buckets = tf.reshape(tf.searchsorted(LIMITS, tf.reshape(known, [-1]), side="right"), [-1, NUMBERS])
        bucketed = self.buckets(buckets + tf.range(NUMBERS) * (len(LIMITS) + 1))
        both = tf.concat([factors, bucketed], 1)
        pairs = tf.reduce_sum(both, 1) ** 2 - tf.reduce_sum(both**2, 1)
        deep = self.deep(tf.concat([tf.reshape(both, [-1, (FIELDS + NUMBERS) * 8]), known], 1))
        return {"score": tf.sigmoid(deep[:, 0] + 0.5 * tf.reduce_sum(pairs, 1))}

"""Rows as a model's own code makes them, by Keras and TensorFlow: judges of generated configurations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from bundle.features.columns import Column
from tests.golden.feature_configurations import BOUNDARIES, JOINED, KEYS, ROWS, Configuration


def _hashed_last(words: Any, values: Any) -> Any:
    """Returns rows with those of unknown words behind the known, as columns have them."""
    return (words(values) - 9) % (len(KEYS) + 9)


def crossed_values(layers: Any, each: Configuration, given: dict[str, Column]) -> list[Any]:
    """Returns what is crossed of each input, made by layers of Keras."""
    words = layers.StringLookup(vocabulary=[str(key) for key in KEYS], num_oov_indices=9)
    before: dict[str, Callable[[Any], Any]] = {
        "buckets": layers.Discretization(list(BOUNDARIES)),
        "hashed": partial(_hashed_last, words),
        "hash": layers.Hashing(10),
        "remainder": lambda values: values % 50,
    }
    values = [tf.constant(column.values) for column in given.values()]
    return [before.get(kind, tf.identity)(value) for kind, value in zip(each.options[0], values, strict=True)]


def joined_rows(each: Configuration, given: dict[str, Column]) -> Any:
    """Returns what hashes and vocabularies make of strings that are put together."""
    values = crossed_values(tf.keras.layers, each, given)
    texts = [value if value.dtype == tf.string else tf.strings.as_string(value) for value in values]
    joined = "%" + tf.strings.join(texts, "_X_") + "}"
    made: dict[str, Callable[[Any], Any]] = {
        "hash": lambda strings: tf.strings.to_hash_bucket_fast(strings, ROWS - 3) + 3,
        "strong": lambda strings: tf.strings.to_hash_bucket_strong(strings, ROWS, [7, -1]),
        "known": tf.keras.layers.StringLookup(vocabulary=list(JOINED), num_oov_indices=5),
    }
    return made[each.options[1]](joined)


def operated_rows(each: Configuration, ids: Any) -> Any:
    """What a model writes: Python's operators and TensorFlow's functions, on integers of 64 or 32 bits."""
    done: dict[str, Callable[[Any, Any], Any]] = {
        "add": lambda ids, by: ids + by,
        "multiply": lambda ids, by: by * ids,
        "divide": lambda ids, by: ids // by,
        "remainder": lambda ids, by: ids % by,
        "truncated_remainder": tf.truncatemod,
        "at_least": tf.maximum,
        "at_most": tf.minimum,
        "absolute": lambda ids, _: tf.abs(ids),
        "int32": lambda ids, _: tf.cast(tf.cast(ids, tf.int32), tf.int64),
    }
    for do, by in each.options:
        ids = done[do](ids, None if by is None else tf.constant(by, tf.int64))
    return ids


def stepped_rows(each: Configuration, numbers: Any) -> Any:
    """Rows that rise with a number, or fall: limits of what it is less than are those that it is more than, negated."""
    falling, first_row = each.options
    flat = tf.reshape(numbers, [-1])
    limits = -tf.constant(BOUNDARIES[::-1]) if falling else tf.constant(BOUNDARIES)
    found = tf.searchsorted(limits, -flat if falling else flat, side="left" if falling else "right")
    return tf.reshape(found, numbers.shape) + first_row

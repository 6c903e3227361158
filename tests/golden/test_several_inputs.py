"""Rows of several inputs together, whatever they are, against TensorFlow's own operations: bit for bit."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bundle.features.columns import Column
from bundle.features.rules.several import Crossed, Joined
from bundle.format import manifest as entries

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
ROWS = 1 << 62


@st.composite
def inputs(draw: st.DrawFn) -> list[tuple[entries.CrossKey, np.ndarray[Any, Any]]]:
    """Draws two to four inputs of as many examples, integers or strings."""
    n = draw(st.integers(1, 5))
    found = []
    for _ in range(draw(st.integers(2, 4))):
        texts = draw(st.booleans())
        values = draw(st.lists(TEXTS if texts else INTEGERS, min_size=n, max_size=n))
        key = entries.CrossKey(dtype="string" if texts else "int64")
        found.append((key, np.array(values, object if texts else np.int64)))
    return found


@given(inputs(), st.integers(1, 1 << 40))
def test_cross_of_one_value_of_each_input_is_tensorflow_s(
    sent: list[tuple[entries.CrossKey, np.ndarray[Any, Any]]], buckets: int
) -> None:
    n = sent[0][1].size
    rule = Crossed("abcd"[: len(sent)], entries.CrossedIds(keys=tuple(key for key, _ in sent), buckets=buckets), {})
    rows = rule.ids([Column(values) for _, values in sent], n).values
    crossed = tf.sparse.cross_hashed([tf.constant(values[:, np.newaxis]) for _, values in sent], buckets)
    assert rows.tolist() == crossed.values.numpy().tolist()


@given(inputs(), TEXTS, TEXTS, st.integers(1, 1 << 40))
def test_strings_put_together_are_hashed_as_tensorflow_does(
    sent: list[tuple[entries.CrossKey, np.ndarray[Any, Any]]], separator: str, around: str, buckets: int
) -> None:
    texts = (around, *(separator,) * (len(sent) - 1), around)
    keys = tuple(key for key, _ in sent)
    page = entries.JoinedIds(keys=keys, texts=texts, ids=entries.HashIds(buckets=buckets))
    rule = Joined("abcd"[: len(sent)], page, {})
    rows = rule.rule.resolve("a", rule.ids([Column(values) for _, values in sent], sent[0][1].size).values)
    values = [tf.constant(each) for _, each in sent]
    strings = [each if each.dtype == tf.string else tf.strings.as_string(each) for each in values]
    joined = around + tf.strings.join(strings, separator) + around
    assert rows.tolist() == tf.strings.to_hash_bucket_fast(joined, buckets).numpy().tolist()

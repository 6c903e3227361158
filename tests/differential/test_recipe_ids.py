"""Ids by rules, whatever is sent, against TensorFlow's own operations and Keras' layers: all the
same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.ids.operations import OPERATIONS
from bundle.features.ids.rules import rule_of
from bundle.features.ids.texts import Text
from bundle.format import manifest as entries
from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import OperationNode
from bundle.tables.vocabularies import StringKeys, Vocabulary
from export.id_graphs.tensorflow_operations import run_operation
from export.id_graphs.tensorflow_operations import words as words_inside
from tests.id_graphs import hash_ids, vocabulary_ids, word_ids

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import tensorflow as tf

CHARACTERS = st.one_of(
    st.sampled_from("abAB \t\n\v\f\r\x1c\x1f\x85\u00a0\u2003!'-.^_`~\\]\0\u0130\u00df\u03a3\u00e9"),
    st.characters(exclude_categories=["Cs"]),
)
TEXTS = st.lists(st.text(CHARACTERS, max_size=30), min_size=1, max_size=6)
WORDS = ["a", "b", "ab", "ba", "a b", "A", "\u00e9", "\u00a0", "i\u0307", "\u65e5"]
Step = tuple[str, dict[str, Any]]
"""An operation on texts, with its attributes."""


def replacing(pattern: str, rewrite: str = "") -> Step:
    attributes = {"pattern": pattern, "rewrite": rewrite, "replace_global": True}
    return "StaticRegexReplace", attributes


LOWER: Step = ("StringLower", {})
STRIP = replacing(r"""[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']""")
"""The pattern of Keras."""
STANDARDS: dict[str | None, tuple[Step, ...]] = {
    None: (),
    "lower": (LOWER,),
    "strip_punctuation": (STRIP,),
    "lower_and_strip_punctuation": (LOWER, STRIP),
}
LISTED = vocabulary_ids("words", first_row=2)


def changed(steps: Sequence[Step]) -> entries.GraphIds | None:
    """Returns the graph of some operations on texts, one after another; None: there are none."""
    builder = GraphBuilder("string")
    for op, attributes in steps:
        builder.compute(op, builder.last, **attributes)
    return builder.graph() if steps else None


def words_of(graph: entries.GraphIds, texts: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the words of texts, and the offsets of those of each text."""
    assert graph.split is not None
    words = Text("title", graph, graph.split, []).words([Column(texts)], len(texts))
    assert words.offsets is not None
    return words.values, words.offsets


@pytest.mark.parametrize("size", [300, 9000])  # hashed one by one, and several thousand at a time
def test_hash_has_the_buckets_of_string_to_hash_bucket_fast(size: int) -> None:
    random = np.random.default_rng(0)
    buckets = 2**62 - 1
    texts = [
        "",
        "a",
        "é",
        "\U0001f600",
        "0",
        "-1",
        *(bytes(random.integers(32, 127, n)).decode() for n in range(200)),
    ]
    ends = [sign * 10**digits + by for digits in range(19) for sign in (1, -1) for by in (-1, 0, 1)]
    of_each = [random.integers(-(10**digits), 10**digits, size // 18) for digits in range(1, 19)]
    integers = random.permutation(
        np.concatenate([ends, [(1 << 63) - 1, -(1 << 63)], *of_each]).astype(np.int64)
    )[:size]
    rule = rule_of(hash_ids(buckets), {})
    expected = tf.strings.to_hash_bucket_fast(tf.constant(texts), buckets).numpy()
    assert (rule.resolve("f", np.array(texts, object)) == expected).all()
    expected = tf.strings.to_hash_bucket_fast(
        tf.strings.as_string(tf.constant(integers)), buckets
    ).numpy()
    assert (rule.resolve("f", integers) == expected).all()


@pytest.mark.parametrize("layers", [tf.keras.layers, keras.layers], ids=["tf-keras", "Keras 3"])
@settings(max_examples=60)
@given(TEXTS)
def test_rows_of_words_are_those_of_keras(layers: Any, texts: list[str]) -> None:
    rule = rule_of(LISTED, {"words": Vocabulary(StringKeys(WORDS))})
    values = np.array(texts, object)
    for (standardize, split, ngrams), layer in vectorizations(layers).items():
        at: Any = {"whitespace": "whitespace", "character": "characters"}[split]
        text = changed(STANDARDS[standardize])
        words, offsets = words_of(word_ids(LISTED, at, text, ngrams=ngrams), values)
        rows = rule.resolve("title", words)
        actual = np.split(np.where(rows < 0, 1, rows), offsets[1:-1])
        expected = layer(tf.constant(values))
        assert [each.tolist() for each in actual] == expected.to_list(), (
            standardize,
            split,
            ngrams,
        )


_MADE: dict[str, dict[Any, Any]] = {}


def vectorizations(layers: Any) -> dict[tuple[str | None, str, tuple[int, ...]], Any]:
    """Returns a layer for some of each way to change and split texts."""
    wanted: list[tuple[str | None, str, tuple[int, ...]]]
    wanted = [
        (None, "whitespace", ()),
        ("lower", "character", ()),
        ("strip_punctuation", "whitespace", ()),
    ]
    wanted += [("lower_and_strip_punctuation", "whitespace", (1, 2)), (None, "character", (3, 1))]
    if layers.__name__ not in _MADE:
        _MADE[layers.__name__] = {
            (standardize, split, ngrams): layers.TextVectorization(
                vocabulary=WORDS,
                standardize=standardize,
                split=split,
                ngrams=ngrams or None,
                ragged=True,
            )
            for standardize, split, ngrams in wanted
        }
    return _MADE[layers.__name__]


@given(TEXTS, st.sampled_from("aA.\\ ^-]"), st.sampled_from(["", "x", " ", "yz"]))
def test_changed_texts_are_tensorflow_s(texts: list[str], what: str, by: str) -> None:
    sent = np.array([text.encode() for text in texts], object)
    pattern = what if what in "aA " else f"\\{what}"
    steps: list[Step] = [("StringUpper", {}), ("StringStrip", {})]
    steps += [replacing(f"[{pattern}b]", by), replacing(f"{pattern}b", by)]
    for op, attributes in steps:
        node = OperationNode(op=op, inputs=(0,), attributes=attributes)
        expected = run_operation(node, [tf.constant(sent)]).numpy()
        computed = OPERATIONS[op].compute(attributes, sent)
        assert computed.tolist() == expected.tolist(), (op, attributes)


@given(
    TEXTS,
    st.lists(
        st.sampled_from([LOWER, STRIP, replacing("a", "b a")]),
        max_size=3,
    ),
    st.sampled_from(["whitespace", "characters"]),
    st.sampled_from([(), (2,)]),
    st.none() | st.integers(1, 4),
)
def test_words_in_a_self_contained_savedmodel_are_those_of_a_service(
    texts: list[str],
    steps: list[Step],
    split: Any,
    ngrams: tuple[int, ...],
    length: int | None,
) -> None:
    graph = word_ids(LISTED, split, changed(steps), ngrams=ngrams, length=length)
    values = np.array(texts, object)
    words, offsets = words_of(graph, values)
    actual = [[word.encode() for word in part] for part in np.split(words, offsets[1:-1])]
    assert graph.split is not None
    assert words_inside(graph, graph.split, tf.constant(values), {}).to_list() == actual

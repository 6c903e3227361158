"""Crosses of lists, and words of texts, are those of TensorFlow."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.features.ids.crosses import Crossed
from bundle.features.ids.texts import Text
from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import CROSS_KEY
from bundle.format.manifest import JointInput
from bundle.tables.offsets import offsets_of
from export.graphs.loading import load_tensorflow
from tests.id_graphs import bucket_ids, computed_ids, crossed_ids, vocabulary_ids, word_ids
from tests.random_cases import seeds
from tests.units.bundle.features.readers import objects

tf = load_tensorflow()

CASES = 40
BUCKETS = 31
BOUNDARIES = (-1.5, 0.5, 4.0)
Lists = list[list[Any]]
POOLS: dict[str, list[Any]] = {
    "int64": [*range(-3, 9), 1 << 62],
    "string": ["a", "b", "", "é"],
    "float32": [-2.0, 0.5, 7.5],
}
TEXTS = ("Red  blue", "", "BLUE\tgreen x red", "red\u00a0blue", "\u00c9t\u00e9", "red|blue|", "gGg")


def column_of(lists: Lists, dtype: str) -> Column:
    values = [value for part in lists for value in part]
    offsets = offsets_of([len(part) for part in lists])
    return Column(objects(*values) if dtype == "string" else np.array(values, dtype), offsets)


def crossed_by_tensorflow(columns: dict[str, Lists], is_rest: bool, hash_key: int) -> Any:
    inputs = []
    for dtype, lists in columns.items():
        values = tf.ragged.constant(lists, dtype, ragged_rank=1)
        if dtype == "float32":
            ids = np.digitize(values.flat_values, BOUNDARIES)
            values = values.with_flat_values(ids.astype(np.int64))
        elif dtype == "int64" and is_rest:
            values = values % 5
        inputs.append(values.to_sparse())
    return tf.RaggedTensor.from_sparse(tf.sparse.cross_hashed(inputs, BUCKETS, hash_key)).to_list()


def test_crosses_of_lists_are_those_of_tensorflow(request: pytest.FixtureRequest) -> None:
    for seed in seeds(request, CASES, first=0):
        random = Random(seed)
        dtypes = random.sample(sorted(POOLS), random.randint(2, 3))
        n = random.randint(1, 5)
        lengths = random.choice([[1], [0, 1, 2, 3]])
        columns = {
            dtype: [random.choices(POOLS[dtype], k=random.choice(lengths)) for _ in range(n)]
            for dtype in dtypes
        }
        is_rest = random.random() < 0.5
        keys: dict[str, Any] = {"string": "string", "float32": bucket_ids(BOUNDARIES)}
        keys["int64"] = computed_ids(("FloorMod", 5)) if is_rest else GraphBuilder("int64").graph()
        hash_key = random.choice([CROSS_KEY, 12345])
        graph = crossed_ids([keys[dtype] for dtype in dtypes], BUCKETS, hash_key)
        padding = {"int64": random.choice([None, 3]), "string": random.choice([None, "b"])}
        joint = [JointInput(padding=padding.get(dtype)) for dtype in dtypes]
        sent = [column_of(lists, dtype) for dtype, lists in columns.items()]
        kept = {
            dtype: [[value for value in part if value != padding.get(dtype)] for part in lists]
            for dtype, lists in columns.items()
        }

        rows = Crossed(dtypes, graph, joint, []).ids(sent, n)

        expected = crossed_by_tensorflow(kept, is_rest, hash_key)
        assert rows.offsets is not None
        assert rows.values.tolist() == [row for part in expected for row in part], seed
        assert np.diff(rows.offsets).tolist() == [*map(len, expected)], seed


def words_of_tensorflow(splits: dict[str, Any]) -> Lists:
    words = {
        "whitespace": lambda: tf.strings.split(TEXTS),
        "characters": lambda: tf.strings.unicode_split(TEXTS, "UTF-8"),
        "separator": lambda: tf.strings.split(TEXTS, splits["separator"]),
    }[splits["split"]]()
    if splits["ngrams"]:
        words = tf.strings.ngrams(words, splits["ngrams"], separator=" ")
    return [[word.decode() for word in part] for part in words.to_list()]


def test_words_of_texts_are_those_of_tensorflow(request: pytest.FixtureRequest) -> None:
    for seed in seeds(request, CASES, first=0):
        random = Random(seed)
        split = random.choice(["whitespace", "characters", "separator"])
        options: dict[str, Any] = {"split": split, "ngrams": random.choice([(), (1, 2), (2,)])}
        if split == "separator":
            options["separator"] = "|"
        expected = words_of_tensorflow(options)
        length = random.choice([None, 1, 3])
        if length is not None:
            options["length"] = length
            expected = [words[:length] for words in expected]
        if length is not None and random.random() < 0.5:
            options["padding"] = "nothing"
            expected = [words + ["nothing"] * (length - len(words)) for words in expected]
        graph = word_ids(vocabulary_ids("words"), **options)
        assert graph.split is not None
        text = Text("text", graph, graph.split, [])
        words = text.words([Column(objects(*TEXTS))], len(TEXTS))
        assert words.offsets is not None
        actual = np.split(words.values, words.offsets[1:-1])
        assert [part.tolist() for part in actual] == expected, seed

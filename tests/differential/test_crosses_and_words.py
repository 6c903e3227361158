"""Crosses of lists, and words of texts, are those of TensorFlow."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import CROSS_KEY
from bundle.format.manifest import EmbeddedFeature, GraphIds
from bundle.tables.offsets import offsets_of
from export.graphs.loading import load_tensorflow
from tests.id_graphs import bucket_ids, computed_ids, crossed_ids, hash_ids, word_ids
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


def rows_of(columns: dict[str, Column], n: int, ids: GraphIds, **fields: Any) -> Lists:
    """Returns the rows of each example of a bag with these ids."""
    fields |= {"kind": "bag", "combiner": "sum", "table": "", "indicator": BUCKETS, "ids": ids}
    feature = EmbeddedFeature.model_validate({"role": "context", **fields})
    rows, offsets = FeatureReader({"text": feature}, {}, {}).rows("text", columns, n)
    return [part.tolist() for part in np.split(rows, offsets[1:-1])]


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
        default = {dtype: random.choice([None, *POOLS[dtype]]) for dtype in dtypes}
        sent = {dtype: column_of(lists, dtype) for dtype, lists in columns.items()}
        for dtype in dtypes:
            if default[dtype] is not None and random.random() < 0.3:
                del sent[dtype]
                columns[dtype] = [[default[dtype]]] * n
        kept = {
            dtype: [[value for value in part if value != padding.get(dtype)] for part in lists]
            for dtype, lists in columns.items()
        }
        joint = [{"padding": padding.get(dtype), "default": default[dtype]} for dtype in dtypes]

        rows = rows_of(sent, n, graph, inputs=tuple(dtypes), joint=joint)

        assert rows == crossed_by_tensorflow(kept, is_rest, hash_key), seed


def words_of_tensorflow(splits: dict[str, Any]) -> list[list[str]]:
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
        rows = rows_of(
            {"text": Column(objects(*TEXTS))}, len(TEXTS), word_ids(hash_ids(BUCKETS), **options)
        )
        hashed = tf.strings.to_hash_bucket_fast(tf.ragged.constant(expected), BUCKETS)
        assert rows == hashed.to_list(), seed

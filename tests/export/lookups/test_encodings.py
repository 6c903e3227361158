"""Encodings of ids as numbers: what is found of them, and that services count what the original does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column
from bundle.format.manifest import (
    BucketIds,
    ChainedIds,
    ComputedIds,
    CrossedIds,
    CrossKey,
    HashIds,
    IdOperation,
    IdRule,
    VocabularyIds,
)
from export.frameworks.loading import load_tensorflow
from export.graph.specs import FeatureSpec
from export.verify.examples import Examples
from tests.export.lookups.gathering import hold, make, recipe

WORDS = np.array([["red", "red", ""], ["blue", "x", "green"], ["\u00e9", "y", "z"]], object)
SENT: dict[str, Any] = {
    "words": WORDS,
    "numbers": np.array([[7, 7], [5, 0], [-1, 7]]),
    "color": np.array(["red", "", "blue"], object),
    "item": np.array([7, -1, 1 << 40]),
    "pair": np.array([[3, 3], [9, 0], [1, 2]]),
    "age": np.array([[0.5], [1.0], [9.0]], np.float32),
}
INPUTS: dict[str, Any] = {
    "words": {"dtype": "string", "shape": [3]},
    "numbers": {"dtype": "int64", "shape": [2]},
    "color": {"dtype": "string"},
    "item": {"dtype": "int64"},
    "pair": {"dtype": "int64", "shape": [2]},
    "age": {"dtype": "float32", "shape": [1]},
}


def remainder(by: int) -> ComputedIds:
    return ComputedIds(operations=(IdOperation(do="remainder", by=by),))


KEYS = (CrossKey(dtype="string"), CrossKey(dtype="int64"))
FOUND: dict[str, list[tuple[str, int, IdRule | None]]] = {
    "words": [
        ("bag", 5, VocabularyIds(vocabulary="words", first_row=2, oov_buckets=2)),
        ("bag", 4, VocabularyIds(vocabulary="words", first_row=1)),
    ],
    "numbers": [("bag", 3, VocabularyIds(vocabulary="numbers", first_row=1))],
    "color": [("single", 4, VocabularyIds(vocabulary="words", first_row=1))],
    "item": [
        ("single", 9, HashIds(buckets=9)),
        ("single", 10, remainder(10)),
        (
            "single",
            3,
            ChainedIds(
                rules=(
                    remainder(8),
                    VocabularyIds(vocabulary="numbers", first_row=1),
                )
            ),
        ),
    ],
    "pair": [("bag", 10, None)],
    "age": [("single", 3, BucketIds(boundaries=(1.0, 5.0)))],
    "color*item": [("single", 30, CrossedIds(keys=KEYS, buckets=30))],
}
"""What is found of each input: kind, width and rule."""


@pytest.mark.parametrize("function", ["build", "build_3"])
def test_encodings_become_indicators_that_give_the_original_s_numbers(function: str, tmp_path: Path) -> None:
    tf = load_tensorflow()
    job = recipe(function, INPUTS, code={"factory": f"encoding_models.py:{function}"})
    encoded = make(job, {name: tf.constant(each[:2]) for name, each in SENT.items()}, tmp_path)
    found: dict[str, list[Any]] = {}
    for spec in encoded.traced.spec.features.values():
        assert isinstance(spec, FeatureSpec)
        found.setdefault("*".join(spec.reads), []).append((spec.kind, spec.indicator, spec.rule))
    assert {name: sorted(each, key=str) for name, each in found.items()} == {
        name: sorted(each, key=str) for name, each in FOUND.items()
    }
    columns = {
        name: Column(each.reshape(-1), np.arange(4) * each.shape[1] if each.ndim == 2 else None)
        for name, each in SENT.items()
    }
    hold(encoded, tmp_path, Examples(3, columns))

"""Rows by TensorFlow's own operations, which a bundle's rows of ids are compared with.

Random graphs of the operations are compared in tests/differential/test_id_graphs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.ids.rules import rule_of
from bundle.format import manifest
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.graphs.loading import tf
from export.id_graphs.tensorflow_operations import rows_by_tensorflow
from export.recipe.schema import VocabularySection
from tests.id_graphs import bucket_ids, computed_ids, hash_ids, vocabulary_ids

KEYS = ["ann", "böb", " c", "d\re"]
NUMBERS = [-5, 7, 1 << 62]
PARTS = {
    "names": VocabularySection(file="names.txt"),
    "numbers": VocabularySection(file="numbers.txt", dtype="int64"),
}
OPENED = {
    "names": Vocabulary(StringKeys(KEYS)),
    "numbers": Vocabulary(IntegerKeys(np.array(NUMBERS))),
}
TEXTS = np.array(["ann", "d\re", "", "no", "böb"], object)
INTEGERS = np.array([1 << 62, 0, 8, -1, -5])
BEYOND: dict[str, Any] = {"first_row": 1, "oov_buckets": 100, "oov_first_row": 5}
SPREAD: dict[str, Any] = {"oov_buckets": 3, "oov_first_row": 1, "oov_hash": "modulo", "mask": 0}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The directory of the vocabularies' files."""
    (tmp_path / "names.txt").write_text("".join(f"{key}\n" for key in KEYS), newline="")
    (tmp_path / "numbers.txt").write_text("".join(f"{key}\n" for key in NUMBERS))
    return tmp_path


@pytest.mark.parametrize(
    ("rule", "values", "rows"),
    [
        (manifest.IdentityIds(), np.array([0, 9, 12]), [0, 9, 12]),
        (vocabulary_ids("names", first_row=2), TEXTS, [2, 5, -1, -1, 3]),
        (vocabulary_ids("numbers", "int64"), np.array([1 << 62, 8, -5]), [2, -1, 0]),
        (vocabulary_ids("numbers", "int64", 4, **SPREAD), INTEGERS, [6, 0, 3, 3, 4]),
        (vocabulary_ids("names", is_complete=True), TEXTS[:2], [0, 3]),
        (bucket_ids((0.5, 2.0)), np.array([0.4, 0.5, 3.0, -9.0], np.float32), [0, 1, 2, 0]),
        (hash_ids(999), INTEGERS, None),
        (hash_ids(999, "int64", first_row=5), INTEGERS, None),
        (hash_ids(999, key=(3, 4)), TEXTS, None),
        (hash_ids(999), TEXTS, None),
        (vocabulary_ids("names", **BEYOND), TEXTS, None),
        (vocabulary_ids("numbers", "int64", **BEYOND), INTEGERS, None),
        (computed_ids(("FloorMod", 7)), np.array([-1, 6, 15]), [6, 6, 1]),
    ],
)
def test_rows_by_tensorflow_equal_those_of_the_bundle(
    rule: Any, values: np.ndarray[Any, Any], rows: list[int] | None, base: Path
) -> None:
    computed = rows_by_tensorflow(rule, values, PARTS, base)
    assert computed.tolist() == rule_of(rule, OPENED).resolve("f", values).tolist()
    assert rows is None or computed.tolist() == rows


def test_key_that_the_model_rejects_is_an_error(base: Path) -> None:
    rule = vocabulary_ids("names", is_complete=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in vocabulary names"):
        rows_by_tensorflow(rule, TEXTS, PARTS, base)

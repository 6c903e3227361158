"""Rows by TensorFlow's own operations, which a bundle's rows of ids are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from bundle.features.rules.ids import rule_of
from bundle.format import manifest
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.id_rules.operations import rows_by_tensorflow
from export.recipe.schema import VocabularyPart, VocabularyRule

KEYS = ["ann", "böb", " c", "d\re"]
NUMBERS = [-5, 7, 1 << 62]
PAGES = {
    "names": VocabularyPart(file="names.txt"),
    "numbers": VocabularyPart(file="numbers.txt", dtype="int64"),
}
OPENED = {
    "names": Vocabulary(StringKeys(KEYS)),
    "numbers": Vocabulary(IntegerKeys(np.array(NUMBERS))),
}
TEXTS = np.array(["ann", "d\re", "", "no", "böb"], object)
INTEGERS = np.array([1 << 62, 0, 8, -1, -5])
NAMES = {"vocabulary": "names", "first_row": 2}
LISTED = {"vocabulary": "numbers"}
BEYOND = {"first_row": 1, "oov_buckets": 100, "oov_first_row": 5}


@pytest.mark.parametrize(
    ("rule", "values", "rows"),
    [
        (manifest.IdentityIds(), np.array([0, 9, 12]), [0, 9, 12]),
        (manifest.VocabularyIds(**NAMES), TEXTS, [2, 5, -1, -1, 3]),
        (manifest.VocabularyIds(**LISTED), np.array([1 << 62, 8, -5]), [2, -1, 0]),
        (
            manifest.VocabularyIds(
                **LISTED, first_row=4, oov_buckets=3, oov_first_row=1, oov_hash="modulo", mask=0
            ),
            INTEGERS,
            [6, 0, 3, 3, 4],
        ),
        (
            manifest.BucketIds(boundaries=(0.5, 2.0)),
            np.array([0.4, 0.5, 3.0, -9.0], np.float32),
            [0, 1, 2, 0],
        ),
        (manifest.HashIds(buckets=999), INTEGERS, None),
        (manifest.HashIds(buckets=999), TEXTS, None),
        (manifest.VocabularyIds(vocabulary="names", **BEYOND), TEXTS, None),
        (manifest.VocabularyIds(vocabulary="numbers", **BEYOND), INTEGERS, None),
    ],
)
def test_rows_by_tensorflow_equal_those_of_the_bundle(
    rule: Any, values: np.ndarray[Any, Any], rows: list[int] | None, tmp_path: Path
) -> None:
    (tmp_path / "names.txt").write_text("".join(f"{key}\n" for key in KEYS), newline="")
    (tmp_path / "numbers.txt").write_text("".join(f"{key}\n" for key in NUMBERS))
    found = rows_by_tensorflow(rule, values, PAGES, tmp_path)
    assert found.tolist() == rule_of(rule, OPENED).resolve("f", values).tolist()
    assert rows is None or found.tolist() == rows


def test_vocabulary_rule_with_oov_buckets_requires_their_first_row() -> None:
    with pytest.raises(ValidationError, match="'oov_buckets' requires 'oov_first_row'"):
        VocabularyRule(kind="vocabulary", vocabulary="names", oov_buckets=3)

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from bundle.features.rules.ids import rule_of
from bundle.format.manifest import HashIds, VocabularyIds
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.errors import VerificationFailed
from export.recipe.schema import FeaturePart, VocabularyPart, VocabularyRule
from export.verify.id_rules import check_rows

KEYS = ["ann", "böb", " c", "d\re"]
NUMBERS = [-5, 7, 1 << 62]
PAGES = {"names": VocabularyPart(file="names.txt"), "numbers": VocabularyPart(file="numbers.txt", dtype="int64")}
TEXTS = np.array(["ann", "d\re", "", "no", "böb"], object)
RULES: list[tuple[dict[str, Any], np.ndarray[Any, Any], list[int]]] = [
    ({"kind": "identity"}, np.array([0, 9, 10, -1]), [0, 9, -1, -1]),
    ({"kind": "vocabulary", "vocabulary": "names", "first_row": 2}, TEXTS, [2, 5, -1, -1, 3]),
    ({"kind": "vocabulary", "vocabulary": "numbers"}, np.array([1 << 62, 8, -5]), [2, -1, 0]),
    (
        {"kind": "vocabulary", "vocabulary": "numbers", "first_row": 4, "oov_buckets": 3, "oov_first_row": 1}
        | {"oov_hash": "modulo", "mask": 0},
        np.array([1 << 62, 0, 8, -1, -5]),
        [6, 0, 3, 3, 4],
    ),
    ({"kind": "buckets", "boundaries": [0.5, 2.0]}, np.array([0.4, 0.5, 3.0, -9.0], np.float32), [0, 1, 2, 0]),
]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "names.txt").write_text("".join(f"{key}\n" for key in KEYS), newline="")
    (tmp_path / "numbers.txt").write_text("".join(f"{key}\n" for key in NUMBERS))
    return tmp_path


@pytest.mark.parametrize(("rule", "values", "rows"), RULES)
def test_check_rows_right_rows_pass_and_one_wrong_is_named(
    base: Path, rule: dict[str, Any], values: np.ndarray[Any, Any], rows: list[int]
) -> None:
    part = FeaturePart.model_validate({"ids": rule})
    found = np.array(rows, np.int64)
    check_rows("f", values, found, part, 10, PAGES, base)
    found[-1] += 1
    with pytest.raises(
        VerificationFailed, match=rf"'f': id {values.tolist()[-1]!r} is row {found[-1]} .* row {rows[-1]} by"
    ):
        check_rows("f", values, found, part, 10, PAGES, base)


@pytest.mark.parametrize("values", [np.array([0, 12, -7, 1 << 60]), TEXTS])
def test_check_rows_hash_is_the_bundle_s(base: Path, values: np.ndarray[Any, Any]) -> None:
    part = FeaturePart.model_validate({"ids": {"kind": "hash"}})
    check_rows("f", values, rule_of(HashIds(buckets=1000), {}).resolve("f", values), part, 1000, PAGES, base)
    with pytest.raises(VerificationFailed, match="differ"):
        check_rows("f", values, rule_of(HashIds(buckets=999), {}).resolve("f", values), part, 1000, PAGES, base)


@pytest.mark.parametrize(("vocabulary", "values"), [("numbers", np.array([7, 12, -7, 1 << 60])), ("names", TEXTS)])
def test_check_rows_of_ids_beyond_a_vocabulary_is_the_bundle_s(
    base: Path, vocabulary: str, values: np.ndarray[Any, Any]
) -> None:
    rule = {"kind": "vocabulary", "vocabulary": vocabulary, "first_row": 1, "oov_buckets": 100, "oov_first_row": 5}
    part = FeaturePart.model_validate({"ids": rule})
    keys = IntegerKeys(np.array(NUMBERS)) if vocabulary == "numbers" else StringKeys(KEYS)
    found = rule_of(VocabularyIds.model_validate(rule), {vocabulary: Vocabulary(keys)}).resolve("f", values)
    assert (found >= 5).any()
    check_rows("f", values, found, part, 1000, PAGES, base)


def test_rule_with_rows_for_unknown_ids_says_where_they_are() -> None:
    with pytest.raises(ValidationError, match="'oov_first_row' is given with 'oov_buckets'"):
        VocabularyRule(kind="vocabulary", vocabulary="names", oov_buckets=3)

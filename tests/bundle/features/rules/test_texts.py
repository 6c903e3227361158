"""Texts whose words are ids; TensorFlow judges them in tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError
from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.format import manifest as entries
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import StringKeys, Vocabulary
from tests.conftest import write_table

LISTED = entries.VocabularyIds(vocabulary="words", first_row=2)
LOWER = entries.TextStep(do="lower")
WORDS = entries.TextIds(steps=(LOWER,), split="whitespace", ids=LISTED)
TEXTS = ["Red  blue", "", "blue\tgreen x red", "\u00c9"]
ROWS = [[2, 3], [], [3, 4, 1, 2], [1]]


def title(**changes: Any) -> entries.EmbeddedFeature:
    told = {"kind": "bag", "combiner": "mean", "table": "t", "role": "context", "inputs": ("title",), "ids": WORDS}
    return entries.EmbeddedFeature.model_validate({**told, "unknown": {"rule": "row", "row": 1}} | changes)


def sequence(**changes: Any) -> entries.EmbeddedFeature:
    return title(kind="sequence", combiner=None, length=3, **changes)


def reader(tmp_path: Path, *told: entries.EmbeddedFeature) -> FeatureReader:
    stored = np.arange(21, dtype="<f4").reshape(7, 3)
    table = TableReader(tmp_path, write_table(tmp_path, "t", stored, "float32", []))
    words = Vocabulary(StringKeys(["red", "blue", "green"]))
    return FeatureReader({f"f{place}": each for place, each in enumerate(told)}, {"t": table}, {"words": words})


def sent(texts: list[str], **how: Any) -> dict[str, Column]:
    return {"title": Column(np.array(texts, object), **how)}


def row(number: int) -> list[float]:
    return [3.0 * number, 3.0 * number + 1, 3.0 * number + 2]


def test_bag_is_the_mean_of_the_words_rows_and_zeros_without_any(tmp_path: Path) -> None:
    found = reader(tmp_path, title()).activation("f0", sent(TEXTS), 4)
    means = [np.mean([row(each) for each in rows], 0) if rows else np.zeros(3) for rows in ROWS]
    assert np.array_equal(found.values, np.array(means, np.float32))
    assert found.unknown == 2


def test_sequence_is_cut_and_filled_up_with_its_row(tmp_path: Path) -> None:
    found = reader(tmp_path, sequence(filler_row=6)).activation("f0", sent(TEXTS), 4)
    filled = [[row(each) for each in [*rows, 6, 6, 6][:3]] for rows in ROWS]
    assert np.array_equal(found.values, np.array(filled, np.float32))


def test_ordinal_sequence_gives_the_rows_as_numbers(tmp_path: Path) -> None:
    page = sequence(table="", indicator=1 << 20, ordinal=True)
    found = reader(tmp_path, page).activation("f0", sent(TEXTS), 4)
    assert found.values[:, :, 0].tolist() == [[2, 3, 0], [0, 0, 0], [3, 4, 1], [1, 0, 0]]


def test_words_beyond_the_length_are_left_out_of_a_bag(tmp_path: Path) -> None:
    page = title(ids=WORDS.model_copy(update={"length": 2}))
    rows, offsets = reader(tmp_path, page).rows("f0", sent(TEXTS), 4)
    assert (rows.tolist(), offsets.tolist()) == ([2, 3, 3, 4, -1], [0, 2, 2, 4, 5])


def test_text_that_is_not_split_is_one_id(tmp_path: Path) -> None:
    page = title(kind="single", combiner=None, ids=WORDS.model_copy(update={"split": None}))
    found = reader(tmp_path, page).activation("f0", sent(["RED", "red blue"]), 2)
    assert np.array_equal(found.values, np.array([row(2), row(1)], np.float32))


def test_text_that_is_left_out_takes_the_default(tmp_path: Path) -> None:
    features = reader(tmp_path, title(default="green"))
    assert features.activation("f0", {}, 2).values.tolist() == [row(4), row(4)]
    some = sent(["red"], offsets=np.array([0, 0, 1]))
    assert features.activation("f0", some, 2).values.tolist() == [row(4), row(2)]


def test_many_features_of_texts_give_what_each_gives_alone(tmp_path: Path) -> None:
    kinds = [title(), title(combiner="sum"), sequence(filler_row=6), sequence(filler_row=5), sequence()]
    features = reader(tmp_path, *kinds * 5)
    together = features.activations(list(features), sent(TEXTS), 4)
    for name, found in together.items():
        alone = features.activation(name, sent(TEXTS), 4)
        assert np.array_equal(found.values, alone.values)
        assert found.unknown == alone.unknown


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Column(np.array([7])), "7 is an integer; the ids of this feature are strings"),
        (Column(np.array(["a", "b"], object), np.array([0, 2])), "example 0 has 2 values; one was expected"),
        (Column(np.empty(0, object), np.array([0, 0])), "the feature has no default"),
        (Column(np.array(["a"], object), None, np.ones(1, np.float32)), "weights were sent; the feature takes none"),
        (Column(np.array(["\ud800"], object)), "a string is no Unicode text"),
    ],
)
def test_what_is_no_text_is_refused_by_name(tmp_path: Path, column: Column, message: str) -> None:
    with pytest.raises(FeatureError, match=message) as refused:
        reader(tmp_path, title()).activation("f0", {"title": column}, 1)
    assert refused.value.feature == "title"

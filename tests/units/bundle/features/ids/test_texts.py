"""Texts whose words are ids; TensorFlow judges them in tests/differential."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError
from bundle.features.columns import Column
from bundle.format import manifest as entries
from tests.id_graphs import vocabulary_ids
from tests.units.bundle.features.readers import STORED, column, lowered, objects, open_reader

LISTED = vocabulary_ids("words", first_row=2)
WORDS = entries.TextIds(text=lowered(), split="whitespace", ids=LISTED)
KNOWN = ("red", "blue", "green")
TEXTS = {"title": column("Red  blue", "", "blue\tgreen x red", "\u00c9")}
ROWS = [[2, 3], [], [3, 4, 1, 2], [1]]


def title(**changes: Any) -> entries.EmbeddedFeature:
    fields = {
        "kind": "bag",
        "combiner": "sum",
        "table": "t",
        "role": "context",
        "inputs": ("title",),
        "ids": WORDS,
    }
    return entries.EmbeddedFeature.model_validate(
        {**fields, "unknown": {"rule": "row", "row": 1}} | changes
    )


def sequence(**changes: Any) -> entries.EmbeddedFeature:
    return title(kind="sequence", combiner=None, length=3, **changes)


def test_texts_are_the_rows_of_their_words_in_a_bag_or_a_sequence(tmp_path: Path) -> None:
    numbers = sequence(table="", indicator=1 << 20, ordinal=True)
    reader = open_reader(
        tmp_path, *KNOWN, bag=title(), sequence=sequence(filler_row=6), numbers=numbers
    )
    activations = reader.activations(list(reader), TEXTS, 4)
    sums = [STORED[rows].sum(0, dtype=np.float32) for rows in ROWS]
    np.testing.assert_allclose(activations["bag"].values, sums, rtol=1e-6)
    assert (activations["sequence"].values == [STORED[[*rows, 6, 6, 6][:3]] for rows in ROWS]).all()
    assert activations["numbers"].values[:, :, 0].tolist() == [
        [2, 3, 0],
        [0, 0, 0],
        [3, 4, 1],
        [1, 0, 0],
    ]
    assert activations["bag"].unknown == 2


def test_text_that_is_left_out_takes_the_default(tmp_path: Path) -> None:
    reader = open_reader(tmp_path, *KNOWN, f=title(default="green"))
    assert (reader.activation("f", {}, 2).values == STORED[[4, 4]]).all()
    columns = {"title": column("red", offsets=[0, 0, 1])}
    assert (reader.activation("f", columns, 2).values == STORED[[4, 2]]).all()


@pytest.mark.parametrize(
    ("title_column", "message"),
    [
        (column(7), "7 is an integer; a string was expected"),
        (column("a", "b", offsets=[0, 2]), "2 values in example 0; one value was expected"),
        (Column(objects(), np.array([0, 0])), "the feature has no default"),
        (column("a", weights=[1]), "weights were sent; a list without them was expected"),
        (column("\ud800"), "a string is no Unicode text"),
    ],
)
def test_value_that_is_not_a_text_is_rejected_with_the_name_of_the_feature(
    tmp_path: Path, title_column: Column, message: str
) -> None:
    with pytest.raises(FeatureError, match=message) as rejected:
        open_reader(tmp_path, *KNOWN, f=title()).activation("f", {"title": title_column}, 1)
    assert rejected.value.feature == "title"

"""Strings that are put together of several inputs; TensorFlow judges them in tests/golden."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.errors import FeatureError
from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.features.rules.hashing import hashes
from bundle.format import manifest as entries
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import StringKeys, Vocabulary
from tests.conftest import write_table

KEYS = (entries.CrossKey(dtype="string", default="nowhere"), entries.CrossKey(dtype="int64", role="candidate"))
HASH = entries.HashIds(buckets=64)


def joined(**changes: object) -> entries.EmbeddedFeature:
    told = {
        "kind": "single",
        "table": "t",
        "role": "candidate",
        "inputs": ("city", "item"),
        "ids": entries.JoinedIds(keys=KEYS, texts=("", "_X_", ""), ids=HASH),
    }
    return entries.EmbeddedFeature.model_validate(told | changes)


def reader(tmp_path: Path, page: entries.EmbeddedFeature) -> FeatureReader:
    stored = np.random.default_rng(0).standard_normal((64, 3)).astype("<f4")
    table = TableReader(tmp_path, write_table(tmp_path, "t", stored, "float32", []))
    return FeatureReader({"f": page}, {"t": table}, {"pairs": Vocabulary(StringKeys(["a_X_7", "nowhere_X_-1"]))})


def test_joined_values_are_hashed_as_one_string_and_what_is_not_sent_takes_its_default(tmp_path: Path) -> None:
    found = reader(tmp_path, joined())
    items = Column(np.array([7, -1]))
    rows, offsets = found.rows("f", {"city": Column(np.array(["a", "b"], object)), "item": items}, 2)
    assert (rows % 64).tolist() == (hashes("f", np.array(["a_X_7", "b_X_-1"])) % np.uint64(64)).tolist()
    assert offsets.tolist() == [0, 1, 2]
    rows, _ = found.rows("f", {"item": items}, 2)
    assert rows.tolist() == (hashes("f", np.array(["nowhere_X_7", "nowhere_X_-1"])) % np.uint64(64)).tolist()
    with pytest.raises(FeatureError, match="'item': a value must be sent"):
        found.activation("f", {}, 1)
    with pytest.raises(FeatureError, match="'item': 'x' is no integer id"):
        found.activation("f", {"item": Column(np.array(["x"], object))}, 1)
    with pytest.raises(FeatureError, match="'city': 3 is an integer"):
        found.activation("f", {"city": Column(np.array([3])), "item": Column(np.array([3]))}, 1)


def test_joined_values_are_found_in_a_vocabulary_or_are_unknown(tmp_path: Path) -> None:
    rule = entries.JoinedIds(
        keys=KEYS, texts=("", "_X_", ""), ids=entries.VocabularyIds(vocabulary="pairs", first_row=4)
    )
    found = reader(tmp_path, joined(ids=rule))
    rows, _ = found.rows("f", {"city": Column(np.array(["a", "b"], object)), "item": Column(np.array([7, 7]))}, 2)
    assert rows.tolist() == [4, -1]
    assert found.activation("f", {"item": Column(np.array([-1, 5]))}, 2).unknown == 1


def test_one_input_may_have_texts_around_it(tmp_path: Path) -> None:
    rule = entries.JoinedIds(keys=(entries.CrossKey(dtype="int64"),), texts=("100%=", ""), ids=HASH)
    found = reader(tmp_path, joined(inputs=("item",), ids=rule, role="context"))
    rows, _ = found.rows("f", {"item": Column(np.array([12]))}, 1)
    assert rows.tolist() == (hashes("f", np.array(["100%=12"])) % np.uint64(64)).tolist()

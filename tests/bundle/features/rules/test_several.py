"""Crosses that TensorFlow has no word for; those that it has are held to it in tests/golden."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.errors import FeatureError, FormatError
from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.features.rules.several import COMBINATIONS_MAX
from bundle.format import manifest as entries
from bundle.tables.reader import TableReader
from tests.conftest import write_table

KEYS = (
    entries.CrossKey(dtype="int64", role="context", default=4),
    entries.CrossKey(dtype="string", role="candidate"),
)


def crossed(**changes: object) -> entries.EmbeddedFeature:
    told = {
        "kind": "bag",
        "table": "t",
        "role": "candidate",
        "inputs": ("user", "genre"),
        "ids": entries.CrossedIds(keys=KEYS, buckets=64),
        "combiner": "sum",
    }
    return entries.EmbeddedFeature.model_validate(told | changes)


@pytest.fixture
def reader(tmp_path: Path) -> FeatureReader:
    stored = np.random.default_rng(0).standard_normal((64, 3)).astype("<f4")
    return FeatureReader(
        {"user*genre": crossed()}, {"t": TableReader(tmp_path, write_table(tmp_path, "t", stored, "float32", []))}, {}
    )


def test_cross_has_a_row_for_every_combination_the_last_input_fastest(reader: FeatureReader) -> None:
    users, genres = (
        Column(np.array([7, 8]), np.array([0, 2])),
        Column(np.array(["a", "b", "c"], object), np.array([0, 3])),
    )
    rows, offsets = reader.rows("user*genre", {"user": users, "genre": genres}, 1)
    assert offsets.tolist() == [0, 6]
    one_by_one = [
        reader.rows("user*genre", {"user": Column(np.array([user])), "genre": Column(np.array([genre], object))}, 1)[0][
            0
        ]
        for user in (7, 8)
        for genre in "abc"
    ]
    assert rows.tolist() == one_by_one
    assert len(set(one_by_one)) > 3


def test_input_of_a_cross_that_is_not_sent_takes_its_default_or_is_named(reader: FeatureReader) -> None:
    genres = Column(np.array(["a", "b"], object))
    told = reader.activation("user*genre", {"user": Column(np.array([4, 4])), "genre": genres}, 2).values
    assert (reader.activation("user*genre", {"genre": genres}, 2).values == told).all()
    with pytest.raises(FeatureError, match="'genre': a value must be sent"):
        reader.activation("user*genre", {"user": Column(np.array([4]))}, 1)
    with pytest.raises(FeatureError, match="'genre': 3 is an integer; the ids of this feature are strings"):
        reader.activation("user*genre", {"genre": Column(np.array([3]))}, 1)


def test_cross_of_long_bags_is_refused_before_it_is_made(reader: FeatureReader) -> None:
    long = int(COMBINATIONS_MAX**0.5) + 1
    sent = {"user": Column(np.zeros(long, np.int64)), "genre": Column(np.full(long, "a", object))}
    with pytest.raises(FeatureError, match=f"'user': crossed with genre it has more than {COMBINATIONS_MAX} values"):
        reader.activation("user*genre", sent, 1)


def test_cross_of_one_value_of_each_input_reads_their_row(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).standard_normal((64, 3)).astype("<f4")
    table = TableReader(tmp_path, write_table(tmp_path, "t", stored, "float32", []))
    bag, single = crossed(), crossed(kind="single", combiner=None)
    reader = FeatureReader({"bag": bag, "single": single}, {"t": table}, {})
    genres = Column(np.array(["a", "b", "c"], object))
    some = Column(np.array([7]), np.array([0, 0, 1, 1]))
    sent = {"user": Column(np.array([4, 7, 4])), "genre": genres}
    found = reader.activation("single", {"user": some, "genre": genres}, 3)
    rows, offsets = reader.rows("single", sent, 3)
    assert offsets.tolist() == [0, 1, 2, 3]
    assert (found.values.view(np.uint32) == stored[rows].view(np.uint32)).all()
    assert (reader.activation("bag", sent, 3).values == found.values).all()
    with pytest.raises(FeatureError, match="'genre': example 1 has 2 values; one was expected"):
        reader.activation("single", {"genre": Column(genres.values, np.array([0, 1, 3]))}, 2)
    with pytest.raises(FeatureError, match="'genre': a value must be sent"):
        reader.activation("single", {"genre": Column(genres.values[:1], np.array([0, 1, 1]))}, 2)


def test_default_of_several_values_does_not_fit_a_cross_of_one_of_each(tmp_path: Path) -> None:
    table = TableReader(tmp_path, write_table(tmp_path, "t", np.ones((64, 3), "<f4"), "float32", []))
    keys = (KEYS[0], KEYS[1].model_copy(update={"default": ["a"]}))
    page = crossed(kind="single", combiner=None, ids=entries.CrossedIds(keys=keys, buckets=64))
    with pytest.raises(FormatError, match=r"\['a'\] was given; a value was expected"):
        FeatureReader({"f": page}, {"t": table}, {})

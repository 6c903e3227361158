"""Crosses and joined strings where TensorFlow has no word; those that it has are held to it in
tests/differential.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError, FormatError
from bundle.features.columns import Column
from bundle.features.ids.crosses import COMBINATIONS_MAX
from bundle.features.ids.hashing import hashes
from bundle.features.reader import FeatureReader
from bundle.format import manifest as entries
from bundle.format.graph_builder import GraphBuilder
from tests.id_graphs import computed_ids, hash_ids, vocabulary_ids
from tests.units.bundle.features.readers import STORED, column, lowered, objects, open_reader

KEYS = (
    entries.CrossKey(dtype="int64", role="context", default=4),
    entries.CrossKey(dtype="string", role="candidate"),
)
HASH = hash_ids(64, "string")


def crossed(**changes: Any) -> entries.EmbeddedFeature:
    fields = {"kind": "bag", "combiner": "sum", "ids": entries.CrossedIds(keys=KEYS, buckets=64)}
    fields |= {"table": "t", "role": "candidate", "inputs": ("user", "genre")}
    return entries.EmbeddedFeature.model_validate(fields | changes)


def joined(
    ids: entries.GraphIds = HASH, texts: tuple[str, ...] = ("", "_X_", ""), **changes: Any
) -> entries.EmbeddedFeature:
    """Returns ids of the string of texts, an integer between the first two, and another string."""
    builder = GraphBuilder("int64")
    values = [builder.texts(builder.last)]
    values += [builder.input("string", 1) for _ in texts[2:]]
    parts = [builder.constant(texts[0], "string")]
    for value, text in zip(values, texts[1:], strict=True):
        parts += [value, builder.constant(text, "string")]
    builder.compute("StringJoin", *parts, separator="")
    builder.then(ids)
    rule = entries.JoinedIds(keys=KEYS[: len(values)], ids=builder.graph())
    return crossed(**{"kind": "single", "combiner": None, "ids": rule} | changes)


@pytest.fixture
def reader(tmp_path: Path) -> FeatureReader:
    listed = vocabulary_ids("words", first_row=4)
    around = joined(texts=("100%=", ""), inputs=("user",), role="context")
    single = crossed(kind="single", combiner=None)
    features = {
        "bag": crossed(),
        "single": single,
        "joined": joined(),
        "listed": joined(listed),
        "around": around,
    }
    return open_reader(tmp_path, "7_X_a", **features)


def test_cross_of_long_bags_is_rejected_before_it_is_made(reader: FeatureReader) -> None:
    long = int(COMBINATIONS_MAX**0.5) + 1
    columns = {
        "user": Column(np.zeros(long, np.int64)),
        "genre": Column(np.full(long, "a", object)),
    }
    with pytest.raises(
        FeatureError, match=f"'user': more than {COMBINATIONS_MAX} combinations with genre"
    ):
        reader.activation("bag", columns, 1)


def test_cross_of_one_value_of_each_input_reads_their_row(reader: FeatureReader) -> None:
    genres = column("a", "b", "c")
    columns = {"user": column(4, 7, 4), "genre": genres}
    actual = reader.activation(
        "single", {"user": column(7, offsets=[0, 0, 1, 1]), "genre": genres}, 3
    )
    rows, offsets = reader.rows("single", columns, 3)
    assert offsets.tolist() == [0, 1, 2, 3]
    assert (actual.values.view(np.uint32) == STORED[rows].view(np.uint32)).all()
    assert (reader.activation("bag", columns, 3).values == actual.values).all()


def test_what_graphs_compute_of_inputs_is_crossed_in_their_place(tmp_path: Path) -> None:
    keys = (
        KEYS[0].model_copy(update={"ids": computed_ids(("FloorMod", 5))}),
        KEYS[1].model_copy(update={"ids": lowered()}),
    )
    computed = crossed(ids=entries.CrossedIds(keys=keys, buckets=64))
    reader = open_reader(tmp_path, computed=computed, plain=crossed())
    columns = {"user": column(7, -1), "genre": column("A", "b")}
    same = {"user": column(2, 4), "genre": column("a", "b")}
    assert (reader.rows("computed", columns, 2)[0] == reader.rows("plain", same, 2)[0]).all()
    with pytest.raises(FeatureError, match="'genre': 3 is an integer; a string was"):
        reader.activation("computed", {**columns, "genre": column(3, 4)}, 2)


def test_joined_values_are_one_string_with_defaults_for_missing_inputs(
    reader: FeatureReader,
) -> None:
    def rows(name: str, **columns: Column) -> Any:
        return (reader.rows(name, columns, 2)[0] % 64).tolist()

    def hashed(*texts: str) -> Any:
        return (hashes("f", objects(*texts)) % np.uint64(64)).tolist()

    assert rows("joined", user=column(7, -1), genre=column("a", "b")) == hashed("7_X_a", "-1_X_b")
    assert rows("joined", genre=column("a", "b")) == hashed("4_X_a", "4_X_b")
    assert rows("around", user=column(12, 1)) == hashed("100%=12", "100%=1")
    assert reader.rows("listed", {"user": column(7, 7), "genre": column("a", "b")}, 2)[
        0
    ].tolist() == [4, -1]
    assert reader.activation("listed", {"genre": column("a", "b")}, 2).unknown == 2


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        *((name, {}, "'genre': no value was sent") for name in ("bag", "single", "joined")),
        *(
            (name, {"genre": column(3)}, "'genre': 3 is an integer; a string was")
            for name in ("bag", "joined")
        ),
        ("joined", {"user": column("x"), "genre": column("a")}, "'user': 'x' is no integer id"),
        (
            "single",
            {"genre": column("a", "b", offsets=[0, 2])},
            "'genre': 2 values in example 0; one value was expected",
        ),
    ],
)
def test_value_that_does_not_fit_is_rejected_with_the_name_of_the_input(
    reader: FeatureReader, name: str, columns: dict[str, Column], message: str
) -> None:
    with pytest.raises(FeatureError, match=message):
        reader.activation(name, columns, 1)


def test_default_of_several_values_does_not_fit_a_cross_of_one_of_each(tmp_path: Path) -> None:
    keys = (KEYS[0], KEYS[1].model_copy(update={"default": ["a"]}))
    page = crossed(kind="single", combiner=None, ids=entries.CrossedIds(keys=keys, buckets=64))
    with pytest.raises(FormatError, match=r"\['a'\] was given; a value was expected"):
        open_reader(tmp_path, f=page)

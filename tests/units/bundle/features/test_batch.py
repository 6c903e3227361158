"""Many features at once have the bits, the counts and the errors of each alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError, UnknownRejected
from bundle.features.columns import Column
from bundle.features.reader import FeatureReader, OutputBlock
from bundle.format import manifest as entries
from bundle.tables.reader import TableReader
from tests.bundles.tables import write_table
from tests.id_graphs import hash_ids
from tests.units.bundle.features.readers import STORED, column, open_reader


def test_hashes_of_several_features_read_the_rows_of_each(tmp_path: Path) -> None:
    rules = {
        "plain": hash_ids(9),
        "shifted": hash_ids(4, first_row=20),
        "keyed": hash_ids(5, first_row=40, key=(1, 2)),
    }
    features = {
        name: entries.EmbeddedFeature(kind="single", table="t", role="context", ids=rule)
        for name, rule in rules.items()
    }
    reader = open_reader(tmp_path, **features)
    columns = {
        "plain": column("a", "b"),
        "shifted": column(5, -7),
        "keyed": column(5, -7),
    }
    activations = reader.activations(list(reader), columns, 2)
    # Buckets of tf.strings.to_hash_bucket_fast and _strong.
    rows = {"plain": [3, 1], "shifted": [20 + 3, 20 + 2], "keyed": [40 + 3, 40 + 2]}
    for name, expected in rows.items():
        assert (activations[name].values == STORED[expected]).all()


def test_write_of_several_features_fills_their_columns_from_ids_alone(tmp_path: Path) -> None:
    stored = {
        f"t{number}": np.random.default_rng(number).standard_normal((9, number + 1))
        for number in range(4)
    }
    tables = {
        name: TableReader(tmp_path, write_table(tmp_path, name, rows.astype("<f4"), "float32", [4]))
        for name, rows in stored.items()
    }
    unknown = (
        entries.Unknown(),
        entries.Unknown(rule="row", row=2),
        entries.Unknown(rule="refuse"),
        entries.Unknown(),
    )
    features = {
        f"f{number}": entries.EmbeddedFeature(
            kind="single", table=f"t{number}", role="context", unknown=unknown[number]
        )
        for number in range(4)
    }
    numbers = {"mood": entries.DenseFeature(kind="dense", role="context", shape=(2,))}
    reader = FeatureReader({**features, **numbers}, tables, {})
    columns = {
        "f0": Column(np.array([0, 8, 9])),  # 9 is past the end
        "f1": Column(np.array([-1, 8, 1])),
        "f2": Column(np.array([0, 8, 7]), np.arange(4)),
        "f3": Column(np.arange(6)[::2]),
        "mood": Column(np.arange(6, dtype=np.float32), np.arange(4) * 2),
    }
    room = np.full((3, 12), 7.0, np.float32)
    block = OutputBlock(room, (*features, "mood"), (1, 3, 6, 10, 12))
    assert reader.write([block], columns, 3) == {"f0": 1, "f1": 1}
    rows = [[0, 8, -1], [2, 8, 1], [0, 8, 7], [0, 2, 4]]
    wanted = [np.vstack([stored[f"t{n}"], np.zeros(n + 1)])[rows[n]] for n in range(4)]
    assert (room == np.hstack([*wanted, np.arange(6).reshape(3, 2)]).astype(np.float32)).all()
    assert reader.write([block], {**columns, "mood": Column(np.arange(6))}, 3) == {"f0": 1, "f1": 1}
    assert room[:, 10:].tolist() == [[0, 1], [2, 3], [4, 5]]

    with pytest.raises(FeatureError, match="'f3': 2 values for 3 examples"):
        reader.write([block], columns | {"f3": Column(np.arange(2))}, 3)
    with pytest.raises(UnknownRejected, match="id 9 is not in table 't2'"):
        reader.write([block], columns | {"f2": Column(np.array([0, 9, 3]))}, 3)
    with pytest.raises(FeatureError, match="'mood': nan is not finite"):
        reader.write([block], columns | {"mood": Column(np.full(6, np.nan, np.float32))}, 3)
    with pytest.raises(FeatureError, match=r"'mood'.*3 numbers in example 0"):
        reader.write(
            [block], columns | {"mood": Column(np.zeros(6, np.float32), np.array([0, 3, 4, 6]))}, 3
        )
    with pytest.raises(FeatureError, match=r"'f1': 0\.5 is no id"):
        reader.write([block], columns | {"f1": Column(np.full(3, 0.5))}, 3)


def test_features_of_one_input_each_apply_their_own_rule(tmp_path: Path) -> None:
    def embedded(kind: Any, **fields: Any) -> entries.EmbeddedFeature:
        return entries.EmbeddedFeature.model_validate(
            {"kind": kind, "table": "t", "role": "context", **fields}
        )

    def dense(**fields: Any) -> entries.DenseFeature:
        return entries.DenseFeature.model_validate({"kind": "dense", "role": "context", **fields})

    features: dict[str, entries.Feature] = {
        "id@deep": embedded("bag", inputs=["id"], combiner="sum", weighted=True),
        "id@wide": embedded("bag", inputs=["id"], combiner="mean"),
        "id@many": embedded("sequence", inputs=["id"], length=1),
        "id@lengths": dense(inputs=["id"], take="lengths", dtype="int64"),
        "id@share": dense(inputs=["id"], take="lengths", shape=[1]),
        "pair@values": dense(inputs=["pair"], shape=[2]),
        "pair": embedded("sequence", length=2),
    }
    reader = open_reader(tmp_path, **features)
    assert reader.inputs["id"][0] == "id@deep"
    assert reader.inputs["pair"] == ("pair", "pair@values")
    columns = {
        "id": column(4, 9, 2, offsets=[0, 2, 2, 3], weights=[2, 1, 5]),
        "pair": Column(np.arange(6)),
    }
    vectors = {
        name: activation.values
        for name, activation in reader.activations(features, columns, 3).items()
    }
    assert (vectors["id@deep"] == [2 * STORED[4] + STORED[9], 0 * STORED[0], 5 * STORED[2]]).all()
    assert (vectors["id@wide"][0] == (STORED[4] + STORED[9]) / np.float32(2)).all()
    assert (vectors["id@many"][:, 0] == [STORED[4], 0 * STORED[0], STORED[2]]).all()
    assert vectors["id@lengths"].tolist() == [2, 0, 1]
    assert vectors["id@share"].tolist() == [[2.0], [0.0], [1.0]]
    assert vectors["pair@values"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (vectors["pair"] == STORED[np.arange(6)].reshape(3, 2, 3)).all()


@pytest.mark.parametrize("many", [False, True])
def test_ids_beyond_int32_are_rejected_and_never_wrap(tmp_path: Path, many: bool) -> None:
    reject = entries.Unknown(rule="refuse")
    single = entries.EmbeddedFeature(
        kind="single", table="t", role="context", inputs=("id",), unknown=reject
    )
    names = [f"id@{number}" for number in range(40 if many else 1)]
    reader = open_reader(tmp_path, **dict.fromkeys(names, single))
    for wrapped in (1 << 32, (1 << 32) + 3, 1 << 40, -(1 << 32) + 3, -1):
        with pytest.raises(UnknownRejected, match=f"'id': id {wrapped} is not in table 't'"):
            reader.activations(names, {"id": column(3, wrapped)}, 2)

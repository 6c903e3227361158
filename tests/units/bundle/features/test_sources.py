"""Indicators, places, empty rows and small tables where TensorFlow has no word;
tests/differential has the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError, FormatError
from bundle.features.columns import Column, OutputBlock
from bundle.features.reader import FeatureReader
from bundle.format import manifest as entries
from bundle.tables.reader import TableReader
from tests.bundles.tables import write_table
from tests.id_graphs import hash_ids
from tests.units.bundle.features.readers import open_reader


def indicator(**changes: Any) -> entries.EmbeddedFeature:
    fields = {"kind": "single", "table": "", "role": "context", "indicator": 3}
    return entries.EmbeddedFeature.model_validate(fields | changes)


@pytest.fixture
def reader() -> FeatureReader:
    features = {
        "one": indicator(default=2),
        "bag": indicator(kind="bag", combiner="sum", weighted=True, empty_row=1),
        "second": indicator(inputs=("wide",), place=1, places=2, default=[0, 1]),
    }
    return FeatureReader(features, {}, {})


def test_indicator_is_1_at_the_row_of_its_id_and_zeros_of_an_unknown_one(
    reader: FeatureReader,
) -> None:
    activation = reader.activation("one", {"one": Column(np.array([1, 3, 0]))}, 3)
    assert activation.values.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert activation.unknown == 1
    assert reader.activation("one", {}, 2).values.tolist() == [[0, 0, 1]] * 2


def test_indicator_of_a_bag_adds_weights_and_of_an_empty_bag_is_its_empty_row(
    reader: FeatureReader,
) -> None:
    weights = np.array([0.5, 2, -1, 4], np.float32)
    column = Column(np.array([0, 0, 2, 9]), np.array([0, 3, 3, 4]), weights)
    assert reader.activation("bag", {"bag": column}, 3).values.tolist() == [
        [2.5, 0, -1],
        [0, 1, 0],
        [0, 1, 0],
    ]


def test_indicators_are_written_side_by_side(reader: FeatureReader) -> None:
    out = np.full((2, 7), 9, np.float32)
    columns = {"one": Column(np.array([1, 7])), "wide": Column(np.array([0, 2, 1, 0]))}
    assert reader.write([OutputBlock(out[:, :6], ("one", "second"), (3, 6))], columns, 2) == {
        "one": 1
    }
    assert out.tolist() == [[0, 1, 0, 0, 0, 1, 9], [0, 0, 0, 1, 0, 0, 9]]


def test_place_of_an_example_with_another_number_of_values_is_rejected(
    reader: FeatureReader,
) -> None:
    assert reader.activation("second", {}, 1).values.tolist() == [[0, 1, 0]]
    with pytest.raises(
        FeatureError, match="'wide': 1 values in example 1; a list of 2 was expected"
    ):
        reader.activation("second", {"wide": Column(np.array([0, 1, 2]), np.array([0, 2, 3]))}, 2)


@pytest.mark.parametrize("count", [2, 20])
def test_places_of_one_input_read_the_same_rows_as_separate_inputs(
    tmp_path: Path, count: int
) -> None:
    ids = np.random.default_rng(1).integers(-1, 66, (5, count))
    rules = [{"ids": hash_ids(64)} if position % 3 else {} for position in range(count)]
    alone = {f"f{position}": single(**rule) for position, rule in enumerate(rules)}
    wide = {
        f"f{position}": single(**rule, **at(position, count)) for position, rule in enumerate(rules)
    }
    columns = {f"f{position}": Column(ids[:, position]) for position in range(count)}
    expected = open_reader(tmp_path, **alone).activations(alone, columns, 5)
    reader = open_reader(tmp_path, **wide)
    for offsets in (None, np.arange(6) * count):
        sent_columns = {"wide": Column(ids.reshape(-1), offsets)}
        out = np.empty((5, 3 * count), np.float32)
        activations = reader.activations(wide, sent_columns, 5)
        unknown = reader.write(
            [OutputBlock(out, tuple(wide), tuple(range(3, 3 * count + 1, 3)))], sent_columns, 5
        )
        for number, name in enumerate(wide):
            assert (activations[name].values == expected[name].values).all()
            assert (out[:, 3 * number : 3 * number + 3] == expected[name].values).all()
            assert activations[name].unknown == expected[name].unknown == unknown.get(name, 0)


def single(**fields: Any) -> entries.EmbeddedFeature:
    return entries.EmbeddedFeature.model_validate(
        {"kind": "single", "table": "t", "role": "context", **fields}
    )


def at(position: int, count: int) -> dict[str, Any]:
    return {"inputs": ("wide",), "place": position, "places": count}


def test_place_with_weights_or_a_default_of_another_size_is_rejected(reader: FeatureReader) -> None:
    weighted = Column(np.array([0, 1]), None, np.ones(2, np.float32))
    with pytest.raises(FeatureError, match="'wide': weights were sent; a list without"):
        reader.activation("second", {"wide": weighted}, 1)
    for default in (1, [1], [1, 2, 3]):
        with pytest.raises(FormatError, match=r"a list of 2 was expected"):
            FeatureReader(
                {"second": indicator(inputs=("wide",), place=1, places=2, default=default)}, {}, {}
            )


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, TableReader]:
    """Twenty small tables of width 3, five of width 2, and a large one of width 3."""
    random = np.random.default_rng(5)
    shapes = {f"t{number}": (10 + number, 3) for number in range(20)} | {
        f"w{number}": (4, 2) for number in range(5)
    }
    shapes["large"] = (1 << 15, 3)
    values = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    stored = {"t3": "bfloat16", "t4": "float16"}
    return {
        name: TableReader(
            tmp_path, write_table(tmp_path, name, array, stored.get(name, "float32"), [])
        )
        for name, array in values.items()
    }


def test_features_of_many_small_tables_read_the_same_together_as_alone(
    tables: dict[str, TableReader],
) -> None:
    random = np.random.default_rng(6)
    features: dict[str, entries.EmbeddedFeature] = {}
    columns: dict[str, Column] = {}
    for name in tables:
        unknown = entries.Unknown(rule="row", row=1) if name == "t7" else entries.Unknown()
        features[name] = entries.EmbeddedFeature(
            table=name, kind="single", role="context", unknown=unknown
        )
        columns[name] = Column(random.integers(-1, 12, 7))
        bag = f"{name}_bag"
        features[bag] = entries.EmbeddedFeature(
            table=name,
            kind="bag",
            role="context",
            combiner="mean",
            encoding="sparse",
            weighted=True,
        )
        offsets = np.concatenate([[0], np.cumsum(random.integers(0, 4, 7))])
        ids = random.integers(-1, 12, offsets[-1])
        weights = random.random(ids.size).astype(np.float32) if name in ("t1", "w1") else None
        columns[bag] = Column(ids, offsets, weights)
    reader = FeatureReader(features, tables, {})
    activations = reader.activations(features, columns, 7)
    for name in features:
        alone = reader.activation(name, columns, 7)
        np.testing.assert_array_equal(activations[name].values, alone.values, err_msg=name)
        assert activations[name].unknown == alone.unknown

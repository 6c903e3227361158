from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.features.small_tables import SideBySide, small_tables
from bundle.format.manifest import EmbeddedFeature, Unknown
from bundle.tables.reader import TableReader
from tests.conftest import write_table

FEW, N = 10, 7


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, TableReader]:
    """Twenty small tables of width 3, five of width 2, and a large one of width 3."""
    random = np.random.default_rng(5)
    shapes = {f"t{place}": (FEW + place, 3) for place in range(20)} | {f"w{place}": (4, 2) for place in range(5)}
    shapes["large"] = (1 << 15, 3)
    values = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    stored = {"t3": "bfloat16", "t4": "float16"}
    return {
        name: TableReader(tmp_path, write_table(tmp_path, name, array, stored.get(name, "float32"), []))
        for name, array in values.items()
    }


def test_small_tables_of_one_width_lie_side_by_side(tables: dict[str, TableReader]) -> None:
    homes = small_tables(tables.values())
    assert {name for name, table in tables.items() if id(table) in homes} == {f"t{place}" for place in range(20)}
    assert len({id(home.rows) for home in homes.values()}) == 1
    for name in ("t0", "t3", "t4", "t19"):
        home, rows = homes[id(tables[name])], np.array([0, 5, 9])
        assert isinstance(home.rows, SideBySide)
        np.testing.assert_array_equal(home.rows.take(home.first + rows), tables[name].take(rows))


def test_features_of_many_small_tables_read_what_each_reads_alone(tables: dict[str, TableReader]) -> None:
    random = np.random.default_rng(6)
    features: dict[str, EmbeddedFeature] = {}
    columns: dict[str, Column] = {}
    for name in tables:
        unknown = Unknown(rule="row", row=1) if name == "t7" else Unknown()
        features[name] = EmbeddedFeature(table=name, kind="single", role="context", unknown=unknown)
        columns[name] = Column(random.integers(-1, 12, N))
        bag = f"{name}_bag"
        features[bag] = EmbeddedFeature(
            table=name, kind="bag", role="context", combiner="mean", encoding="sparse", weighted=True
        )
        offsets = np.concatenate([[0], np.cumsum(random.integers(0, 4, N))])
        ids = random.integers(-1, 12, offsets[-1])
        weights = random.random(ids.size).astype(np.float32) if name in ("t1", "w1") else None
        columns[bag] = Column(ids, offsets, weights)
    reader = FeatureReader(features, tables, {})
    found = reader.activations(features, columns, N)
    for name in features:
        alone = reader.activation(name, columns, N)
        np.testing.assert_array_equal(found[name].values, alone.values, err_msg=name)
        assert found[name].unknown == alone.unknown

"""Features over tables whose rows are fetched: what they read where the table is here, and lost
rows as unknown ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.errors import RowUnavailable
from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.features.sources import FetchedRows, RemoteRows, RemoteTable
from bundle.format.manifest import EmbeddedFeature, Unknown
from bundle.tables.reader import TableReader
from tests.bundles.tables import write_table
from tests.units.bundle.features.readers import STORED

Rows = NDArray[np.int64]
ROWS, DIM = STORED.shape
ELSEWHERE = Unknown(rule="row", row=5)
FEATURES: dict[str, EmbeddedFeature] = {
    "single": EmbeddedFeature(kind="single", table="t", role="context", unknown=ELSEWHERE),
    "zeros": EmbeddedFeature(kind="single", table="t", role="context"),
    "rejecting": EmbeddedFeature(
        kind="single", table="t", role="context", unknown=Unknown(rule="refuse")
    ),
    "mean": EmbeddedFeature(
        kind="bag", table="t", role="context", combiner="mean", unknown=ELSEWHERE, empty_row=7
    ),
    "sum": EmbeddedFeature(kind="bag", table="u", role="context", combiner="sum", weighted=True),
    "sequence": EmbeddedFeature(kind="sequence", table="u", role="context", length=3, filler_row=2),
}
IDS = st.integers(-2, ROWS + 2)
BAGS = st.lists(st.lists(IDS, max_size=5), min_size=2, max_size=2)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TableReader]:
    root = tmp_path_factory.mktemp("tables")
    return {
        name: TableReader(root, write_table(root, name, STORED, "float32", [20]))
        for name in ("t", "u")
    }


def fetched(
    tables: Mapping[str, TableReader],
    wanted: Mapping[str, Rows],
    without: frozenset[int] = frozenset(),
) -> dict[str, FetchedRows]:
    """Rows of two tables that lie end to end, but for lost ones."""
    fetched_rows = {}
    for layout, rows in wanted.items():
        lost = np.array([row % ROWS in without for row in rows.tolist()], bool)
        vectors = np.concatenate(
            [tables["t"].gather(rows[rows < ROWS]), tables["u"].gather(rows[rows >= ROWS] - ROWS)]
        )
        vectors[lost] = 0
        fetched_rows[layout] = FetchedRows(rows, vectors, lost if lost.any() else None)
    return fetched_rows


def remote() -> FeatureReader:
    among = RemoteRows("float32", DIM)
    return FeatureReader(
        FEATURES,
        {
            "t": RemoteTable(ROWS, among, replaces_lost=True),
            "u": RemoteTable(ROWS, among, ROWS, replaces_lost=True),
        },
        {},
    )


def bag(values: list[list[int]], weights: bool = False) -> Column:
    flat = [value for bag in values for value in bag]
    offsets = np.cumsum([0, *map(len, values)])
    return Column(
        np.array(flat, np.int64),
        offsets,
        np.linspace(-1, 2, len(flat), dtype="f4") if weights else None,
    )


def sent(singles: list[int], bags: list[list[int]]) -> dict[str, Column]:
    column = Column(np.array(singles))
    known_ids = Column(np.array(singles).clip(0, ROWS - 1))
    return {
        **dict.fromkeys(("single", "zeros"), column),
        "rejecting": known_ids,
        "mean": bag(bags),
        "sum": bag(bags, weights=True),
        "sequence": bag(bags),
    }


@given(singles=st.lists(IDS, min_size=2, max_size=2), bags=BAGS)
def test_fetched_rows_give_the_bits_of_mapped_ones(
    tables: dict[str, TableReader], singles: list[int], bags: list[list[int]]
) -> None:
    columns = sent(singles, bags)
    reader = remote()
    here = FeatureReader(FEATURES, tables, {}).activations(FEATURES, columns, 2)
    wanted = reader.remote_rows(FEATURES, columns, 2)
    expected = reader.activations(FEATURES, columns, 2, fetched(tables, wanted))
    for name in FEATURES:
        assert expected[name].values.tobytes() == here[name].values.tobytes(), name
        assert expected[name].unknown == here[name].unknown
    for rows in wanted.values():
        assert (np.diff(rows) > 0).all(), "each row is wanted once"
        assert rows.size == 0 or 0 <= rows[0] <= rows[-1] < 2 * ROWS


@given(
    singles=st.lists(IDS, min_size=2, max_size=2),
    bags=BAGS,
    lost=st.frozensets(st.integers(8, ROWS - 1)),
)
def test_lost_rows_are_read_as_those_of_unknown_ids(
    tables: dict[str, TableReader], singles: list[int], bags: list[list[int]], lost: frozenset[int]
) -> None:
    def without(value: Any) -> Any:
        if isinstance(value, list):
            return [without(element) for element in value]
        return -9 if value in lost else value

    names = [name for name in FEATURES if name != "rejecting"]
    columns = sent(singles, bags)
    reader = remote()
    activations = reader.activations(
        names, columns, 2, fetched(tables, reader.remote_rows(names, columns, 2), lost)
    )
    expected = FeatureReader(FEATURES, tables, {}).activations(
        names, sent(without(singles), without(bags)), 2
    )
    for name in names:
        assert activations[name].values.tobytes() == expected[name].values.tobytes(), name


def test_lost_rows_of_a_feature_that_rejects_unknown_ids_are_unavailable(
    tables: dict[str, TableReader],
) -> None:
    columns = {"rejecting": Column(np.array([3, 40]))}
    reader = remote()
    rows = fetched(tables, reader.remote_rows(["rejecting"], columns, 2), frozenset({40}))
    with pytest.raises(RowUnavailable, match="id 40 is unavailable"):
        reader.activations(["rejecting"], columns, 2, rows)


def test_arrays_of_towers_are_filled_from_fetched_rows(
    tables: dict[str, TableReader], tmp_path: Path
) -> None:
    from bundle.features.columns import OutputBlock

    array = np.empty((2, 2 * DIM), np.float32)
    blocks = [OutputBlock(array, ("single", "zeros"), (DIM, 2 * DIM))]
    columns = sent([3, -1], [[], []])
    reader = remote()
    rows = fetched(tables, reader.remote_rows(["single", "zeros"], columns, 2))
    unknown = reader.write(blocks, columns, 2, rows)
    assert unknown == {"single": 1, "zeros": 1}
    assert array.tolist() == [[*STORED[3], *STORED[3]], [*STORED[5], *np.zeros(DIM)]]

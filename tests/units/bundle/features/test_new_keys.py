"""A view with new keys reads, bit for bit, what a reader over files with these keys reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.errors import RowOutOfRange, UnknownRejected
from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.features.sources import FetchedRows, RemoteTable, remote_tables
from bundle.format import manifest as entries
from bundle.tables import new_keys as new_keys_module
from bundle.tables.changed_rows import ChangedRows, rounded
from bundle.tables.key_index import KeyIndex, KeyIndexWriter
from bundle.tables.new_keys import NewKeys
from bundle.tables.reader import TableReader
from tests.bundles.tables import write_floats

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]
VectorsByKey = Mapping[str, Mapping[int, Vectors]]
"""The vectors of each table, in the order of its rows."""
ROWS = 5
DIM = 4
N = 6
KEYS = np.array([7, 0, -3, 2**62, 11])
NEW = (1, 5, 12, 2**63 - 1)
PADDING = 9
DTYPES = ("float32", "float16", "bfloat16", "int8")
SMALL = tuple(f"small{number}" for number in range(16))
"""Enough of them to lie side by side."""
TABLES = (*DTYPES, *SMALL)
DTYPE_OF = {**dict.fromkeys(SMALL, "float32"), **dict(zip(DTYPES, DTYPES, strict=True))}
DIM_OF = {**dict.fromkeys(SMALL, 3), **dict.fromkeys(DTYPES, DIM)}
STATES = st.lists(
    st.tuples(
        st.sampled_from((*DTYPES, *SMALL[6:8])),
        st.lists(st.sampled_from((*KEYS.tolist(), *NEW)), min_size=1, max_size=4, unique=True),
    ),
    min_size=1,
    max_size=5,
)
"""The table that changes next, and the keys whose vectors are set."""


def feature(table: str, kind: Any = "single", **fields: Any) -> entries.EmbeddedFeature:
    return entries.EmbeddedFeature.model_validate(
        {
            "kind": kind,
            "table": table,
            "role": "context",
            "ids": {"kind": "keyed", "keys": table},
            "inputs": [f"{kind}_input"],
            **fields,
        }
    )


def features() -> dict[str, entries.Feature]:
    entry_by_name: dict[str, entries.Feature] = {}
    for table in TABLES:
        entry_by_name |= {
            f"{table}_plain": feature(table),
            f"{table}_row": feature(table, unknown={"rule": "row", "row": 2}),
            f"{table}_bag": feature(
                table, "bag", combiner="sqrtn", weighted=True, encoding="sparse", empty_row=1
            ),
            f"{table}_sequence": feature(table, "sequence", length=3, padding=PADDING),
        }
    return entry_by_name


FEATURES = features()


def columns_of(seed: int) -> dict[str, Column]:
    random = np.random.default_rng(seed)
    any_key = np.array([*KEYS, *NEW, PADDING, 77])
    lengths = random.integers(0, 5, N)
    offsets = np.append(0, lengths.cumsum())
    weights = random.choice([-1, 0.3, 2], lengths.sum()).astype(np.float32)
    return {
        "single_input": Column(random.choice(any_key, N)),
        "bag_input": Column(random.choice(any_key, lengths.sum()), offsets, weights),
        "sequence_input": Column(random.choice(any_key, lengths.sum()), offsets),
    }


class Files:
    """Readers over files that hold vectors by key."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0

    def readers(self, vectors: VectorsByKey) -> tuple[FeatureReader, RemoteReader]:
        """Returns a reader of the files, and one whose tables other processes hold."""
        stored = {}
        tables = {}
        keys = {}
        for name, by_key in vectors.items():
            self._count += 1
            root = self._root / str(self._count)
            rows = np.array(list(by_key.values()), np.float32)
            stored[name] = write_floats(root, name, rows, DTYPE_OF[name], [3])
            tables[name] = TableReader(root, stored[name])
            with KeyIndexWriter(root / "keys") as writer:
                writer.append(np.array(list(by_key)))
                keys[name] = KeyIndex(root / "keys", writer.finish())
        remote = remote_tables(stored)
        remote_reader = RemoteReader(FeatureReader(FEATURES, remote, {}, keys), remote)
        return FeatureReader(FEATURES, tables, {}, keys), remote_reader

    def reader(self, vectors: VectorsByKey) -> FeatureReader:
        reader, _ = self.readers(vectors)
        return reader


class RemoteReader(NamedTuple):
    """Reads tables that other processes hold.

    Attributes:
      features: The reader.
      tables: The tables.
    """

    features: FeatureReader
    tables: Mapping[str, RemoteTable]

    def activations(
        self, keys: Mapping[str, NewKeys], columns: Mapping[str, Column], vectors: VectorsByKey
    ) -> Any:
        """Returns what features read in a state with new keys, of which the other processes have
        vectors.
        """
        view = self.features.with_changes({}, keys)
        wanted = view.remote_rows(FEATURES, columns, N)
        fetched = {layout: self._fetched(layout, rows, vectors) for layout, rows in wanted.items()}
        return view.activations(FEATURES, columns, N, fetched)

    def _fetched(self, layout: str, rows: Rows, vectors: VectorsByKey) -> FetchedRows:
        tables = {name: table for name, table in self.tables.items() if table.among.name == layout}
        (dim,) = {table.dim for table in tables.values()}
        fetched = np.full((rows.size, dim), np.nan, np.float32)
        for name, table in tables.items():
            stored = rounded(np.array(list(vectors[name].values())), DTYPE_OF[name])
            own_rows = rows - table.first
            is_own = (own_rows >= 0) & (own_rows < len(stored))
            fetched[is_own] = stored[own_rows[is_own]]
        return FetchedRows(rows, fetched)


def first_vectors() -> dict[str, dict[int, Vectors]]:
    random = np.random.default_rng(3)
    return {
        name: {
            key: random.standard_normal(DIM_OF[name]).astype(np.float32) for key in KEYS.tolist()
        }
        for name in TABLES
    }


class State:
    """What is changed, as a reader takes it."""

    def __init__(self) -> None:
        self.rows: dict[str, ChangedRows] = {}
        self.keys: dict[str, NewKeys] = {}

    def change(self, table: str, keys: Sequence[int], vectors: Vectors) -> None:
        changed_keys = np.array(keys)
        new_keys = self.keys.get(table, NewKeys.none(ROWS))
        is_stored = np.isin(changed_keys, KEYS)
        is_new = ~is_stored & (new_keys.find(changed_keys) < 0)
        new_keys = new_keys.with_keys(changed_keys[is_new])
        rows = new_keys.find(changed_keys)
        rows[is_stored] = [KEYS.tolist().index(key) for key in changed_keys[is_stored].tolist()]
        changed = self.rows.get(table, ChangedRows.none(vectors.shape[1]))
        self.rows[table] = changed.with_rows(rows, vectors)
        self.keys[table] = new_keys


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@settings(max_examples=settings().max_examples // 16)
@given(states=STATES, seed=st.integers(0, 999))
def test_views_with_new_keys_read_as_readers_over_files_that_have_them(
    files: Files, states: list[tuple[str, list[int]]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    vectors = first_vectors()
    reader, remote_reader = files.readers(vectors)
    before = reader.activations(FEATURES, columns_of(seed), N)
    state = State()
    views = []
    for table, keys in states:
        new = random.standard_normal((len(keys), len(vectors[table][7]))).astype(np.float32)
        dtype = DTYPE_OF[table]
        state.change(table, keys, rounded(new, dtype))
        vectors[table] |= dict(zip(keys, new, strict=True))
        views.append(reader.with_changes(state.rows, state.keys))

    columns = columns_of(seed)
    expected = files.reader(vectors)
    assert_equal(views[-1].activations(FEATURES, columns, N), expected, columns)
    assert_equal(remote_reader.activations(state.keys, columns, vectors), expected, columns)
    assert_equal(before, files.reader(first_vectors()), columns)
    for name in ("float32_plain", "small7_sequence"):
        view_rows, _ = views[-1].rows(name, columns, N)
        rows, _ = expected.rows(name, columns, N)
        assert ((view_rows >= 0) == (rows >= 0)).all()


def assert_equal(activations: Any, expected: FeatureReader, columns: Mapping[str, Column]) -> None:
    for name, activation in expected.activations(FEATURES, columns, N).items():
        assert activations[name].unknown == activation.unknown
        values = np.ascontiguousarray(activations[name].values).view(np.uint32)
        np.testing.assert_array_equal(values, activation.values.view(np.uint32), err_msg=name)


def test_a_feature_that_rejects_unknown_ids_takes_a_key_from_the_state_that_has_it(
    tmp_path: Path,
) -> None:
    with KeyIndexWriter(tmp_path / "k") as writer:
        writer.append(KEYS)
        keys = {"k": KeyIndex(tmp_path / "k", writer.finish())}
    ones = np.ones((ROWS, DIM), np.float32)
    table = TableReader(tmp_path, write_floats(tmp_path, "t", ones, "float32", [3]))
    entry = feature("t", ids={"kind": "keyed", "keys": "k"}, unknown={"rule": "refuse"})
    reader = FeatureReader({"f": entry}, {"t": table}, {}, keys)
    state = State()
    state.change("t", [5], np.full((1, DIM), 2, np.float32))
    view = reader.with_changes({"t": state.rows["t"]}, {"t": state.keys["t"]})
    for ids in (np.array([5]), np.array(["5"], object)):
        with pytest.raises(UnknownRejected, match="id 5 is not in table"):
            reader.activations(["f"], {"single_input": Column(ids)}, 1)
        vectors = view.activations(["f"], {"single_input": Column(ids)}, 1)["f"].values
        assert vectors.tolist() == [[2.0] * DIM]
    with pytest.raises(RowOutOfRange, match="row 5 of table 't' was changed; the table has 5 rows"):
        reader.with_changes({"t": state.rows["t"]})
    with pytest.raises(ValueError, match="table 't' takes no keys from row 4"):
        reader.with_changes({}, {"t": NewKeys.none(4)})


def test_tables_take_new_keys_by_the_one_index_that_leads_to_them_alone(tmp_path: Path) -> None:
    with KeyIndexWriter(tmp_path / "k") as writer:
        writer.append(KEYS)
        index = KeyIndex(tmp_path / "k", writer.finish())
    ones = np.ones((ROWS, DIM), np.float32)
    table = TableReader(tmp_path, write_floats(tmp_path, "t", ones, "float32", [3]))
    indexes_by_table = {
        "own": ["a", "a"],
        "two": ["b", "c"],
        "shared": ["d"],
        "sharing": ["d"],
    }
    entry_by_name = {
        f"{name}_{number}": feature(name, ids={"kind": "keyed", "keys": keys})
        for name, indexes in indexes_by_table.items()
        for number, keys in enumerate(indexes)
    }
    tables = dict.fromkeys(indexes_by_table, table)
    reader = FeatureReader(entry_by_name, tables, {}, dict.fromkeys("abcd", index))
    assert reader.growing_tables == {"own": "a"}


@given(batches=st.lists(st.lists(st.integers(0, 60), unique=True, max_size=9), max_size=12))
def test_keys_have_the_rows_of_their_order_however_they_are_sorted(
    batches: list[list[int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_keys_module, "_RECENT_MAX", 7)
        keys = NewKeys.none(100)
        expected: dict[int, int] = {}
        for batch in batches:
            further = [key for key in batch if key not in expected]
            keys = keys.with_keys(np.array(further, np.int64))
            for key in further:
                expected[key] = 100 + len(expected)
        every = np.arange(-1, 62)
        assert keys.find(every).tolist() == [expected.get(key, -1) for key in every.tolist()]
        assert (keys.count, keys.end_row) == (len(expected), 100 + len(expected))

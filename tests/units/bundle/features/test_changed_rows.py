"""A view with changed rows reads, bit for bit, what a reader over files with the new rows reads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.errors import FeatureError, RowOutOfRange
from bundle.features.columns import Column, OutputBlock
from bundle.features.reader import FeatureReader
from bundle.features.sources import RemoteRows, RemoteTable
from bundle.format import manifest as entries
from bundle.tables.changed_rows import ChangedRows, rounded
from bundle.tables.key_index import KeyIndex, KeyIndexWriter
from bundle.tables.reader import TableReader
from tests.bundles.tables import write_floats
from tests.id_graphs import computed_ids, hash_ids

Vectors = NDArray[np.float32]
States = list[dict[str, list[int]]]
ROWS = 9
N = 5
WIDE = ("float32", "float16", "bfloat16", "int8")
"""Tables that are too few of one width to lie side by side; named as their dtypes."""
SMALL = tuple(f"small{number}" for number in range(16))
KEYS = np.arange(ROWS) * 11 - 30
ANY_ROWS = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=5)
STATES = st.lists(
    st.dictionaries(st.sampled_from((*WIDE, *SMALL)), ANY_ROWS, max_size=8), min_size=1, max_size=3
)
"""The rows that change next in each table."""


def embedded(table: str, kind: Any = "single", **fields: Any) -> entries.EmbeddedFeature:
    default = 3 if kind == "single" else [1, 3]
    return entries.EmbeddedFeature.model_validate(
        {"kind": kind, "table": table, "role": "context", "default": default, **fields}
    )


def features() -> dict[str, entries.Feature]:
    """Features of every kind: of each wide table, and of small ones that lie side by side."""
    entry_by_name: dict[str, entries.Feature] = {
        "number": entries.DenseFeature(kind="dense", role="context", default=0.5),
        "keyed": embedded(
            "float32",
            ids=entries.KeyedIds(keys="k"),
            default=int(KEYS[2]),
            unknown={"rule": "row", "row": 4},
        ),
        "shifted": embedded("float16", ids=computed_ids(("AddV2", -3)), from_end=True),
    }
    for table in WIDE:
        entry_by_name |= {
            f"{table}_plain": embedded(table, unknown={"rule": "row", "row": 2}),
            f"{table}_hashed": embedded(table, ids=hash_ids(ROWS + 3)),
            f"{table}_bag": embedded(table, "bag", combiner="mean"),
            f"{table}_clipped": embedded(table, "bag", combiner="sqrtn", max_norm=0.7),
            f"{table}_filled": embedded(table, "sequence", length=3, filler_row=5),
            f"{table}_cut": embedded(table, "sequence", length=2),
        }
        for combiner in ("sum", "mean", "sqrtn"):
            entry_by_name[f"{table}_{combiner}"] = embedded(
                table, "bag", combiner=combiner, weighted=True, encoding="sparse", empty_row=6
            )
    for number, table in enumerate(SMALL):
        entry_by_name[f"{table}_plain"] = embedded(table, unknown={"rule": "row", "row": 1})
        entry_by_name[f"{table}_bag"] = embedded(table, "bag", combiner="sum", weighted=number < 8)
        if number < 4:
            entry_by_name[f"{table}_filled"] = embedded(
                table, "sequence", length=2, filler_row=number
            )
            entry_by_name[f"{table}_emptied"] = embedded(
                table, "bag", combiner="mean", empty_row=number
            )
    return entry_by_name


FEATURES = features()
TABLE_OF = {
    name: feature.table
    for name, feature in FEATURES.items()
    if isinstance(feature, entries.EmbeddedFeature)
}


def columns_of(seed: int) -> dict[str, Column]:
    """Returns ids of all features, known and unknown ones, in lists of any length."""
    random = np.random.default_rng(seed)
    columns = {"number": Column(random.random(N).astype(np.float32))}
    for name, feature in FEATURES.items():
        if name == "keyed":
            columns[name] = Column(random.choice([*KEYS, 5], N))
        elif feature.kind == "single":
            columns[name] = Column(random.integers(-1, ROWS + 1, N))
        elif feature.kind != "dense":
            lengths = random.integers(0, 4, N)
            count = int(lengths.sum())
            # Some features read nothing but rows of their table, which compiled code takes.
            lowest, highest = random.choice([[0, ROWS], [-1, ROWS + 1]])
            ids = random.integers(lowest, highest, count)
            weights = None
            if feature.weighted and random.random() < 0.7:
                weights = random.choice([-1, 0, 0.3, 2], count).astype(np.float32)
            columns[name] = Column(ids, np.append(0, lengths.cumsum()), weights)
    return columns


def first_vectors(table: str) -> Vectors:
    dim = 4 if table in WIDE else 3
    number = (*WIDE, *SMALL).index(table)
    return np.random.default_rng(number).standard_normal((ROWS, dim)).astype(np.float32)


def written(root: Path, table: str, vectors: Vectors, compiled: bool = True) -> TableReader:
    dtype = table if table in WIDE else "float32"
    return TableReader(root, write_floats(root, table, vectors, dtype, [4]), compiled)


class Files:
    """Readers over files that hold the vectors of a state; a table is written once."""

    def __init__(self, root: Path) -> None:
        self.vectors = {table: first_vectors(table) for table in (*WIDE, *SMALL)}
        self._root = root
        with KeyIndexWriter(root / "k") as writer:
            writer.append(KEYS)
            size = writer.finish()
        self._keys = {"k": KeyIndex(root / "k", size)}
        self._tables: dict[tuple[str, bytes, bool], TableReader] = {}

    def reader(self, vectors: Mapping[str, Vectors], compiled: bool = True) -> FeatureReader:
        tables = {}
        for name, rows in vectors.items():
            key = (name, rows.tobytes(), compiled)
            if key not in self._tables:
                root = self._root / str(len(self._tables))
                self._tables[key] = written(root, name, rows, compiled)
            tables[name] = self._tables[key]
        return FeatureReader(FEATURES, tables, {}, self._keys)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


def assert_reads_as(view: FeatureReader, expected: FeatureReader, seed: int) -> None:
    """Compares all reads of N examples, and of one, with those of a reader over other files."""
    columns = columns_of(seed)
    names = tuple(FEATURES)
    random = np.random.default_rng(seed)
    for n, sent_columns in ((N, columns), (1, {}), (N, some_of(columns, random))):
        found_by_name = view.activations(names, sent_columns, n)
        expected_by_name = expected.activations(names, sent_columns, n)
        for name, activation in expected_by_name.items():
            assert found_by_name[name].unknown == activation.unknown
            assert_same_bits(found_by_name[name].values, activation.values, name)

        widths = [expected_by_name[name].values[0].size for name in names]
        ends = tuple(np.cumsum(widths).tolist())
        actual = np.zeros((n, ends[-1]), np.float32)
        array = np.zeros((n, ends[-1]), np.float32)
        for _ in range(2):  # what is kept of the first call serves the second one
            unknown = view.write([OutputBlock(actual, names, ends)], sent_columns, n)
            assert unknown == expected.write([OutputBlock(array, names, ends)], sent_columns, n)
            assert_same_bits(actual, array, "write")


def some_of(columns: Mapping[str, Column], random: np.random.Generator) -> dict[str, Column]:
    return {name: column for name, column in columns.items() if random.random() < 0.6}


def assert_same_bits(actual: NDArray[Any], expected: NDArray[Any], name: str) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(
        np.ascontiguousarray(actual).view(np.uint32),
        np.ascontiguousarray(expected).view(np.uint32),
        err_msg=name,
    )


@settings(max_examples=settings().max_examples // 16)
@given(states=STATES, starts_anew=st.booleans(), seed=st.integers(0, 999))
@pytest.mark.parametrize("compiled", [True, False])
def test_views_of_a_history_read_as_readers_over_rewritten_files(
    files: Files, compiled: bool, states: States, starts_anew: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    reader = files.reader(files.vectors, compiled)
    view = reader
    views = [reader]
    vectors = dict(files.vectors)
    vectors_of_views = [vectors]
    changed = dict[str, ChangedRows]()
    for rows_by_table in states:
        vectors = dict(vectors)
        for table, rows in rows_by_table.items():
            dim = vectors[table].shape[1]
            new = (random.standard_normal((len(rows), dim)) * 3).astype(np.float32)
            vectors[table] = vectors[table].copy()
            for row, vector in zip(rows, new, strict=True):
                vectors[table][row] = vector
            dtype = table if table in WIDE else "float32"
            before = changed.get(table, ChangedRows.none(dim))
            changed[table] = before.with_rows(np.array(rows), rounded(new, dtype))
        view = (reader if starts_anew else view).with_changes(changed)
        views.append(view)
        vectors_of_views.append(vectors)
    views.append(view.with_changes({}))
    vectors_of_views.append(files.vectors)

    # In no order, since states share what they merge.
    for number in random.permutation(len(views)).tolist():
        expected = files.reader(vectors_of_views[number])
        assert_reads_as(views[number], expected, seed)
        for table in ("float16", SMALL[3]):
            read = random.integers(-1, ROWS, 7)
            actual = views[number].take(table, read)
            assert_same_bits(actual, expected.take(table, read), table)


def test_row_that_is_not_finite_is_found_where_it_changed(files: Files) -> None:
    vectors = {table: first_vectors(table) for table in (*WIDE, *SMALL)}
    vectors["float32"][1, 1] = np.nan
    names = ["float32_plain", "small3_plain"]
    columns = {name: Column(np.array([1, 2])) for name in names}
    reader = files.reader(vectors)
    changed = {
        "float32": ChangedRows.none(4).with_rows(np.array([1]), np.ones((1, 4), np.float32)),
        "small3": ChangedRows.none(3).with_rows(np.array([2]), np.full((1, 3), np.inf, np.float32)),
    }
    view = reader.with_changes(changed)
    (lost,) = reader.rows_not_finite(names, columns, 2)
    assert (lost.feature, lost.table, lost.id, lost.example) == (names[0], "float32", 1, 0)
    (lost,) = view.rows_not_finite(names, columns, 2)
    assert (lost.feature, lost.table, lost.id, lost.example) == (names[1], "small3", 2, 1)


def test_rows_of_small_tables_return_to_the_files_in_a_state_that_does_not_change_them(
    files: Files,
) -> None:
    reader = files.reader(files.vectors)
    names = [f"{table}_plain" for table in SMALL[:2]]
    columns = {name: Column(np.array([1, 2])) for name in names}
    new = np.ones((1, 3), np.float32)
    first = ChangedRows.none(3).with_rows(np.array([1]), new)
    second = first.with_rows(np.array([2]), 2 * new)
    stored = [files.vectors[table][1:3] for table in SMALL[:2]]
    later = [np.concatenate([new, 2 * new]), np.concatenate([new, stored[1][1:]])]
    earlier = [np.concatenate([new, stored[0][1:]]), stored[1]]
    for changed, expected in (
        ({SMALL[0]: second, SMALL[1]: first}, later),
        ({SMALL[0]: first}, earlier),
        ({SMALL[0]: second, SMALL[1]: first}, later),
        ({SMALL[0]: first, SMALL[1]: first}, [earlier[0], later[1]]),
    ):
        activations = reader.with_changes(changed).activations(names, columns, 2)
        for name, vectors in zip(names, expected, strict=True):
            assert_same_bits(activations[name].values, vectors, name)


def test_default_of_a_feature_is_read_of_the_row_as_it_is_now(files: Files) -> None:
    reader = files.reader(files.vectors)
    block = OutputBlock(np.zeros((1, 4), np.float32), ("float32_plain",), (4,))
    reader.write([block], {}, 1)
    assert (block.array[0] == files.vectors["float32"][3]).all()
    changed = ChangedRows.none(4)
    for value in (1, 2):  # the second change is of the same table
        changed = changed.with_rows(np.array([3]), np.full((1, 4), value, np.float32))
        reader.with_changes({"float32": changed}).write([block], {}, 1)
        assert (block.array == value).all()
    reader.write([block], {}, 1)
    assert (block.array[0] == files.vectors["float32"][3]).all()


def test_views_take_no_memory_of_their_own(files: Files) -> None:
    columns = columns_of(0)
    view = files.reader(files.vectors)
    block = OutputBlock(
        np.zeros((N, 3 * 16), np.float32),
        tuple(f"{table}_plain" for table in SMALL),
        tuple(range(3, 49, 3)),
    )
    changed = {
        table: ChangedRows.none(3).with_rows(np.arange(ROWS), first_vectors(table))
        for table in SMALL
    }
    views = [view.with_changes(changed)]
    views[0].write([block], columns, N)
    tracemalloc.start()
    for number in range(100):
        row = np.array([number % ROWS])
        table = SMALL[number % 16]
        changed[table] = changed[table].with_rows(row, np.ones((1, 3), np.float32))
        views.append(views[-1].with_changes(changed))
        views[-1].write([block], columns, N)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes / 100 < 8_000  # the row numbers of 144 rows, and the view


def test_changes_that_do_not_fit_their_table_are_rejected(files: Files) -> None:
    changed = ChangedRows.none(4).with_rows(np.array([ROWS]), np.ones((1, 4), np.float32))
    reader = files.reader(files.vectors)
    with pytest.raises(RowOutOfRange, match=r"row 9 of table 'float32' .* 9 rows, 0 to 8"):
        reader.with_changes({"float32": changed})
    with pytest.raises(ValueError, match="vectors of 4 values for table 'small0'; 3 were"):
        reader.with_changes({"small0": changed})
    with pytest.raises(ValueError, match="table 'absent' is not here; one of float32, "):
        reader.with_changes({"absent": changed})
    remote = RemoteTable(20, RemoteRows("float32[4]", 4))
    reader = FeatureReader({"f": embedded("t", default=None)}, {"t": remote}, {})
    with pytest.raises(ValueError, match="table 't' is not here"):
        reader.with_changes({"t": changed})


def test_view_is_closed_with_its_reader(tmp_path: Path) -> None:
    columns = columns_of(0)
    changed = ChangedRows.none(4).with_rows(np.array([0]), np.ones((1, 4), np.float32))
    files = Files(tmp_path)
    reader = files.reader(files.vectors)
    view = reader.with_changes({"float32": changed})
    block = OutputBlock(np.zeros((N, 4), np.float32), ("float16_plain",), (4,))
    view.write([block], columns, N)
    reader.close()
    with pytest.raises(RowOutOfRange, match="closed"):
        view.write([block], columns, N)
    with pytest.raises(FeatureError, match="no such feature"):
        view.activation("absent", columns, N)

"""Candidates are read as they were written, in whatever batches, after any history of changes, and
by any filter of an attribute.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format import manifest
from bundle.format.manifest import Corpus
from bundle.stores import writer as store_writer
from bundle.stores.attribute_index import ANY_VALUE, AttributeIndex, Bounds, write_attribute_index
from bundle.stores.overlay import ChangedAttributeIndex, StoreOverlay, StoreSnapshot
from bundle.stores.reader import CandidateStore
from bundle.stores.writer import StoreWriter, write_store
from bundle.tables.position_sets import PositionSet
from bundle.tables.segments import RowRange
from tests.units.bundle.features.readers import objects

Row = Mapping[str, Any]
Store = CandidateStore | StoreSnapshot

TYPES = {
    "feature:movie": pa.int64(),
    "feature:age": pa.float32(),
    "feature:name": pa.large_string(),
    "feature:grid": pa.list_(pa.float32(), 2),
    "feature:genres": pa.large_list(pa.large_string()),
    "feature:tags": pa.large_list(pa.int64()),
    "weights:tags": pa.large_list(pa.float32()),
    "attribute:year": pa.int64(),
    "attribute:score": pa.float64(),
    "attribute:title": pa.large_string(),
    "attribute:seen": pa.bool_(),
    "attribute:words": pa.large_list(pa.large_string()),
}
POOLS: dict[str, list[Any]] = {
    "feature:movie": [1, 2, -3],
    "feature:age": [0.5, -1.5],
    "feature:name": ["", "é", "b"],
    "feature:grid": [[1.0, 2.0], [3.0, 4.0]],
    "feature:genres": [["a", "b"], [], ["b"]],
    "attribute:year": [1999, None, 2001, 2001, 1 << 60],
    "attribute:score": [0.5, None, -2.0],
    "attribute:title": ["T", None, "U", "V"],
    "attribute:seen": [True, None, False],
    "attribute:words": [["a", "b", "a"], [], None, ["c"]],
}
ATTRIBUTES = [name.removeprefix("attribute:") for name in TYPES if name.startswith("attribute:")]
NUMBERS = ["year", "score", "seen"]
FEATURES = [name.removeprefix("feature:") for name in TYPES if name.startswith("feature:")]
BASE = 5
IDS = {
    "int64": np.array([30, -2, 7, 1 << 62, 0, 11, 12, 13, 14], np.int64),
    "string": objects("a", "", "é", "d", "e", "f", "g", "h", "i"),
    "dense": np.arange(4, 13),
}
UNKNOWN = {
    "int64": np.array([1, -9], np.int64),
    "string": objects("A", "\ud800"),
    "dense": np.array([3, 13]),
}


def row(number: int) -> Row:
    """Returns the features and attributes of a candidate, which differ by its number."""
    values: dict[str, Any] = {}
    for name, pool in POOLS.items():
        number, index = divmod(number * 7 + 3, len(pool))
        values[name] = pool[index]
    values["feature:tags"] = list(range(number % 3))
    values["weights:tags"] = [tag + 0.5 for tag in values["feature:tags"]]
    return values


def array(rows: Sequence[Row], column: str) -> pa.Array:
    return pa.array([row[column] for row in rows], TYPES[column])


def batch(ids: NDArray[Any], rows: Sequence[Row]) -> pa.RecordBatch:
    columns = {column: array(rows, column) for column in TYPES}
    kind = pa.string() if ids.dtype == object else pa.int64()
    return pa.record_batch({"id": pa.array(ids, kind), **columns})


def column(rows: Sequence[Row], feature: str) -> Column:
    """Returns a feature as a client sends it."""
    values = [row[f"feature:{feature}"] for row in rows]
    offsets = None
    weights = None
    if feature in ("grid", "genres", "tags"):
        if feature != "grid":
            offsets = np.cumsum([0, *map(len, values)])
        if feature == "tags":
            parts = [row[f"weights:{feature}"] for row in rows]
            weights = np.array([*chain.from_iterable(parts)], np.float32)
        values = [*chain.from_iterable(values)]
    if feature in ("name", "genres"):
        return Column(objects(*values), offsets)
    dtype = np.int64 if feature in ("movie", "tags") else np.float32
    return Column(np.array(values, dtype), offsets, weights)


def written(path: Path, ids: NDArray[Any], rows: Sequence[Row], cuts: Sequence[int]) -> Corpus:
    """Writes a store, a batch up to each cut."""
    with StoreWriter(path) as writer:
        for first, end in pairwise([0, *cuts, len(rows)]):
            part = rows[first:end]
            writer.append(
                ids[first:end],
                {name: column(part, name) for name in FEATURES},
                {name: array(part, f"attribute:{name}") for name in ATTRIBUTES},
            )
        return Corpus(file="s", **vars(writer.finish()))


def changes_of(directory: Path, kind: str = "int64") -> StoreOverlay:
    rows = [row(number) for number in range(BASE)]
    corpus = written(directory / "s", IDS[kind][:BASE], rows, [2, 4])
    return StoreOverlay(CandidateStore(directory / "s", corpus), corpus)


@dataclass
class State:
    """What a store should hold.

    Attributes:
      kind: The type of the ids.
      ids: The number of the id at each position.
      rows: The candidate at each position.
      live: The position of each id.
    """

    kind: str
    ids: list[int]
    rows: list[Row]
    live: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, rows: Sequence[Row]) -> State:
        numbers = range(len(rows))
        return cls(kind, [*numbers], [*rows], {number: number for number in numbers})

    def copy(self) -> State:
        return State(self.kind, [*self.ids], [*self.rows], {**self.live})

    def add(self, number: int, values: Row) -> int:
        self.live[number] = len(self.rows)
        self.ids.append(number)
        self.rows.append(values)
        return self.live[number]


def assert_holds(store: Store, state: State) -> None:
    """Compares all that a store reads with its candidates."""
    ids = IDS[state.kind]
    assert store.size == len(state.rows)
    expected = [state.live.get(number, -1) for number in range(ids.size)]
    assert store.positions(ids).tolist() == expected
    assert store.positions(UNKNOWN[state.kind]).tolist() == [-1, -1]
    if state.kind != "string":
        assert store.positions(objects(*map(str, ids.tolist()))).tolist() == expected
    # What is ended is still there, for who has its position.
    indices = np.random.default_rng(0).integers(0, store.size, 2 * store.size)
    for positions in (np.arange(store.size), indices, indices[:1], indices[:0]):
        rows = [state.rows[position] for position in positions]
        numbers = [state.ids[position] for position in positions]
        assert store.ids(positions).tolist() == ids[numbers].tolist()
        columns = store.features(positions, FEATURES)
        assert_same_columns(columns, {name: column(rows, name) for name in FEATURES})
        attributes = {name: [row[f"attribute:{name}"] for row in rows] for name in ATTRIBUTES}
        assert store.attributes(positions, ATTRIBUTES) == attributes
        for name, numbers_read in store.numbers(positions, NUMBERS).items():
            assert numbers_read.tolist() == [float(value or 0) for value in attributes[name]]
        for name in ("year", "title", "seen"):
            codes = store.codes(positions, name).tolist()
            pairs = {*zip(codes, attributes[name], strict=True)}
            assert len(pairs) == len({*codes}) == len({*attributes[name]})
            assert all((code == -1) == (value is None) for code, value in pairs)
    for name in ("year", "score", "title", "seen"):
        values = [state.rows[position][f"attribute:{name}"] for position in state.live.values()]
        wanted = Counter(value for value in values if value is not None)
        counts = store.value_counts(name)
        actual = dict(zip(counts.values.to_pylist(), counts.counts.tolist(), strict=True))
        assert actual == wanted
        assert store.cardinality(name) == (len(wanted), values.count(None))


def assert_same_columns(actual: Mapping[str, Column], expected: Mapping[str, Column]) -> None:
    for name in FEATURES:
        for values, expected_values in zip(actual[name], expected[name], strict=True):
            np.testing.assert_array_equal(values, expected_values, strict=values is not None)


@pytest.mark.parametrize("kind", IDS)
@settings(max_examples=settings().max_examples // 5)
@given(numbers=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=9), data=st.data())
def test_a_store_written_in_any_batches_reads_back(
    tmp_path_factory: pytest.TempPathFactory, kind: str, numbers: list[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("stores") / "s"
    rows = [row(number) for number in numbers]
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(rows) - 1)), max_size=4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_writer, "BATCH_BYTES", data.draw(st.sampled_from([1, 100, 1 << 24])))
        corpus = written(
            path, IDS[kind][: len(rows)], rows, [cut for cut in cuts if cut < len(rows)]
        )
    assert [file.name for file in path.parent.iterdir()] == ["s"]
    assert (corpus.size, corpus.features) == (len(rows), tuple(FEATURES))
    assert_holds(CandidateStore(path, corpus), State.of(kind, rows))


Change = Callable[[StoreOverlay, State], None]
NUMBER = st.integers(0, len(IDS["int64"]) - 1)
ROW = st.integers(0, 1 << 20).map(row)


def upsert(rows: Mapping[int, Row]) -> Change:
    def apply(changes: StoreOverlay, state: State) -> None:
        # A slice of a larger batch is taken alone.
        columns = batch(IDS[state.kind][[*rows, *rows]], [*rows.values(), *rows.values()])
        positions = changes.upsert(columns[len(rows) :])
        assert positions.tolist() == [state.add(*item) for item in rows.items()]

    return apply


def delete(numbers: Sequence[int]) -> Change:
    def apply(changes: StoreOverlay, state: State) -> None:
        positions = changes.delete(IDS[state.kind][[*numbers]])
        assert positions.tolist() == [state.live.get(number, -1) for number in numbers]
        for number in numbers:
            state.live.pop(number, None)

    return apply


CHANGES = st.one_of(
    st.dictionaries(NUMBER, ROW, min_size=1, max_size=4).map(upsert),
    st.lists(NUMBER, max_size=3).map(delete),
)
HISTORIES = st.lists(CHANGES, max_size=7)
EARLIER = st.integers(0, 7)


@pytest.mark.parametrize("kind", ["int64", "string"])
@settings(max_examples=settings().max_examples // 5)
@given(HISTORIES, EARLIER)
def test_a_store_after_any_changes_holds_the_last_state_of_each_candidate(
    tmp_path_factory: pytest.TempPathFactory, kind: str, applied: list[Change], earlier: int
) -> None:
    """Also an earlier snapshot holds what it held."""
    changes = changes_of(tmp_path_factory.mktemp("changed"), kind)
    state = State.of(kind, [row(number) for number in range(BASE)])
    snapshots = [(changes.store, state.copy())]
    for change in applied:
        change(changes, state)
        snapshots.append((changes.store, state.copy()))
    for store, expected in (snapshots[min(earlier, len(applied))], snapshots[-1]):
        assert_holds(store, expected)
        ended = {*range(store.size)} - {*expected.live.values()}
        assert (store.base_size, store.count) == (BASE, len(expected.live))
        assert store.ended.tolist() == sorted(ended)


def test_columns_of_similar_types_are_cast_to_those_of_the_store(tmp_path: Path) -> None:
    changes = changes_of(tmp_path)
    columns = {
        "attribute:words": pa.array([["w"]]),
        "attribute:seen": pa.nulls(1),
        "attribute:title": pa.array(["t"]).dictionary_encode(),
        "attribute:score": pa.array([float("nan")], pa.float32()),
        "attribute:year": pa.array([7], pa.uint8()),
        "weights:tags": pa.array([[0.5]]),
        "feature:tags": pa.array([[4]], pa.list_(pa.int16())),
        "feature:genres": pa.array(["g"]),
        "feature:grid": pa.array([[1, 2]]),
        "feature:name": pa.array(["n"]),
        "feature:age": pa.array([3]),
        "feature:movie": pa.array([5], pa.int8()),
        "id": pa.array([30], pa.int32()),
    }
    positions = changes.upsert(pa.record_batch(columns))
    features = changes.store.features(positions, FEATURES)
    values = [features[name].values.tolist() for name in FEATURES]
    assert values == [[5], [3.0], ["n"], [1.0, 2.0], ["g"], [4]]
    attributes = changes.store.attributes(positions, ATTRIBUTES)
    assert [*attributes.values()] == [[7], [None], ["t"], [None], [["w"]]]


BIG = (1 << 53) + 1
INTEGERS = st.sampled_from([3, -1, BIG, BIG - 1, (1 << 63) - 1, -(1 << 63)])
FLOATS = st.sampled_from([0.5, -0.0, 0.0, 2.0**53, 1e300, float("nan"), -1.5])
TEXTS = st.sampled_from(["b", "é", "", "a", "\U0001f600"])
FILTERED: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), INTEGERS),
    "double": (pa.float64(), FLOATS),
    "string": (pa.string(), TEXTS),
    "bool": (pa.bool_(), st.booleans()),
    "list<string>": (pa.list_(pa.string()), st.lists(TEXTS, max_size=4)),
}
BOUNDS = [-(1 << 63) - 1, 0, 0.5, 3, BIG, float(BIG), BIG + 1, 2.0**63, 1 << 70, 1 << 1100, -0.0]
BOUND = st.none() | st.sampled_from(BOUNDS)
MEETS = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
ABSENT: dict[str, list[Any]] = {
    "int64": [7, 2],
    "double": [7.0],
    "string": ["zz", "\ud7ff"],
    "bool": [],
    "list<string>": ["zz"],
}
ENTRY = manifest.AttributeIndex(values="values.arrow", rows="rows.bin")


def having(values: Sequence[Any], meets: Callable[[Any], bool]) -> list[int]:
    """Returns the positions of candidates that have a value that meets something."""
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [
        position
        for position, row_values in enumerate(lists)
        if any(value is not None and value == value and meets(value) for value in row_values)
    ]


@pytest.mark.parametrize("kind", FILTERED)
def test_candidates_are_filtered_as_by_a_scan_of_their_attribute(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(store_writer, "BATCH_BYTES", 1)
    directory = tmp_path_factory.mktemp("filters")
    dtype, drawn = FILTERED[kind]
    nothing = {"a": pa.array([None, None], dtype)}
    corpus = Corpus(file="s", **vars(write_store(directory / "s", np.array([0, 1]), {}, nothing)))
    store = CandidateStore(directory / "s", corpus)

    @settings(max_examples=25)
    @given(
        st.lists(st.lists(st.none() | drawn, min_size=1, max_size=6), min_size=1, max_size=4),
        st.fixed_dictionaries(dict.fromkeys(MEETS, BOUND)),
    )
    def law(batches: list[list[Any]], bounds: dict[str, Any]) -> None:
        changes = StoreOverlay(store, corpus)
        with StoreWriter(directory / "anew") as writer:
            first = 0
            for part in batches:
                # Each batch replaces candidates of those before, which are found as well.
                ids = np.arange(len(part))
                changes.upsert(pa.record_batch({"id": ids, "attribute:a": pa.array(part, dtype)}))
                writer.append(ids + first, {}, {"a": pa.array(part, dtype)})
                first += len(part)
            writer.finish()
        write_attribute_index(directory / "anew", "a", directory, ENTRY)
        values = [*chain(*batches)]
        held_rows = RowRange(len(values) // 3, len(values) - len(values) // 3)
        whole = AttributeIndex(directory, ENTRY, kind, first)
        held = AttributeIndex(directory, ENTRY, kind, first, held_rows)
        assert_filters(whole, kind, values, bounds)
        assert_filters(held, kind, values[held_rows.first :], bounds)
        assert_filters(ChangedAttributeIndex(changes.store, "a"), kind, values, bounds)

    law()


def assert_filters(
    index: AttributeIndex | ChangedAttributeIndex,
    kind: str,
    values: Sequence[Any],
    bounds: Mapping[str, Any],
) -> None:
    """Compares what an index finds with a scan of the values."""
    assert index.kind == kind
    lists = [value if isinstance(value, list) else [value] for value in values]
    present = {value for value in chain(*lists) if value is not None and value == value}
    wanted = [*sorted(present), *ABSENT[kind]]
    for chosen in (wanted, wanted[:1], wanted[::3], wanted[-1:], []):
        rows = index.rows_of(tokens(kind, chosen))
        assert rows.dtype == np.uint32
        assert sorted({*rows.tolist()}) == having(values, chosen.__contains__)
    assert sorted({*index.rows_between(ANY_VALUE).tolist()}) == having(values, lambda _: True)
    if kind not in ("int64", "double"):
        return

    def is_between(value: Any, names: Sequence[str] = tuple(MEETS)) -> bool:
        limits = [(MEETS[name], bounds[name]) for name in names if bounds[name] is not None]
        return all(meets(value, limit) for meets, limit in limits)

    assert sorted(index.rows_between(Bounds(**bounds))) == having(values, is_between)
    rows, is_within = index.rows_by_bounds(Bounds(**bounds))
    found = {*rows.tolist()} if is_within else {*range(len(values))} - {*rows.tolist()}
    assert sorted(found) == having(values, is_between)
    among = PositionSet.of(np.arange(0, len(values), 2, dtype=np.uint32), len(values))
    rows, numbers = index.numbers_between(Bounds(ge=bounds["ge"], le=bounds["le"]), among)
    assert numbers.dtype == np.float64
    between = having(values, lambda value: is_between(value, ("ge", "le")))
    assert sorted(rows) == [position for position in between if position % 2 == 0]
    assert numbers.tolist() == [float(values[position]) for position in rows]


def tokens(kind: str, values: Sequence[Any]) -> NDArray[Any]:
    if "string" in kind:
        return objects(*values)
    return np.array(values, np.float64 if kind == "double" else np.int64)


def test_many_values_at_once_are_found(tmp_path: Path) -> None:
    values = [f"sku{number % 5000}" for number in range(20_000)]
    write_store(tmp_path / "s", np.arange(len(values)), {}, {"a": pa.array(values)})
    write_attribute_index(tmp_path / "s", "a", tmp_path, ENTRY)
    index = AttributeIndex(tmp_path, ENTRY, "string", len(values))
    wanted = objects(*(f"sku{number}" for number in range(1000, 100_000)))
    expected = having(values, lambda value: int(value[3:]) >= 1000)
    assert np.sort(index.rows_of(wanted)).tolist() == expected

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.errors import FeatureError, FormatError, RowOutOfRange, UnknownCandidate
from bundle.features.columns import Column
from bundle.format import manifest
from bundle.format.manifest import Corpus
from bundle.stores import writer as store_writer
from bundle.stores.attribute_index import AttributeIndex, write_attribute_index
from bundle.stores.changed import ChangedAttributeIndex, ChangedStore, StoreChanges
from bundle.stores.reader import CandidateStore
from bundle.stores.writer import StoreWriter, write_store
from tests.units.bundle.features.readers import objects

Row = Mapping[str, Any]

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
    "attribute:words": [["a", "b", "a"], [], None, ["c", None]],
}
ATTRIBUTES = [name.removeprefix("attribute:") for name in TYPES if name.startswith("attribute:")]
NUMBERS = ["year", "score", "seen"]
FEATURES = [name.removeprefix("feature:") for name in TYPES if name.startswith("feature:")]
BASE = 5
IDS = {
    "int64": np.array([30, -2, 7, 1 << 62, 0, 11, 12, 13, 14], np.int64),
    "string": objects("a", "", "é", "d", "e", "f", "g", "h", "i"),
}
UNKNOWN = {"int64": np.array([1, -9], np.int64), "string": objects("A", "\ud800")}


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
    if isinstance(values[0], list):
        if feature != "grid":
            offsets = np.cumsum([0, *map(len, values)])
        if feature == "tags":
            parts = [row[f"weights:{feature}"] for row in rows]
            weights = np.array([*chain.from_iterable(parts)], np.float32)
        values = [*chain.from_iterable(values)]
    if feature in ("name", "genres"):
        return Column(objects(*values), offsets)
    return Column(
        np.array(values, np.int64 if feature in ("movie", "tags") else np.float32), offsets, weights
    )


def written(path: Path, ids: NDArray[Any], rows: Sequence[Row], size: int = 2) -> Corpus:
    """Writes a store in batches."""
    with StoreWriter(path) as writer:
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            writer.append(
                ids[first : first + size],
                {name: column(part, name) for name in FEATURES},
                {name: array(part, f"attribute:{name}") for name in ATTRIBUTES},
            )
        return Corpus(file="s", **vars(writer.finish()))


def opened(path: Path, ids: NDArray[Any], rows: Sequence[Row]) -> CandidateStore:
    return CandidateStore(path, written(path, ids, rows))


def changes_of(directory: Path, kind: str = "int64") -> StoreChanges:
    rows = [row(number) for number in range(BASE)]
    corpus = written(directory / "s", IDS[kind][:BASE], rows)
    return StoreChanges(CandidateStore(directory / "s", corpus), corpus)


@dataclass
class State:
    """What a changed store should hold.

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

    def copy(self) -> State:
        return State(self.kind, [*self.ids], [*self.rows], {**self.live})

    def add(self, number: int, values: Row) -> int:
        self.live[number] = len(self.rows)
        self.ids.append(number)
        self.rows.append(values)
        return self.live[number]


Change = Callable[[StoreChanges, State], None]
NUMBER = st.integers(0, len(IDS["int64"]) - 1)
ROW = st.integers(0, 1 << 20).map(row)


def upsert(rows: Mapping[int, Row]) -> Change:
    def apply(changes: StoreChanges, state: State) -> None:
        columns = batch(IDS[state.kind][[*rows]], [*rows.values()])
        positions = changes.upsert(columns)
        assert positions.tolist() == [state.add(*item) for item in rows.items()]

    return apply


def delete(numbers: Sequence[int]) -> Change:
    def apply(changes: StoreChanges, state: State) -> None:
        positions = changes.delete(IDS[state.kind][[*numbers]])
        assert positions.tolist() == [state.live.get(number, -1) for number in numbers]
        for number in numbers:
            state.live.pop(number, None)

    return apply


def set_attributes(rows: Mapping[int, Row], names: set[str]) -> Change:
    def apply(changes: StoreChanges, state: State) -> None:
        attributes = {name: array([*rows.values()], f"attribute:{name}") for name in names}
        old, new = changes.set_attributes(IDS[state.kind][[*rows]], attributes)
        assert old.tolist() == [state.live.get(number, -1) for number in rows]
        expected = []
        for number, values in rows.items():
            position = -1
            if number in state.live:
                columns = {f"attribute:{name}" for name in names}
                changed = {column: values[column] for column in columns}
                position = state.add(number, {**state.rows[state.live[number]], **changed})
            expected.append(position)
        assert new.tolist() == expected

    return apply


CHANGES = st.one_of(
    st.dictionaries(NUMBER, ROW, min_size=1, max_size=4).map(upsert),
    st.lists(NUMBER, max_size=3).map(delete),
    st.builds(
        set_attributes,
        st.dictionaries(NUMBER, ROW, min_size=1, max_size=3),
        st.sets(st.sampled_from(ATTRIBUTES)),
    ),
)


def assert_holds(store: ChangedStore, state: State, directory: Path) -> None:
    """Compares a snapshot with a store that is written anew with its candidates."""
    ids = IDS[state.kind]
    live = np.array(sorted(state.live.values()), np.int64)
    assert (store.size, store.base_size, store.count) == (len(state.rows), BASE, live.size)
    assert store.ended.dtype == np.uint32
    assert store.ended.tolist() == sorted({*range(store.size)} - {*live.tolist()})
    expected = [state.live.get(number, -1) for number in range(ids.size)]
    assert store.positions(ids).tolist() == expected
    assert store.positions(UNKNOWN[state.kind]).tolist() == [-1, -1]
    # What is ended is still there, for who has its position.
    all_positions = np.arange(store.size)
    assert store.ids(all_positions).tolist() == ids[state.ids].tolist()
    assert store.attributes(all_positions, ATTRIBUTES) == {
        name: [row[f"attribute:{name}"] for row in state.rows] for name in ATTRIBUTES
    }
    if not live.size:
        return

    rows = [state.rows[position] for position in live]
    anew = opened(directory / "anew", ids[[state.ids[position] for position in live]], rows)
    indices = np.random.default_rng(0).integers(0, live.size, 2 * live.size)
    for chosen in (indices, indices[:1], indices[:0]):
        positions = live[chosen]
        assert store.ids(positions).tolist() == anew.ids(chosen).tolist()
        assert store.attributes(positions, ATTRIBUTES) == anew.attributes(chosen, ATTRIBUTES)
        assert_same_columns(store.features(positions, FEATURES), anew.features(chosen, FEATURES))
        numbers = anew.numbers(chosen, NUMBERS)
        for name, values in store.numbers(positions, NUMBERS).items():
            assert values.tolist() == numbers[name].tolist()
        for name in ("year", "title", "seen"):
            assert store.codes(positions, name).tolist() == anew.codes(chosen, name).tolist()
    for name in ("year", "score", "title", "seen"):
        assert store.cardinality(name) == anew.cardinality(name)
        assert counts_of(store, name) == counts_of(anew, name)
    assert store.text_bytes("attribute:year") == anew.text_bytes("attribute:year")


def counts_of(store: ChangedStore | CandidateStore, attribute: str) -> dict[Any, int]:
    counts = store.value_counts(attribute)
    return dict(zip(counts.values.to_pylist(), counts.counts.tolist(), strict=True))


def assert_same_columns(actual: Mapping[str, Column], expected: Mapping[str, Column]) -> None:
    for name in FEATURES:
        for values, expected_values in zip(actual[name], expected[name], strict=True):
            np.testing.assert_array_equal(values, expected_values, strict=values is not None)


def check_history(directory: Path, kind: str, applied: Sequence[Change], earlier: int) -> None:
    """Applies changes, and compares the last snapshot and an earlier one with stores that are
    written anew.
    """
    changes = changes_of(directory, kind)
    rows = [row(number) for number in range(BASE)]
    state = State(kind, [*range(BASE)], rows, {number: number for number in range(BASE)})
    snapshots = [(changes.store, state.copy())]
    for change in applied:
        change(changes, state)
        snapshots.append((changes.store, state.copy()))
    for snapshot in (snapshots[min(earlier, len(applied))], snapshots[-1]):
        assert_holds(*snapshot, directory)


HISTORIES = st.lists(CHANGES, max_size=7)
EARLIER = st.integers(0, 7)


@pytest.mark.parametrize("kind", IDS)
@settings(max_examples=settings().max_examples // 4)
@given(HISTORIES, EARLIER)
def test_store_after_any_changes_equals_one_written_anew(
    tmp_path_factory: pytest.TempPathFactory, kind: str, applied: list[Change], earlier: int
) -> None:
    check_history(tmp_path_factory.mktemp("changed"), kind, applied, earlier)


def test_many_small_changes_are_found_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    changes = changes_of(tmp_path)
    for number in range(200):
        ids = np.array([100 + number, 100 + number // 2], np.int64)[: 1 + number % 2]
        changes.upsert(batch(ids, [row(number)] * ids.size))
    store = changes.store
    assert store.size == BASE + 300
    # An odd number replaces the half of it, which an even one may have been.
    last = {}
    position = BASE
    for number in range(200):
        for key in [100 + number, 100 + number // 2][: 1 + number % 2]:
            last[key] = position, number
            position += 1
    ids = np.array([*last], np.int64)
    positions = store.positions(ids)
    assert positions.tolist() == [position for position, _ in last.values()]
    titles = [row(number)["attribute:title"] for _, number in last.values()]
    assert store.attributes(positions, ["title"])["title"] == titles
    assert store.count == BASE + len(last)


def test_snapshot_is_read_by_a_thread_while_another_one_changes_the_store(tmp_path: Path) -> None:
    changes = changes_of(tmp_path)
    ids = IDS["int64"]
    changes.upsert(batch(ids[:3], [row(9)] * 3))
    store = changes.store
    expected = store.positions(ids).tolist()
    stopped = threading.Event()
    differences = []

    def read() -> None:
        while not stopped.is_set():
            positions = store.positions(ids).tolist()
            if positions != expected:
                differences.append(positions)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(100):
            changes.upsert(batch(ids[:6], [row(number)] * 6))
            changes.delete(ids[number % 9 : number % 9 + 1])
    finally:
        stopped.set()
        reader.join()
    assert not differences


def test_store_whose_only_changes_are_unknown_ids_keeps_its_snapshot(tmp_path: Path) -> None:
    changes = changes_of(tmp_path)
    store = changes.store
    unknown = UNKNOWN["int64"]
    assert changes.delete(unknown).tolist() == [-1, -1]
    old, new = changes.set_attributes(unknown, {"year": pa.array([1, 2])})
    assert (old.tolist(), new.tolist()) == ([-1, -1], [-1, -1])
    assert changes.upsert(batch(unknown[:0], [])).size == 0
    assert changes.store is store


def test_id_that_is_deleted_twice_at_once_ends_once(tmp_path: Path) -> None:
    changes = changes_of(tmp_path)
    assert changes.delete(IDS["int64"][[2, 0, 2]]).tolist() == [2, 0, 2]
    assert changes.store.ended.tolist() == [0, 2]


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
    store = changes.store
    assert store.types == {"id": pa.int64(), **TYPES}
    features = store.features(positions, FEATURES)
    assert {name: column.values.tolist() for name, column in features.items()} == {
        "movie": [5],
        "age": [3.0],
        "name": ["n"],
        "grid": [1.0, 2.0],
        "genres": ["g"],
        "tags": [4],
    }
    assert store.attributes(positions, ATTRIBUTES) == {
        "year": [7],
        "score": [None],
        "title": ["t"],
        "seen": [None],
        "words": [["w"]],
    }


def test_slice_of_a_larger_batch_is_taken_alone(tmp_path: Path) -> None:
    changes = changes_of(tmp_path)
    rows = [row(number) for number in range(8)]
    positions = changes.upsert(batch(np.arange(100, 108), rows)[3:6])
    features = changes.store.features(positions, FEATURES)
    assert_same_columns(features, {name: column(rows[3:6], name) for name in FEATURES})


def changed_columns(**columns: Any) -> dict[str, pa.Array]:
    """Returns the columns of two candidates, of which some are changed; None: left out."""
    good = batch(IDS["int64"][:2], [row(3), row(10)])
    arrays = dict(zip(good.schema.names, good.columns, strict=True))
    arrays |= {name.replace("__", ":"): values for name, values in columns.items()}
    return {name: values for name, values in arrays.items() if values is not None}


STRINGS = pa.array(["5", "6"])
UNFIT = {
    "a column is missing": ({"feature__age": None}, "no column 'feature:age'; a column of float"),
    "a column of the store's ids is missing": ({"id": None}, "no column 'id'; a column of int64"),
    "a column is none of the store's": (
        {"vector": pa.array([1, 2])},
        "a column 'vector' of int64, which the store does not have; it has id, feature:movie",
    ),
    "ids of another type": ({"id": STRINGS}, "'id' has type string; int64 was expected"),
    "a null id": ({"id": pa.array([1, None])}, "'id' holds 1 nulls; int64 without nulls"),
    "an id twice": ({"id": pa.array([4, 4])}, "'id' holds 4 2 times; distinct ids"),
    "an id beyond int64": (
        {"id": pa.array([1, 1 << 63], pa.uint64())},
        "'id': .*9223372036854775808.*; int64 was expected",
    ),
    "a feature of another type": (
        {"feature__movie": STRINGS},
        "'feature:movie' has type string; int64 was expected",
    ),
    "a fraction for an integer": (
        {"feature__movie": pa.array([1.0, 2.5])},
        "'feature:movie' has type double; int64 was expected",
    ),
    "bools for a number": (
        {"feature__age": pa.array([True, False])},
        "'feature:age' has type bool; float was expected",
    ),
    "lists for a single value": (
        {"feature__name": pa.array([["a"], ["b"]])},
        r"'feature:name' has type list<string>; string was expected",
    ),
    "lists of another length": (
        {"feature__grid": pa.array([[1.0, 2.0], [3.0]])},
        r"'feature:grid': .*; fixed_size_list<item: float>\[2\] was expected",
    ),
    "a null feature": (
        {"feature__age": pa.array([1.0, None])},
        "'feature:age' holds 1 nulls; float without nulls was expected",
    ),
    "a null in a list": (
        {"feature__genres": pa.array([["a"], [None]])},
        "'feature:genres' holds 1 nulls; list<string> without nulls was expected",
    ),
    "weights that are missing": ({"weights__tags": None}, r"'weights:tags'; .* of list<float>"),
    "weights of other lengths": (
        {"feature__tags": pa.array([[1], [2]]), "weights__tags": pa.array([[0.5, 1.5], []])},
        "'weights:tags' has lists of other lengths than column 'feature:tags'",
    ),
    "an attribute of another type": (
        {"attribute__year": pa.array([1.5, 2.0])},
        "'attribute:year' has type double; int64 was expected",
    ),
    "a single value for a list of an attribute": (
        {"attribute__words": STRINGS},
        "'attribute:words' has type string; list<string> was expected",
    ),
    "an infinite attribute": (
        {"attribute__score": pa.array([1.0, float("inf")])},
        "attribute 'score' holds inf, which JSON cannot carry",
    ),
    "text that is not UTF-8": (
        {"attribute__title": pa.array([b"a", b"\xff"]).view(pa.string())},
        "'attribute:title': .*UTF8.*; string was expected",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_batch_that_does_not_fit_is_rejected_and_changes_nothing(tmp_path: Path, name: str) -> None:
    changes = changes_of(tmp_path)
    store = changes.store
    columns, message = UNFIT[name]
    with pytest.raises(FormatError, match=message):
        changes.upsert(pa.record_batch(changed_columns(**columns)))
    assert changes.store is store


def test_batch_with_a_column_twice_is_rejected(tmp_path: Path) -> None:
    good = changed_columns()
    twice = pa.record_batch([*good.values(), good["id"]], names=[*good, "id"])
    with pytest.raises(FormatError, match="2 columns 'id'; one was expected"):
        changes_of(tmp_path).upsert(twice)


@pytest.mark.parametrize(
    ("ids", "attributes", "message"),
    [
        ([30, 7], {"color": STRINGS}, "no attribute 'color'; it has year, score, title"),
        ([30, 7], {"year": STRINGS}, "'attribute:year' has type string; int64 was expected"),
        ([30, 7], {"year": pa.array([1])}, "'year' has 1 values for 2 candidates"),
        ([30, 30], {"year": pa.array([1, 2])}, "30 comes twice; distinct ids were expected"),
    ],
)
def test_attributes_that_do_not_fit_are_rejected_and_change_nothing(
    tmp_path: Path, ids: list[int], attributes: dict[str, pa.Array], message: str
) -> None:
    changes = changes_of(tmp_path)
    store = changes.store
    with pytest.raises(FormatError, match=message):
        changes.set_attributes(np.array(ids), attributes)
    assert changes.store is store


def test_reads_of_what_a_changed_store_does_not_hold_raise(tmp_path: Path) -> None:
    changes = changes_of(tmp_path)
    changes.upsert(batch(IDS["int64"][:1], [row(3)]))
    store = changes.store
    for position in (-1, BASE + 1):
        for read in (
            store.ids,
            lambda positions: store.features(positions, ["movie"]),
            lambda positions: store.attributes(positions, ["title"]),
        ):
            with pytest.raises(RowOutOfRange, match=f"{position} .* holds 6"):
                read(np.array([0, position]))
    with pytest.raises(FeatureError, match="'color'"):
        store.features(np.array([5]), ["color"])
    for find in (store.positions, changes.delete):
        with pytest.raises(UnknownCandidate, match=r"ids: 1\.0 is no id"):
            find(np.array([1.0]))
    with pytest.raises(UnknownCandidate, match="exclude_ids: 'x' is no integer id"):
        store.positions(objects("x"), "exclude_ids")


def test_ids_that_are_sent_as_decimal_strings_lead_to_changed_candidates(tmp_path: Path) -> None:
    changes = changes_of(tmp_path)
    changes.upsert(batch(IDS["int64"][:1], [row(3)]))
    assert changes.store.positions(objects("30", "-2", "5")).tolist() == [BASE, 1, -1]


def test_context_store_without_attributes_is_changed_alike(tmp_path: Path) -> None:
    ids = objects("u", "v")
    features = {"user": Column(np.array([1, 2]))}
    corpus = Corpus(file="s", **vars(write_store(tmp_path / "s", ids, features, {})))
    changes = StoreChanges(CandidateStore(tmp_path / "s", corpus), corpus)
    changes.upsert(pa.record_batch({"id": ["w", "u"], "feature:user": [3, 4]}))
    changes.delete(objects("v"))
    store = changes.store
    assert store.positions(objects("u", "v", "w")).tolist() == [3, -1, 2]
    assert store.features(np.array([3, 2]), ["user"])["user"].values.tolist() == [4, 3]


BIG = (1 << 53) + 1
FILTERED: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.sampled_from([3, -1, BIG, BIG - 1, (1 << 63) - 1, -(1 << 63)])),
    "double": (pa.float64(), st.sampled_from([0.5, -0.0, 0.0, 2.0**53, 1e300, float("nan"), -1.5])),
    "string": (pa.string(), st.sampled_from(["b", "é", "", "a", "\U0001f600"])),
    "bool": (pa.bool_(), st.booleans()),
    "list<string>": (
        pa.list_(pa.string()),
        st.lists(st.sampled_from(["a", "b", "é", None]), max_size=4),
    ),
}
BOUNDS = [-(1 << 63) - 1, 0, 0.5, 3, BIG, float(BIG), BIG + 1, 2.0**63, 1 << 70, 1 << 1100, -0.0]
BOUND = st.none() | st.sampled_from(BOUNDS)
ENTRY = manifest.AttributeIndex(values="values.arrow", rows="rows.bin")


@pytest.mark.parametrize("kind", FILTERED)
def test_changed_candidates_are_filtered_as_an_attribute_index_filters(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(store_writer, "BATCH_BYTES", 1)
    directory = tmp_path_factory.mktemp("filters")
    dtype, values = FILTERED[kind]
    base = {"a": pa.array([None, None], dtype)}
    corpus = Corpus(file="s", **vars(write_store(directory / "s", np.array([0, 1]), {}, base)))
    store = CandidateStore(directory / "s", corpus)

    @settings(max_examples=20)
    @given(
        st.lists(st.lists(st.none() | values, min_size=1, max_size=6), min_size=1, max_size=4),
        st.tuples(BOUND, BOUND, BOUND, BOUND),
    )
    def law(batches: list[list[Any]], bounds: tuple[Any, Any, Any, Any]) -> None:
        changes = StoreChanges(store, corpus)
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
        index = AttributeIndex(directory, ENTRY, kind, first)
        changed = ChangedAttributeIndex(changes.store, "a")
        filtered: AttributeIndex | ChangedAttributeIndex
        assert changed.kind == kind
        assert_same_rows(changed.rows_between(), index.rows_between())
        lists = [value if isinstance(value, list) else [value] for value in chain(*batches)]
        wanted = [value for value in chain(*lists) if value is not None and value == value]
        if kind in ("int64", "bool"):
            tokens: NDArray[Any] = np.array([*wanted, 7], np.int64)
        elif kind == "double":
            tokens = np.array([*wanted, -0.0, 7])
        else:
            tokens = objects(*wanted, "zz")
        for chosen in (tokens, tokens[:1], tokens[::3], tokens[-1:], tokens[:0]):
            assert_same_rows(changed.rows_of(chosen), index.rows_of(chosen))
        if kind in ("int64", "double"):
            assert_same_rows(changed.rows_between(*bounds), index.rows_between(*bounds))
            for low, high in (bounds[:2], (None, None), (bounds[0], None)):
                pairs = []
                for filtered in (changed, index):
                    positions, numbers = filtered.numbers_between(low, high)
                    assert positions.dtype == np.uint32
                    assert numbers.dtype == np.float64
                    pairs.append(sorted(zip(positions.tolist(), numbers.tolist(), strict=True)))
                assert pairs[0] == pairs[1]

    law()


def assert_same_rows(actual: NDArray[np.uint32], expected: NDArray[np.uint32]) -> None:
    assert actual.dtype == expected.dtype
    assert sorted(actual.tolist()) == sorted(expected.tolist())


def test_filter_of_a_store_without_changes_finds_nothing(tmp_path: Path) -> None:
    index = ChangedAttributeIndex(changes_of(tmp_path).store, "year")
    assert index.rows_of(np.array([1999])).size == 0
    assert index.rows_between(ge=0).size == 0
    positions, numbers = index.numbers_between()
    assert (positions.size, numbers.size) == (0, 0)

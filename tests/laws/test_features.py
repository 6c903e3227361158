"""Features of any kind read what their definition says: from files, and from rows that other
processes hold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel

from bundle.errors import RowUnavailable, UnknownRejected
from bundle.features.columns import Column, OutputBlock
from bundle.features.diagnosis import rows_not_finite
from bundle.features.reader import FeatureReader
from bundle.features.sources import FetchedRows, RemoteTable, remote_tables
from bundle.format import manifest as entries
from bundle.format.dtypes import narrowed, widened
from bundle.tables.key_index import KeyIndex, KeyIndexWriter
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import StringKeys, Vocabulary
from tests.bundles.tables import write_floats
from tests.laws.random_features import (
    DIMS,
    DTYPES,
    KEYS,
    ROWS,
    TABLES,
    WORDS,
    Model,
    Rejected,
    State,
    random_model,
)
from tests.random_cases import seeds

CASES = 100
VOCABULARIES = {"words": Vocabulary(StringKeys(list(WORDS)))}
READERS = ("compiled", "numpy")


class Files(NamedTuple):
    """Tables and key indexes, open.

    Attributes:
      entries: The entries of the tables.
      tables: The tables, as compiled code reads them and as NumPy does.
      keys: The key index of each table, and a further one.
      state: What they hold.
    """

    entries: Mapping[str, entries.Table]
    tables: Mapping[str, Mapping[str, TableReader]]
    keys: Mapping[str, KeyIndex]
    state: State


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    root = tmp_path_factory.mktemp("tables")
    with KeyIndexWriter(root / "keys") as writer:
        writer.append(np.array(KEYS))
        index = KeyIndex(root / "keys", writer.finish())
    tables = {}
    vectors = {}
    for number, name in enumerate(TABLES):
        rows = np.random.default_rng(number).standard_normal((ROWS, DIMS[name])).astype("f4")
        dtype = dtype_of(name)
        vectors[name] = rounded(rows, dtype)
        tables[name] = write_floats(root, name, vectors[name], dtype, [4])
    opened = {
        reader: {
            name: TableReader(root, entry, reader == "compiled") for name, entry in tables.items()
        }
        for reader in READERS
    }
    # The index of an indicator is the one that several tables may share.
    keys = dict.fromkeys((*TABLES, "shared"), index)
    return Files(tables, opened, keys, State(vectors))


def rounded(vectors: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """Returns vectors as they are read after a table has stored them."""
    values, scales = narrowed(vectors, dtype)
    return widened(values, dtype, scales)


def dtype_of(table: str) -> str:
    return table if table in DTYPES else "float32"


def reader_of(files: Files, model: Model, tables: Mapping[str, Any]) -> FeatureReader:
    return FeatureReader(model.features, tables, VOCABULARIES, files.keys)


@pytest.fixture(scope="module")
def drawn() -> set[str]:
    """The fields of features, and their values, that the cases had."""
    return set()


def test_features_read_what_their_definition_says(
    files: Files, drawn: set[str], request: pytest.FixtureRequest
) -> None:
    for seed in seeds(request, CASES, first=40_000):
        random = Random(seed)
        model = random_model(random)
        for feature in model.features.values():
            drawn |= {*names_in(feature)}
        readers = [reader_of(files, model, tables) for tables in files.tables.values()]
        assert_read(readers, model, files.state, seed)


def test_rows_of_other_processes_read_like_files_and_lost_rows_like_unknown_ids(
    files: Files, request: pytest.FixtureRequest
) -> None:
    for seed in seeds(request, CASES, first=50_000):
        random = Random(seed)
        model = random_model(random)
        loses = random.random() < 0.5
        tables = {
            name: entry.model_copy(update={"unavailable": "unknown" if loses else "error"})
            for name, entry in files.entries.items()
        }
        remote = remote_tables(tables)
        reader = reader_of(files, model, remote)
        state = files.state
        lost = {name: lost_rows(random, model, name) for name in TABLES if loses}

        columns = model.columns()
        names = [name for name in model.features if read_or_rejected(model, name, state)]
        fetched = {}
        for layout, rows in reader.remote_rows(names, columns, model.n).items():
            assert (np.diff(rows) > 0).all(), "each row is wanted once"
            fetched[layout] = fetched_rows(rows, layout, remote, state, lost)
        for name in names:
            expected = read_or_rejected(model, name, state, lost)
            if expected is None:
                with pytest.raises(RowUnavailable, match="is unavailable"):
                    reader.activations([name], columns, model.n, fetched)
                continue
            activation = reader.activations([name], columns, model.n, fetched)[name]
            assert_equal(activation.values, expected[0], f"{name} of seed {seed}")
            block = room_for(model, {name: expected[0]}, [name])
            if block.names:
                reader.write([block], columns, model.n, fetched)
                assert_equal(block.array, flat(expected[0]), f"{name} of {seed}")


def test_a_row_that_is_not_finite_is_named(tmp_path: Path) -> None:
    vectors = np.ones((ROWS, 3), np.float32)
    finite = TableReader(tmp_path, write_floats(tmp_path, "finite", vectors, "float32", []))
    vectors[2] = np.inf
    infinite = TableReader(tmp_path, write_floats(tmp_path, "infinite", vectors, "float32", []))
    tables = {"finite": finite, "infinite": infinite}
    features = {
        table: entries.EmbeddedFeature(kind="single", table=table, role="context")
        for table in tables
    }
    columns = {name: Column(np.array([1, 2])) for name in features}
    reader = FeatureReader(features, tables, {})
    (lost,) = rows_not_finite(reader, [*features], columns, 2)
    assert (lost.feature, lost.table, lost.id, lost.example) == ("infinite", "infinite", 2, 1)


def test_every_field_of_a_feature_and_every_value_was_drawn(drawn: set[str]) -> None:
    models: tuple[type[BaseModel], ...] = (
        entries.EmbeddedFeature,
        entries.DenseFeature,
        entries.Unknown,
        *get_args(get_args(entries.IdRule)[0]),
    )
    wanted = {f"EmbeddedFeature.table {dtype}" for dtype in DTYPES}
    for model in models:
        if model is entries.GraphIds:
            continue  # tests/differential/test_id_operations.py draws its operations
        for name, info in model.model_fields.items():
            wanted |= {f"{model.__name__}.{name}"}
            wanted |= {f"{model.__name__}.{name} {value}" for value in literals(info.annotation)}
    # tests/laws/test_input_lengths.py draws lengths of inputs.
    wanted = {name for name in wanted if "input_length" not in name}
    # tests/differential/random_models draws ids of several inputs.
    wanted -= {"EmbeddedFeature.joint"}
    missing = wanted - drawn
    assert not missing


def names_in(model: BaseModel) -> Iterator[str]:
    """Yields the fields that a part of the manifest states, and their words."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, str):
            yield f"{type(model).__name__}.{name} {value}"
        if value != type(model).model_fields[name].default:
            yield f"{type(model).__name__}.{name}"
        for part in value if isinstance(value, tuple) else [value]:
            if isinstance(part, BaseModel):
                yield from names_in(part)
    yield f"{type(model).__name__}.kind"


def literals(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if value]
    return [value for part in get_args(annotation) for value in literals(part)]


def read_or_rejected(
    model: Model, name: str, state: State, lost: Mapping[str, frozenset[int]] | None = None
) -> tuple[NDArray[Any], int] | None:
    """Returns what `Model.read` does; None: the feature rejects an id."""
    try:
        return model.read(name, state, lost)
    except Rejected:
        return None


def assert_read(readers: Sequence[FeatureReader], model: Model, state: State, seed: int) -> None:
    """Compares all that each reader reads of a model's features with their definition."""
    columns = model.columns()
    expected: dict[str, NDArray[Any]] = {}
    unknown = {}
    for name, feature in model.features.items():
        read = read_or_rejected(model, name, state)
        if read is not None:
            expected[name], unknown[name] = read
            continue
        for reader in readers:
            with pytest.raises(UnknownRejected, match="is not in table") as rejected:
                reader.activation(name, columns, model.n)
            assert rejected.value.feature in (feature.inputs or (name,))
    for reader in readers:
        assert_reads(reader, model, state, columns, expected, unknown, seed)


def assert_reads(
    reader: FeatureReader,
    model: Model,
    state: State,
    columns: Mapping[str, Column],
    expected: Mapping[str, NDArray[Any]],
    unknown: Mapping[str, int],
    seed: int,
) -> None:
    """Compares what a reader reads, in each way, with what it should."""
    activations = reader.activations(expected, columns, model.n)
    for name, activation in activations.items():
        where = f"{name} of seed {seed}"
        assert_equal(activation.values, expected[name], where)
        assert activation.unknown == unknown[name], where
        alone = reader.activation(name, columns, model.n)
        assert alone.values.tolist() == activation.values.tolist(), where
        if isinstance(model.features[name], entries.EmbeddedFeature):
            rows, offsets = reader.rows(name, columns, model.n)
            by_example = model.rows(name, state)
            expected_rows = [
                row if isinstance(row, int) else -1 for part in by_example for row in part
            ]
            assert rows.tolist() == expected_rows, where
            lengths = [len(example) for example in by_example]
            assert offsets.tolist() == [0, *itertools.accumulate(lengths)], where
    if model.n:
        number = model.random.randrange(model.n)
        single = reader.activations(expected, model.example(number).columns(), 1)
        for name, activation in activations.items():
            actual = single[name].values[0]
            same = np.array_equal(actual, activation.values[number])
            assert same, f"{name} of seed {seed} has other bits in another batch"

    # Cut into arrays anywhere, in any order; what is kept of the first call serves the second one.
    names = model.random.sample(sorted(expected), len(expected))
    cut = model.random.randint(0, len(names))
    blocks = [room_for(model, expected, part) for part in (names[:cut], names[cut:])]
    blocks = [block for block in blocks if block.names]
    counts = {name: unknown[name] for block in blocks for name in block.names if unknown[name]}
    for _ in range(2):
        actual_counts = reader.write(blocks, columns, model.n)
        assert actual_counts == counts, seed
        for block in blocks:
            parts = [flat(expected[name]) for name in block.names]
            assert_equal(block.array, np.hstack(parts), str(seed))
            block.array[...] = np.nan


def room_for(model: Model, expected: Mapping[str, NDArray[Any]], names: list[str]) -> OutputBlock:
    """Returns an array, amid other numbers, for those of some features that are float32."""
    numbers = [name for name in names if expected[name].dtype == np.float32]
    widths = [math.prod(expected[name].shape[1:]) for name in numbers]
    ends = tuple(itertools.accumulate(widths))
    array = np.full((model.n, sum(widths) + 3), np.nan, np.float32)[:, 1 : sum(widths) + 1]
    return OutputBlock(array, tuple(numbers), ends)


def flat(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(len(values), math.prod(values.shape[1:]))


def assert_equal(actual: NDArray[Any], expected: NDArray[Any], where: str) -> None:
    assert actual.shape == expected.shape or not expected.size, where
    if expected.dtype == object:
        assert actual.tolist() == expected.tolist(), where
        return
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, err_msg=where)


def lost_rows(random: Random, model: Model, table: str) -> frozenset[int]:
    """Returns rows of a table that are lost, other than those that features read in place of
    others.
    """
    needed = set[int | None]()
    for feature in model.features.values():
        if isinstance(feature, entries.EmbeddedFeature) and feature.table == table:
            needed |= {feature.empty_row, feature.filler_row, feature.unknown.row}
    return frozenset(row for row in range(ROWS) if row not in needed and random.random() < 0.3)


def fetched_rows(
    rows: NDArray[np.int64],
    layout: str,
    remote: Mapping[str, RemoteTable],
    state: State,
    lost: Mapping[str, frozenset[int]],
) -> FetchedRows:
    """Returns rows of the tables of a layout as processes that hold them send them."""
    dim = DIMS[next(name for name in TABLES if remote[name].among.name == layout)]
    vectors = np.full((rows.size, dim), np.nan, np.float32)
    is_lost = np.zeros(rows.size, bool)
    for name, table in remote.items():
        if table.among.name != layout:
            continue
        own_rows = rows - table.first
        for index in np.flatnonzero(
            (own_rows >= 0) & (own_rows < len(state.vectors[name]))
        ).tolist():
            is_lost[index] = int(own_rows[index]) in lost.get(name, frozenset())
            vectors[index] = 0 if is_lost[index] else state.vectors[name][own_rows[index]]
    return FetchedRows(rows, vectors, is_lost if is_lost.any() else None)

"""Any history of changes reads as a table that was written with the last vector of each row."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.errors import BundleError, RowOutOfRange, VectorRejected
from bundle.format.tables import TableDtype
from bundle.tables import changed_rows, row_file
from bundle.tables.changed_rows import ChangedRows, rounded
from bundle.tables.reader import TableReader
from bundle.tables.row_file import RowFile, write_row_file
from tests.bundles.tables import write_floats

DTYPES = ("float32", "float16", "bfloat16", "int8")
ROWS = 12
VECTORS = 60
DIM = 3
ROW = st.integers(0, ROWS - 1)
CHANGES = st.lists(st.tuples(ROW, st.integers(0, VECTORS - 1)), max_size=9)
HISTORIES = st.lists(st.tuples(st.integers(0, 99), CHANGES), max_size=9)
"""Which state before a change is made of, modulo their number, and rows with their new vectors."""


def floats() -> NDArray[np.float32]:
    """Vectors of many sizes, some with ties to round, some with zeros of both signs."""
    random = np.random.default_rng(0)
    sizes = 10.0 ** random.uniform(-7, 3, (VECTORS, 1))
    vectors = (random.standard_normal((VECTORS, DIM)) * sizes).astype(np.float32)
    vectors[::5] = np.round(vectors[::5] * 64) / 64 + 1
    vectors[::7, 0] = -0.0
    return vectors


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TableReader]:
    """A table of each dtype; its first rows are those that change to the vectors of all others."""
    root = tmp_path_factory.mktemp("tables")
    return {
        dtype: TableReader(root, write_floats(root, dtype, floats(), dtype, [5]))
        for dtype in DTYPES
    }


def bits(vectors: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(vectors).view(np.uint32)


@given(history=HISTORIES, wanted=st.lists(st.integers(-2, ROWS - 1), max_size=20))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_state_of_any_history_reads_as_a_table_with_its_last_vectors(
    tables: dict[str, TableReader],
    dtype: str,
    history: list[tuple[int, list[tuple[int, int]]]],
    wanted: list[int],
) -> None:
    table = tables[dtype]
    vectors = rounded(floats(), dtype)
    states = [ChangedRows.none(DIM)]
    sources = [dict[int, int]()]
    for before, changes in history:
        number = before % len(states)
        rows = np.array([row for row, _ in changes], np.int64)
        new = vectors[[source for _, source in changes]]
        states.append(states[number].with_rows(rows, new))
        sources.append({**sources[number], **dict(changes)})
    read = np.array(wanted, np.int64)
    for state, source_of in zip(states, sources, strict=True):
        assert state.rows.tolist() == sorted(source_of)
        expected_rows = [source_of[row] for row in sorted(source_of)]
        expected_vectors = table.take(np.array(expected_rows, np.int64))
        np.testing.assert_array_equal(bits(state.vectors), bits(expected_vectors))

        actual = table.take(read)
        state.replace(read, actual)
        final = np.array([source_of.get(row, row) for row in wanted], np.int64)
        np.testing.assert_array_equal(bits(actual), bits(table.take(final)))
        assert state.contains(read).tolist() == [row in source_of for row in wanted]


@given(
    history=HISTORIES,
    absorbed=st.lists(st.integers(0, 8), max_size=4),
    wanted=st.lists(st.integers(-2, ROWS - 1), max_size=20),
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_in_a_file_read_as_those_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: TableDtype,
    history: list[tuple[int, list[tuple[int, int]]]],
    absorbed: list[int],
    wanted: list[int],
) -> None:
    path = tmp_path_factory.mktemp("files") / "rows"
    vectors = rounded(floats(), dtype)
    in_memory = ChangedRows.none(DIM)
    state = ChangedRows.none(DIM)
    read = np.array(wanted, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed_rows, "_RECENT_MAX", 3)
        for number, (late, changes) in enumerate(history):
            rows = np.array([row for row, _ in changes], np.int64)
            new = vectors[[source for _, source in changes]]
            file = None
            if number in absorbed:
                write_row_file(path, "t", dtype, state.rows, DIM, state.vectors_of)
                file = RowFile(path)
                exchange = state.exchange(file)
            in_memory = in_memory.with_rows(rows, new)
            if late % 2:  # a change came while the file was written
                state = state.with_rows(rows, new)
            if file is not None:
                exchanged = state.with_file(exchange)
                assert exchanged is not None
                state = exchanged
            if not late % 2:
                state = state.with_rows(rows, new)
            assert state.count == in_memory.count == in_memory.rows.size
            assert state.end_row == in_memory.end_row
            assert state.rows.tolist() == in_memory.rows.tolist()
            assert state.contains(read).tolist() == in_memory.contains(read).tolist()
            np.testing.assert_array_equal(bits(state.vectors), bits(in_memory.vectors))


def test_a_file_with_rows_that_did_not_change_is_not_read(tmp_path: Path) -> None:
    ones = np.ones((2, DIM), np.float32)
    behind = ChangedRows.none(DIM).with_rows(np.array([1, 4]), ones)
    ahead = behind.with_rows(np.array([4, 7]), 2 * ones)
    write_row_file(tmp_path / "f", "t", "float32", ahead.rows, DIM, ahead.vectors_of)
    file = RowFile(tmp_path / "f")
    assert behind.with_file(behind.exchange(file)) is None
    later = behind.with_rows(np.array([7]), ones[:1])  # one value differs, and stays in memory
    exchanged = later.with_file(later.exchange(file))
    assert exchanged is not None
    assert exchanged.vectors.tolist() == later.vectors.tolist()
    assert exchanged.memory_bytes == 2 * DIM * 4
    assert exchanged.with_file(later.exchange(file)) is None  # of a state without a file


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_damaged_file_of_rows_is_rejected(tmp_path: Path, dtype: TableDtype) -> None:
    state = ChangedRows.none(DIM).with_rows(np.arange(9), rounded(floats()[:9], dtype))
    path = tmp_path / "rows"
    write_row_file(path, "t", dtype, state.rows, DIM, state.vectors_of)
    assert [file.name for file in tmp_path.iterdir()] == ["rows"]
    content = path.read_bytes()
    for position in (0, 9, 13, 20, 4096, 4096 + 9 * 8, len(content) - 1):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :]
        )
        with pytest.raises(BundleError, match="file 'rows'"):
            RowFile(path)
    for size in (0, 7, 4095, 4096, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(BundleError, match="file 'rows'"):
            RowFile(path)
    path.write_bytes(content)
    np.testing.assert_array_equal(bits(RowFile(path).vectors(np.arange(9))), bits(state.vectors))


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_that_were_rounded_before_stay_as_they_are(dtype: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((5_000, 4)).astype(np.float32)
    stored = rounded(vectors, dtype)
    np.testing.assert_array_equal(bits(rounded(stored, dtype)), bits(stored))


def test_vectors_are_shared_by_the_states_that_change_a_few_rows() -> None:
    state = ChangedRows.none(64).with_rows(np.arange(20_000), np.ones((20_000, 64), np.float32))
    tracemalloc.start()
    states = [state]
    for number in range(30):
        row = np.array([100 * number])
        states.append(states[-1].with_rows(row, np.full((1, 64), number, np.float32)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2 * state.vectors.nbytes  # not 30 times
    for number, later in enumerate(states[1:]):
        assert later.vectors[100 * number, 0] == number
        assert state.vectors[100 * number, 0] == 1


def test_rows_that_change_for_ever_take_no_more_memory() -> None:
    rows = np.arange(100)
    state = ChangedRows.none(16)
    tracemalloc.start()
    for number in range(2_000):
        state = state.with_rows(rows, np.full((100, 16), number, np.float32))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (state.vectors == 1_999).all()
    assert peak_bytes < 100_000  # a copy of all vectors takes 6,400


def test_many_rows_take_little_memory_until_a_file_has_them_and_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_rows, "_UNMAPPED_BYTES", 100_000)
    monkeypatch.setattr(changed_rows, "_COMPARED", 500)
    monkeypatch.setattr(row_file, "_CHUNK_ROWS", 500)
    count = 20_000
    vectors_bytes = count * 64 * 4
    state = ChangedRows.none(64, tmp_path)

    def vectors_of(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.repeat(rows[:, None], 64, axis=1).astype(np.float32)

    tracemalloc.start()
    for first in range(0, count, 500):
        rows = np.arange(first, first + 500)
        state = state.with_rows(rows, vectors_of(rows))
    path = tmp_path / "rows"
    write_row_file(path, "users", "float32", state.rows, 64, state.vectors_of)
    in_memory = state
    file = RowFile(path)
    changed = state.with_rows(np.arange(3), vectors_of(np.arange(7, 10)))
    in_file = changed.with_file(changed.exchange(file))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < vectors_bytes / 2  # the numbers of the rows, and parts of the vectors
    assert in_file is not None
    assert (in_memory.memory_count, in_file.memory_count) == (count, 3)
    rows = np.arange(count)
    assert (in_memory.vectors_of(rows) == vectors_of(rows)).all()
    assert (in_file.vectors_of(rows)[3:] == vectors_of(rows)[3:]).all()
    assert in_file.vectors_of(rows[:3])[:, 0].tolist() == [7.0, 8.0, 9.0]
    assert [*tmp_path.iterdir()] == [path], "the file of a process has no name"


@pytest.mark.parametrize("directory", ["missing", "file"])
def test_rows_are_in_memory_where_no_file_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    monkeypatch.setattr(changed_rows, "_UNMAPPED_BYTES", 0)
    (tmp_path / "file").touch()
    state = ChangedRows.none(4, tmp_path / directory)
    state = state.with_rows(np.arange(9), np.ones((9, 4), np.float32))
    assert state.vectors.tolist() == [[1.0] * 4] * 9


def test_states_that_several_threads_make_of_one_have_the_vectors_of_each() -> None:
    first = ChangedRows.none(4).with_rows(np.arange(40), np.zeros((40, 4), np.float32))

    def changed(number: int) -> ChangedRows:
        return first.with_rows(np.arange(number % 40, 60), np.full((60 - number % 40, 4), number))

    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(changed, range(1, 300)))
    for number, state in enumerate(states, 1):
        assert (state.vectors[number % 40 :] == number).all()
        assert not state.vectors[: number % 40].any()


@pytest.mark.parametrize(
    ("dtype", "value", "problem"),
    [
        *((dtype, np.nan, r"nan in column 1; a finite number was expected") for dtype in DTYPES),
        *((dtype, -np.inf, r"-inf in column 1; a finite number was expected") for dtype in DTYPES),
        ("float16", 65_520.0, r"65520 in column 1; a number that float16 holds was"),
        ("bfloat16", 3.4e38, r"3.4e\+38 in column 1; a number that bfloat16 holds was"),
    ],
)
def test_value_that_the_table_cannot_hold_is_rejected_with_its_vector(
    dtype: str, value: float, problem: str
) -> None:
    vectors = floats()[:4]
    vectors[2, 1] = value
    with pytest.raises(VectorRejected, match=f"vector 2: {problem}") as raised:
        rounded(vectors, dtype)
    assert raised.value.position == 2


def test_largest_values_that_a_table_holds_are_taken() -> None:
    largest = np.array([[65_519.0, -65_519.0]], np.float32)
    assert (np.abs(rounded(largest, "float16")) == 65_504).all()
    assert not rounded(np.full((1, 2), 1e-39, np.float32), "int8").any()
    assert rounded(np.empty((0, 2), np.float32), "int8").shape == (0, 2)


def test_rows_and_vectors_that_do_not_fit_are_rejected() -> None:
    state = ChangedRows.none(2)
    with pytest.raises(RowOutOfRange, match="row -1 is negative"):
        state.with_rows(np.array([3, -1]), np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match=r"shape \(2, 3\); \(2, 2\) was expected"):
        state.with_rows(np.array([3, 1]), np.zeros((2, 3), np.float32))
    assert not state.rows.size
    assert state.with_rows(np.empty(0, np.int64), np.empty((0, 2), np.float32)).dim == 2

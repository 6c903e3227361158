"""Any history of changes of rows has the last vector of each row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.changes.records import decode, encode
from bundle.errors import VectorRejected
from bundle.format.tables import TableDtype
from bundle.tables import changed_rows
from bundle.tables.changed_rows import ChangedRows
from bundle.tables.reader import TableReader
from bundle.tables.stored_rows import stored_rows
from tests.bundles.row_log import RowLog, rounded, row_change, row_log
from tests.bundles.tables import write_floats

DTYPES: tuple[TableDtype, ...] = get_args(TableDtype)
VECTORS = 60
DIM = 3
CHANGES = st.lists(
    st.tuples(st.integers(0, 9) | st.integers(60, 150), st.integers(0, VECTORS - 1)), max_size=9
)
HISTORIES = st.lists(st.tuples(st.integers(0, 99), CHANGES), max_size=9)
"""The state before a change, modulo their number; new vectors."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RowLog]:
    with row_log(tmp_path_factory.mktemp("log") / "changes.log") as log:
        yield log


def floats() -> NDArray[np.float32]:
    """Vectors of many sizes, some with ties to round, some with zeros of both signs."""
    random = np.random.default_rng(0)
    sizes = 10.0 ** random.uniform(-7, 3, (VECTORS, 1))
    vectors = (random.standard_normal((VECTORS, DIM)) * sizes).astype(np.float32)
    vectors[::5] = np.round(vectors[::5] * 64) / 64 + 1
    vectors[::7, 0] = -0.0
    return vectors


def bits(vectors: Any) -> list[list[int]]:
    rows: list[list[int]] = np.ascontiguousarray(vectors, np.float32).view(np.uint32).tolist()
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_are_rounded_as_a_table_stores_them(tmp_path: Path, dtype: TableDtype) -> None:
    stored = TableReader(tmp_path, write_floats(tmp_path, "t", floats(), dtype, [5]))
    vectors = rounded(floats(), dtype)
    assert bits(vectors) == bits(stored.take(np.arange(VECTORS)))
    assert bits(rounded(vectors, dtype)) == bits(vectors)


@given(dtype=st.sampled_from(DTYPES), history=HISTORIES, recent=st.sampled_from([3, 1 << 14]))
def test_every_state_of_any_history_has_the_last_vector_of_each_row(
    log: RowLog, dtype: TableDtype, history: list[tuple[int, list[tuple[int, int]]]], recent: int
) -> None:
    vectors = rounded(floats(), dtype)
    states: list[tuple[ChangedRows, dict[int, int]]] = [(ChangedRows.none(dtype, DIM), {})]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed_rows, "_RECENT_MAX", recent)
        for before, changes in history:
            state, sources = states[before % len(states)]
            rows = [row for row, _ in changes]
            state = log.with_rows(state, rows, vectors[[source for _, source in changes]])
            states.append((state, {**sources, **dict(changes)}))
    for state, sources in states:
        tried = np.array([-1 << 40, -65, *range(-2, 200), 1 << 40])
        is_changed = [row in sources for row in tried.tolist()]
        assert state.rows.tolist() == sorted(sources)
        assert (state.count, state.end_row) == (len(sources), max(sources, default=-1) + 1)
        assert state.contains(tried).tolist() == is_changed
        positions, stored = state.find(tried)
        assert positions.tolist() == np.flatnonzero(is_changed).tolist()
        written = np.full((tried.size, DIM), 7, np.float32)
        state.write(stored, positions, written)
        expected = [
            vectors[sources[row]] if row in sources else [7] * DIM for row in tried.tolist()
        ]
        assert bits(written) == bits(expected)


@given(
    dtype=st.sampled_from(DTYPES),
    columns=st.sampled_from([(), ("key",), ("sequence",), ("key", "sequence")]),
    rows=st.lists(st.integers(0, 1 << 62) | st.integers(0, 300), max_size=20),
    seed=st.integers(0, 9),
)
def test_changes_of_rows_are_read_from_the_log_as_they_were_written(
    log: RowLog, dtype: TableDtype, columns: tuple[str, ...], rows: list[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    stored = stored_rows(floats()[random.integers(0, VECTORS, len(rows))], dtype)
    values = {name: random.integers(-(1 << 63), (1 << 63) - 1, len(rows)) for name in columns}
    written = row_change(rows, stored, values, stream="s" * seed)
    read = log.append(written)
    assert read.head == written.head
    assert read.columns.equals(written.columns.select(["id", *columns]))
    assert read.rows is not None
    assert read.rows.take().tolist() == stored.take().tolist()
    assert (read.rows.offsets[:1] % 64 == 0).all()
    alone = decode(encode(written))
    assert alone.columns.equals(read.columns)
    assert alone.rows is not None
    assert alone.rows.take().tolist() == stored.take().tolist()


@pytest.mark.parametrize(
    ("dtype", "value", "words"),
    [
        *((dtype, value, "finite") for dtype in DTYPES for value in (np.nan, -np.inf)),
        ("float16", 65_520.0, "float16"),
        ("bfloat16", 3.4e38, "bfloat16"),
    ],
)
def test_a_value_that_a_table_cannot_hold_is_rejected_with_its_vector(
    dtype: str, value: float, words: str
) -> None:
    vectors = floats()[:4]
    vectors[2, 1] = value
    with pytest.raises(VectorRejected, match=f"vector 2: .*column 1.*{words}") as rejected:
        stored_rows(vectors, dtype)
    assert rejected.value.position == 2


def test_the_largest_values_that_a_table_holds_are_taken() -> None:
    largest = np.array([[65_519.0, -65_519.0]], np.float32)
    assert (np.abs(rounded(largest, "float16")) == 65_504).all()
    assert not rounded(np.full((1, 2), 1e-39, np.float32), "int8").any()
    assert rounded(np.empty((0, 2), np.float32), "int8").shape == (0, 2)

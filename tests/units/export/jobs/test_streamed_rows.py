from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bundle.errors import DigestMismatch
from export.jobs import streamed_rows
from export.jobs.streamed_rows import StreamedTable
from object_store.remote_path import RemotePath
from object_store.stored_content import StoredContent
from tests.bundles.tables import write_int8_table, write_linked_table, write_table
from tests.units.object_store.memory_stores import CountedStore, uploaded

ROWS = 5000
DIM = 16
VALUES = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> RemotePath:
    return RemotePath(f"counted://{tmp_path.name}")


def located_in(store: RemotePath) -> Callable[[str], StoredContent]:
    """Returns what finds the files of a bundle that lie under their own names."""
    return lambda path: StoredContent((store / path,))


def test_streamed_rows_of_several_segments_are_those_of_the_table(
    tmp_path: Path, store: RemotePath
) -> None:
    table = write_table(tmp_path, "t", VALUES, "float32", [1000, 1001, 4000])
    uploaded(tmp_path, store)
    streamed = StreamedTable(table, located_in(store))
    wanted = np.array([4999, 0, 999, 1000, 1001, 1002, 3999, 4000, 0, 2500])
    np.testing.assert_array_equal(streamed.gather(wanted), VALUES[wanted])
    np.testing.assert_array_equal(streamed.gather(np.arange(ROWS)), VALUES)


def test_streamed_int8_rows_are_multiplied_by_their_scales(
    tmp_path: Path, store: RemotePath
) -> None:
    table = write_int8_table(tmp_path, "t", VALUES, [2000], [3000])
    uploaded(tmp_path, store)
    wanted = np.array([1999, 2000, 2999, 3000, 7])
    rows = StreamedTable(table, located_in(store)).gather(wanted)
    largest = np.abs(VALUES[wanted]).max(axis=1, keepdims=True)
    np.testing.assert_allclose(rows, VALUES[wanted], rtol=0, atol=largest.max() / 127)


def test_streamed_rows_close_together_are_read_by_one_request(
    tmp_path: Path, store: RemotePath
) -> None:
    table = write_table(tmp_path, "t", VALUES, "float32", [])
    uploaded(tmp_path, store)
    streamed = StreamedTable(table, located_in(store))

    def requests(*rows: int) -> int:
        before = CountedStore.requests[tmp_path.name]
        np.testing.assert_array_equal(streamed.gather(np.array(rows)), VALUES[list(rows)])
        return CountedStore.requests[tmp_path.name] - before

    gap = (16 << 10) // (4 * DIM)  # rows between two that are still read together
    assert requests(0, 1, 2) == 1
    assert requests(0, gap + 1) == 1
    assert requests(0, gap + 2) == 2
    assert requests(0, 1, 1000, 1001, 2000) == 3


def test_streamed_rows_of_an_object_that_was_cut_short_are_an_error(
    tmp_path: Path, store: RemotePath
) -> None:
    table = write_table(tmp_path, "t", VALUES, "float32", [])
    (segment,) = table.segments
    (tmp_path / segment.file).write_bytes(VALUES.tobytes()[:-1])
    uploaded(tmp_path, store)
    streamed = StreamedTable(table, located_in(store))
    np.testing.assert_array_equal(streamed.gather(np.array([ROWS - 2])), VALUES[-2:-1])
    with pytest.raises(DigestMismatch, match="has 63 of 64 bytes from row 4999 on"):
        streamed.gather(np.array([ROWS - 1]))


def test_streamed_rows_amid_other_bytes_of_an_object_are_found(
    tmp_path: Path, store: RemotePath
) -> None:
    table = write_linked_table(tmp_path, "t", VALUES, [1000])
    uploaded(tmp_path, store)
    streamed = StreamedTable(table, located_in(store))
    wanted = np.array([999, 1000, 0, ROWS - 1])
    np.testing.assert_array_equal(streamed.gather(wanted), VALUES[wanted])
    assert (streamed.rows, streamed.dim, streamed.dtype) == (ROWS, DIM, "float32")
    assert streamed.gather(np.empty(0, np.int64)).shape == (0, DIM)


def test_streamed_rows_are_read_in_ranges_that_end_at_the_same_places(
    tmp_path: Path, store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_rows, "_RANGE_BYTES", 10 * 4 * DIM)
    table = write_table(tmp_path, "t", VALUES, "float32", [])
    uploaded(tmp_path, store)
    streamed = StreamedTable(table, located_in(store))

    def requests(first: int, end: int) -> int:
        before = CountedStore.requests[tmp_path.name]
        rows = np.arange(first, end)
        np.testing.assert_array_equal(streamed.gather(rows), VALUES[rows])
        return CountedStore.requests[tmp_path.name] - before

    assert requests(0, 10) == requests(20, 30) == 1
    assert requests(0, 11) == requests(5, 15) == 2
    assert requests(0, 100) == 10

"""Arrays that are decoded into files, where the segments of a table cut their chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bundle.tables import segments
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layouts import Layout, Mod, Plain, SparseCore
from export.checkpoint.variables import ArrayStore, Entry, Slice
from export.errors import CheckpointError
from export.tables.plan import WriteOptions
from export.tables.tasks import SumTask
from export.tables.unpacking import check_whole, cuts_chunks, unpack, whole_chunks, with_sums

ARRAY = ArrayStore("{}", (8, 4), file="array")
ENTRY = Entry("k", "float32", (20, 4), (), ARRAY)


def table(layout: Layout, rows: int = 20) -> TableSpec:
    return TableSpec("t", "k", rows, 4, "float32", layout, (20, 4), "named", "", 3, 1, 320)


def test_array_that_lacks_chunks_is_rejected() -> None:
    check_whole("t", ARRAY)
    with pytest.raises(CheckpointError, match=r"table 't': 1 of its chunks are not stored \(array"):
        check_whole("t", ARRAY._replace(absent=1))


@pytest.mark.parametrize(
    ("layout", "segment_rows", "cuts"),
    [
        (Plain(), None, False),
        (Plain(), 8, False),
        (Plain(), 16, False),
        (Plain(), 7, True),
        (Plain(), 9, True),
        (Plain(), 12, True),
        (Plain(), 19, True),
        (Plain(), 20, False),  # a single segment
        (Plain(), 21, False),
        (Mod((0, 10)), None, True),
        (Mod((0,)), 7, False),
        (SparseCore(2, 10, 0, 0), 8, True),
        (SparseCore(1, 20, 0, 0), 7, False),
    ],
)
def test_segments_cut_chunks_unless_they_end_with_them(
    layout: Layout, segment_rows: int | None, cuts: bool
) -> None:
    assert cuts_chunks(table(layout), ARRAY, WriteOptions(segment_rows)) is cuts


@pytest.mark.parametrize(
    ("rows_max", "rows"), [(1, 8), (7, 8), (8, 8), (15, 8), (16, 16), (31, 24)]
)
def test_segments_of_whole_chunks_hold_at_least_one(rows_max: int, rows: int) -> None:
    assert whole_chunks(rows_max, ARRAY) == rows


def test_array_is_decoded_into_files_of_whole_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "segment_rows", lambda row_bytes: 160 // row_bytes)
    unpacked, tasks = unpack(ENTRY, 3, tmp_path, 1 << 30)
    files = [f"unpacked/00003/rows-0000{number}.bin" for number in range(3)]
    assert unpacked.array is None
    assert unpacked.slices == (
        Slice(f"{tmp_path}/{files[0]}", 0, 8 * 16, None, (0, 0), (8, 4)),
        Slice(f"{tmp_path}/{files[1]}", 0, 8 * 16, None, (8, 0), (8, 4)),
        Slice(f"{tmp_path}/{files[2]}", 0, 4 * 16, None, (16, 0), (4, 4)),
    )
    assert [(task.file, task.first_row, task.rows) for task in tasks] == [
        (files[0], 0, 8),
        (files[1], 8, 8),
        (files[2], 16, 4),
    ]
    for task in tasks:
        # Rows are bytes, whatever they hold.
        assert (task.dim, task.dtype, task.written_dtype) == (16, "int8", "int8")
        assert (task.stored, task.array, task.slices) == ((20, 16), ARRAY, ())
        assert (task.key, task.table, task.block_bytes) == ("k", "", 1 << 20)
        assert task.as_stored


def test_slices_of_decoded_files_get_the_checksums_of_these_files() -> None:
    parts = tuple(Slice(file, 0, 16, 5, (0, 0), (1, 4)) for file in ("a", "b"))
    task: Any = SumTask("rest", "k", 4, 4, ((0, 2),), parts, 64)
    (summed,) = with_sums([task], {"b": 7, "c": 9})
    assert [part.crc32c for part in summed.slices] == [5, 7]
    assert [part.file for part in summed.slices] == ["a", "b"]

"""Plans: tables -> segments -> tasks; what is refused before anything is touched."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory, StatedTable, Statements
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.variables import Entry, Listing, Slice
from export.errors import CheckpointError, DestinationError, NotConvertible
from export.jobs.space import check_plan_fits
from export.tables.plan import UPLOADS, Writing, plan_tables
from tests.export.checkpoint.tensor_bundles import write_bundle


class Opened(NamedTuple):
    checkpoint: Checkpoint
    inventory: Inventory


def opened(directory: Path, tables: dict[str, Any], **how: Any) -> Opened:
    write_bundle(directory / "ckpt-1", tables, **how)
    checkpoint = open_checkpoint(directory / "ckpt-1")
    return Opened(checkpoint, recognise(checkpoint, {name: name for name in tables}))


def values(rows: int, dim: int = 4) -> np.ndarray[Any, Any]:
    return np.arange(rows * dim, dtype=np.float32).reshape(rows, dim)


def test_plan_tables_rows_are_cut_into_segments_that_follow_one_another(tmp_path: Path) -> None:
    plan = plan_tables(
        *opened(tmp_path, {"a": values(10), "b": values(3)}), tmp_path, writing={"a": Writing(4)}
    )
    assert [(task.file, task.first_row, task.rows) for task in plan.tasks] == [
        ("tables/a/rows-00000-of-00003.bin", 0, 4),
        ("tables/a/rows-00001-of-00003.bin", 4, 4),
        ("tables/a/rows-00002-of-00003.bin", 8, 2),
        ("tables/b/rows-00000-of-00001.bin", 0, 3),
    ]
    assert plan.bytes == 13 * 16
    assert len({task.step for task in plan.tasks}) == 4


def test_plan_tables_of_streamed_segments_holds_those_of_workers_and_uploads(
    tmp_path: Path,
) -> None:
    tables = opened(tmp_path, {"a": values(100), "b": values(3)})
    plan = plan_tables(*tables, tmp_path, writing={"a": Writing(5, streamed=True)}, workers=2)
    segments_held = 2 + 1 + UPLOADS  # one more waits for an upload
    assert plan.bytes == 103 * 16
    assert plan.local_bytes == segments_held * 5 * 16 + 3 * 16
    few = plan_tables(*tables, tmp_path, writing={"a": Writing(50, streamed=True)}, workers=2)
    assert few.local_bytes == few.bytes


def test_plan_tables_of_a_selection_plans_only_these(tmp_path: Path) -> None:
    every = opened(tmp_path, {"a": values(2), "b": values(2), "c": values(2)})
    plan = plan_tables(*every, tmp_path, tables=["c", "a", "c"])
    assert [table.spec.name for table in plan.tables] == ["a", "c"]
    for wrong in ({"tables": ["d"]}, {"writing": {"d": Writing(3)}}):
        with pytest.raises(NotConvertible, match="no table 'd'"):
            plan_tables(*every, tmp_path, **wrong)


def test_plan_tables_slices_with_a_gap_are_refused(tmp_path: Path) -> None:
    given = opened(tmp_path, {"a": values(10)}, boxes={"a": [[(0, 3), (0, -1)], [(4, 6), (0, -1)]]})
    with pytest.raises(CheckpointError, match=r"table 'a'.*at row 3"):
        plan_tables(*given, tmp_path)


def claimed(directory: Path, terabytes: int) -> Opened:
    """A table of many terabytes, of which nothing is read."""
    rows = terabytes << 32
    dim = 64
    size = rows * dim * 4
    part = Slice(str(directory / "data"), 0, size, 0, (0, 0), (rows, dim))
    listing = Listing("crc32c:00000000", {"a": Entry("a", "float32", (rows, dim), (part,))})
    checkpoint = Checkpoint(directory / "ckpt-1", listing)
    return Opened(checkpoint, recognise(checkpoint, {"a": "a"}))


@pytest.mark.parametrize(
    ("terabytes", "way"),
    [(32, Writing()), (80, Writing(dtype="bfloat16")), (200, Writing(link=True))],
)
def test_plan_tables_as_large_as_a_manifest_can_describe_are_planned(
    tmp_path: Path, terabytes: int, way: Writing
) -> None:
    assert plan_tables(*claimed(tmp_path, terabytes), tmp_path, writing={"a": way}).tables


@pytest.mark.parametrize("segment_rows", [None, 1 << 30])
def test_plan_tables_larger_than_a_manifest_can_describe_are_refused(
    tmp_path: Path, segment_rows: int | None
) -> None:
    table = claimed(tmp_path, 50)
    with pytest.raises(NotConvertible, match=r"need 13107200 checksums, .* write smaller rows"):
        plan_tables(*table, tmp_path, writing={"a": Writing(segment_rows)})


def chunked(directory: Path, rows: int, chunk_rows: int) -> Opened:
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset(
            "user/embeddings", data=np.zeros((rows, 16), "f4"), chunks=(chunk_rows, 16)
        )
    checkpoint = open_checkpoint(directory / "a.h5")
    return Opened(checkpoint, recognise(checkpoint))


def test_plan_tables_chunk_larger_than_the_budget_is_planned_with_what_it_holds(
    tmp_path: Path,
) -> None:
    table = chunked(tmp_path, 1 << 21, 1 << 20)
    plan = plan_tables(*table, tmp_path, budget_bytes=32 << 20)
    (task,) = plan.tasks
    assert plan.peak_memory_bytes > 3 * (64 << 20)
    assert (task.array, task.slices) == (table.checkpoint.entries["user/embeddings"].array, ())


def test_plan_tables_table_of_one_row_is_planned(tmp_path: Path) -> None:
    (task,) = plan_tables(*opened(tmp_path, {"a": values(1, 1)}), tmp_path).tasks
    assert (task.first_row, task.rows, task.dim) == (0, 1, 1)


def test_plan_tables_wide_rows_that_are_converted_are_planned_with_their_copies(
    tmp_path: Path,
) -> None:
    table = opened(tmp_path, {"a": values(2, 1 << 18)})
    as_stored = plan_tables(*table, tmp_path)
    converted = plan_tables(*table, tmp_path, writing={"a": Writing(dtype="bfloat16")})
    copies = 16 * (1 << 18) * 8  # of one row, as float64
    assert converted.peak_memory_bytes - as_stored.peak_memory_bytes == copies


@pytest.mark.parametrize(
    ("segment_rows", "unpacked", "segments"),
    [
        (None, 0, [60]),
        (60, 0, [56, 4]),
        (100, 0, [60]),
        (16, 0, [16, 16, 16, 12]),
        (24, 0, [24, 24, 12]),  # no multiple of the 16 columns of a chunk
        (17, 1, [17, 17, 17, 9]),
        (20, 1, [20, 20, 20]),
        (4, 1, [4] * 15),
    ],
)
def test_plan_tables_array_is_unpacked_where_segments_cut_its_chunks(
    tmp_path: Path, segment_rows: int | None, unpacked: int, segments: list[int]
) -> None:
    table = chunked(tmp_path, 60, 8)
    plan = plan_tables(*table, tmp_path, writing={"user": Writing(segment_rows)})
    assert [task.rows for task in plan.tasks] == segments
    assert plan.unpacked_bytes == unpacked * 60 * 64
    assert [task.array is None for task in plan.tasks] == [bool(unpacked)] * len(segments)


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=count))


def test_check_space_plan_larger_than_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_tables(*opened(tmp_path, {"a": values(4000)}), tmp_path / ".staging-1")
    check_plan_fits(plan, tmp_path / "not" / "yet" / "there")
    free(monkeypatch, 32_000)
    with pytest.raises(
        DestinationError,
        match=r"31\.2 KiB free, the tables need 62\.5 KiB: 31\.2 KiB more; free some",
    ):
        check_plan_fits(plan, tmp_path)
    segment = tmp_path / ".staging-1" / plan.tasks[0].file  # of an earlier run
    segment.parent.mkdir(parents=True)
    segment.write_bytes(bytes(range(1, 251)) * 128)
    check_plan_fits(plan, tmp_path)


def test_check_space_counts_unpacked_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, _ = chunked(tmp_path, 64, 8)
    layout = StatedTable(key="user/embeddings", kind="sparse_core", rows=60, dim=16, cores=4)
    inventory = recognise(checkpoint, Statements(layouts={"user": layout}))
    plan = plan_tables(
        checkpoint, inventory, tmp_path / "staged", writing={"user": Writing(20)}, workers=2
    )
    assert plan.unpacked_bytes == 64 * 64
    free(monkeypatch, plan.bytes + plan.unpacked_bytes)
    check_plan_fits(plan, tmp_path)
    free(monkeypatch, plan.bytes + plan.unpacked_bytes - 1)
    with pytest.raises(DestinationError, match="1 B more; free some"):
        check_plan_fits(plan, tmp_path)

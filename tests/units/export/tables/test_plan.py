"""Plans: tables -> segments -> tasks; what is rejected before anything is touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

from bundle.format.manifest import segments_bytes
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import (
    Inventory,
    RejectedTable,
    StatedTable,
    Statements,
    TableSpec,
)
from export.checkpoint.layouts import Plain
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.variables import Entry, Listing, Slice
from export.errors import CheckpointError, DestinationError, NotConvertible, UsageError
from export.jobs.space import check_plan_fits
from export.tables import plan as planning
from export.tables.conversions import ErrorLimits
from export.tables.plan import UPLOADS, WriteOptions, check_exportable, plan_sums, plan_tables
from export.tables.tasks import WORKER_BYTES
from tests.units.export.checkpoint.tensor_bundles import write_bundle


class Opened(NamedTuple):
    checkpoint: Checkpoint
    inventory: Inventory


def opened(directory: Path, tables: dict[str, Any], **options: Any) -> Opened:
    write_bundle(directory / "ckpt-1", tables, **options)
    checkpoint = open_checkpoint(directory / "ckpt-1")
    return Opened(checkpoint, recognize(checkpoint, {name: name for name in tables}))


def values(rows: int, dim: int = 4) -> np.ndarray[Any, Any]:
    return np.arange(rows * dim, dtype=np.float32).reshape(rows, dim)


def test_plan_tables_rows_are_cut_into_segments_that_follow_one_another(tmp_path: Path) -> None:
    plan = plan_tables(
        *opened(tmp_path, {"a": values(10), "b": values(3)}),
        tmp_path,
        write_options={"a": WriteOptions(4)},
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
    plan = plan_tables(
        *tables, tmp_path, write_options={"a": WriteOptions(5, streamed=True)}, workers=2
    )
    segments_held = 2 + 1 + UPLOADS  # one more waits for an upload
    assert plan.bytes == 103 * 16
    assert plan.local_bytes == segments_held * 5 * 16 + 3 * 16
    small_plan = plan_tables(
        *tables, tmp_path, write_options={"a": WriteOptions(50, streamed=True)}, workers=2
    )
    assert small_plan.local_bytes == small_plan.bytes


def test_plan_tables_of_a_selection_plans_only_these(tmp_path: Path) -> None:
    every = opened(tmp_path, {"a": values(2), "b": values(2), "c": values(2)})
    plan = plan_tables(*every, tmp_path, tables=["c", "a", "c"])
    assert [table.spec.name for table in plan.tables] == ["a", "c"]
    for wrong in ({"tables": ["d"]}, {"write_options": {"d": WriteOptions(3)}}):
        with pytest.raises(NotConvertible, match="no table 'd'"):
            plan_tables(*every, tmp_path, **wrong)


def test_plan_tables_slices_with_a_gap_are_rejected(tmp_path: Path) -> None:
    source = opened(
        tmp_path, {"a": values(10)}, boxes={"a": [[(0, 3), (0, -1)], [(4, 6), (0, -1)]]}
    )
    with pytest.raises(CheckpointError, match=r"table 'a'.*at row 3"):
        plan_tables(*source, tmp_path)


def claimed(directory: Path, terabytes: int) -> Opened:
    """A table of many terabytes, of which nothing is read."""
    rows = terabytes << 32
    dim = 64
    size = rows * dim * 4
    part = Slice(str(directory / "data"), 0, size, 0, (0, 0), (rows, dim))
    listing = Listing("crc32c:00000000", {"a": Entry("a", "float32", (rows, dim), (part,))})
    checkpoint = Checkpoint(directory / "ckpt-1", listing)
    return Opened(checkpoint, recognize(checkpoint, {"a": "a"}))


@pytest.mark.parametrize(
    ("terabytes", "options"),
    [(32, WriteOptions()), (80, WriteOptions(dtype="bfloat16")), (200, WriteOptions(link=True))],
)
def test_plan_tables_as_large_as_a_manifest_can_describe_are_planned(
    tmp_path: Path, terabytes: int, options: WriteOptions
) -> None:
    assert plan_tables(*claimed(tmp_path, terabytes), tmp_path, write_options={"a": options}).tables


@pytest.mark.parametrize("segment_rows", [None, 1 << 30])
def test_plan_tables_larger_than_a_manifest_can_describe_are_rejected(
    tmp_path: Path, segment_rows: int | None
) -> None:
    table = claimed(tmp_path, 50)
    with pytest.raises(NotConvertible, match=r"need 13107200 checksums, .* write smaller rows"):
        plan_tables(*table, tmp_path, write_options={"a": WriteOptions(segment_rows)})


def chunked(directory: Path, rows: int, chunk_rows: int) -> Opened:
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset(
            "user/embeddings", data=np.zeros((rows, 16), "f4"), chunks=(chunk_rows, 16)
        )
    checkpoint = open_checkpoint(directory / "a.h5")
    return Opened(checkpoint, recognize(checkpoint))


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
    converted = plan_tables(*table, tmp_path, write_options={"a": WriteOptions(dtype="bfloat16")})
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
    plan = plan_tables(*table, tmp_path, write_options={"user": WriteOptions(segment_rows)})
    assert [task.rows for task in plan.tasks] == segments
    assert plan.unpacked_bytes == unpacked * 60 * 64
    assert [task.array is None for task in plan.tasks] == [bool(unpacked)] * len(segments)


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=count))


def test_check_space_plan_larger_than_the_disk_is_rejected(
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
    inventory = recognize(checkpoint, Statements(layouts={"user": layout}))
    plan = plan_tables(
        checkpoint,
        inventory,
        tmp_path / "staged",
        write_options={"user": WriteOptions(20)},
        workers=2,
    )
    assert plan.unpacked_bytes == 64 * 64
    free(monkeypatch, plan.bytes + plan.unpacked_bytes)
    check_plan_fits(plan, tmp_path)
    free(monkeypatch, plan.bytes + plan.unpacked_bytes - 1)
    with pytest.raises(DestinationError, match="1 B more; free some"):
        check_plan_fits(plan, tmp_path)


MIB = 1 << 20
BLOCKS = 2 * MIB
CONVERTING = 14 * MIB


def test_plan_tells_what_it_would_read_and_write(tmp_path: Path) -> None:
    cut = [[(0, 6), (0, -1)], [(6, 4), (0, -1)]]
    source = opened(
        tmp_path,
        {"a": values(10), "b": values(3), "c": values(6).astype(np.float64)},
        boxes={"a": cut},
    )
    write_options = {"a": WriteOptions(4), "b": WriteOptions(link=True)}
    plan = plan_tables(*source, tmp_path / "out", write_options=write_options, workers=2)
    note = source.inventory.table("a").note
    assert note.startswith("saved by TF1 in slices")
    linked = (
        "its rows are linked and not read: NaN and infinities are found only in rows that are "
        "compared (all of them with --full)"
    )
    layout = {"layout": "plain", "stated": False, "dim": 4, "dtype": "float32"}
    layout["trained_ids"] = None
    copied = layout | {"linked": False}
    assert plan.to_json() == {
        "checkpoint": "ckpt-1",
        "tables": {
            "a": copied
            | {"key": "a", "rows": 10, "bytes": 160, "slices": 2, "segments": 3, "note": note},
            "b": layout
            | {"key": "b", "rows": 3, "bytes": 48, "slices": 1, "segments": 1, "note": linked}
            | {"linked": True},
            "c": copied
            | {"key": "c", "rows": 6, "bytes": 96, "slices": 1, "segments": 1}
            | {"note": "its rows are converted from float64 to float32"},
        },
        "read_bytes": 160 + 192,
        "written_bytes": 160 + 96,
        "older_version": None,
        "linked_bytes": 48,
        "unpacked_bytes": 0,
        "local_bytes": 160 + 96,
        "left_out_bytes": 0,
        "files": 3 + 1 + 1,
        "tasks": 3 + 1,
        "workers": 2,
        "peak_memory_bytes": 2 * (WORKER_BYTES + BLOCKS) + CONVERTING,
    }
    assert plan.notes == (
        f"table a: {note}",
        f"table b: {linked}",
        "table c: its rows are converted from float64 to float32",
    )
    assert plan.moved_bytes == 160 + 96
    assert [len(task.slices) for task in plan.tasks] == [1, 2, 1, 1]


def test_plan_tables_says_of_each_how_it_is_written(tmp_path: Path) -> None:
    source = opened(tmp_path, {"a": values(4), "b": values(3).astype(np.float64)})
    limits = ErrorLimits(max_abs=0.5)
    plan = plan_tables(
        *source,
        tmp_path,
        write_options={
            "a": WriteOptions(dtype="int8", limits=limits),
            "b": WriteOptions(dtype="float32"),
        },
    )
    first, second = plan.tables
    assert (first.dtype, first.options.limits, first.options.streamed) == ("int8", limits, False)
    assert (first.bytes, first.segments, first.notes) == (4 * (4 + 4), 1, "")
    assert [task.scales for task in plan.tasks] == ["tables/a/scales-00000-of-00001.bin", None]
    assert (second.dtype, second.notes) == ("float32", "")  # as requested


def table(name: str, rows: int = 3, dim: int = 2, dtype: str = "float32") -> TableSpec:
    stored = (rows, dim)
    return TableSpec(name, "k", rows, dim, dtype, Plain(), stored, "named", "", 1, 1, 24)


@pytest.mark.parametrize(
    ("spec", "options", "problem"),
    [
        (
            table("a", dtype="int32"),
            WriteOptions(),
            "table 'a' holds int32 values; if they are an emb",
        ),
        (table("a", dtype="bool"), WriteOptions(dtype="float32"), "table 'a' holds bool values"),
        (table("a b"), WriteOptions(), r"table 'a b' cannot be called so .* --table NAME=a b"),
        (table("a", rows=0), WriteOptions(), r"table 'a' of shape \[0, 2\] holds nothing"),
        (table("a", dim=0), WriteOptions(), r"table 'a' of shape \[3, 0\] holds nothing"),
    ],
)
def test_check_exportable_rejects_what_cannot_be_in_a_bundle(
    spec: TableSpec, options: WriteOptions, problem: str
) -> None:
    check_exportable(table("a", rows=1, dim=1))
    check_exportable(table("a", dtype="int32"), WriteOptions(dtype="float32"))
    with pytest.raises(NotConvertible, match=problem):
        check_exportable(spec, options)


def test_plan_tables_checks_each_before_it_is_planned(tmp_path: Path) -> None:
    checkpoint, inventory = opened(tmp_path, {"a": values(4)})
    renamed = replace(inventory, tables=(replace(inventory.tables[0], name="a b"),))
    with pytest.raises(NotConvertible, match="table 'a b' cannot be called so in a bundle"):
        plan_tables(checkpoint, renamed, tmp_path)


def test_plan_tables_that_metadata_names_but_cannot_be_exported_are_rejected_unless_left_out(
    tmp_path: Path,
) -> None:
    checkpoint, inventory = opened(tmp_path, {"a": values(4)})
    partly = replace(inventory, rejected=(RejectedTable("b", "b", "it has three axes"),))
    with pytest.raises(
        NotConvertible, match=r"'b' in checkpoint ckpt-1 cannot be exp.* three axes"
    ):
        plan_tables(checkpoint, partly, tmp_path)
    assert len(plan_tables(checkpoint, partly, tmp_path, tables=["a"]).tables) == 1

    none = replace(inventory, tables=())
    with pytest.raises(NotConvertible, match="no table is recognized in checkpoint ckpt-1; "):
        plan_tables(checkpoint, none, tmp_path)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"crc32c": None}, "its storage keeps no checksums"),
        ({"file": "s3://bucket/data"}, "the checkpoint is not on this machine's disks"),
    ],
)
def test_plan_tables_that_cannot_be_linked_from_their_storage_are_copied(
    tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    checkpoint, inventory = opened(tmp_path, {"a": values(4)})
    entry = checkpoint.entries["a"]
    moved = entry._replace(slices=(entry.slices[0]._replace(**changed),))
    checkpoint = Checkpoint(checkpoint.prefix, Listing("crc32c:00000000", {"a": moved}))
    plan = plan_tables(
        checkpoint, inventory, tmp_path, write_options={"a": WriteOptions(link=True)}
    )
    assert plan.tables[0].notes == f"it is copied, not linked: {reason}"
    assert (len(plan.tasks), plan.linked_bytes) == (1, 0)


def test_plan_tables_of_an_array_are_copied_from_its_chunks_and_need_all_of_them(
    tmp_path: Path,
) -> None:
    checkpoint, inventory = chunked(tmp_path, 60, 8)
    plan = plan_tables(
        checkpoint, inventory, tmp_path, write_options={"user": WriteOptions(link=True)}
    )
    assert plan.tables[0].notes == "it is copied, not linked: its values lie in encoded chunks"
    assert (len(plan.tasks), plan.tasks[0].slices, plan.sum_tasks) == (1, (), ())

    entry = checkpoint.entries["user/embeddings"]
    assert entry.array is not None
    lost = entry._replace(array=entry.array._replace(absent=2))
    partly = Checkpoint(checkpoint.prefix, Listing("", {"user/embeddings": lost}))
    with pytest.raises(CheckpointError, match="table 'user': 2 of its chunks are not stored"):
        plan_tables(partly, inventory, tmp_path)


def test_plan_tables_of_more_segments_than_are_written_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SEGMENTS_MAX", 5)
    source = opened(tmp_path, {"a": values(10)})
    assert len(plan_tables(*source, tmp_path, write_options={"a": WriteOptions(2)}).tasks) == 5
    with pytest.raises(
        UsageError, match="'a' of 10 rows would become 10 files of 1 rows; at most 5 are written"
    ):
        plan_tables(*source, tmp_path, write_options={"a": WriteOptions(1)})


def test_plan_tables_as_large_as_readers_of_a_manifest_take_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opened(tmp_path, {"a": values(10)})
    write_options = {"a": WriteOptions(4, dtype="int8")}  # three segments, with scales
    monkeypatch.setattr(planning, "MANIFEST_BYTES_MAX", segments_bytes(6, 6))
    assert len(plan_tables(*source, tmp_path, write_options=write_options).tasks) == 3
    monkeypatch.setattr(planning, "MANIFEST_BYTES_MAX", segments_bytes(6, 6) - 1)
    with pytest.raises(NotConvertible, match=r"6 checksums, .* of the 80 bytes .* and 6 segments"):
        plan_tables(*source, tmp_path, write_options=write_options)


def on_cores(directory: Path, rows: int, **options: Any) -> Any:
    """Plans a table on 4 cores, of 16 rows each."""
    write_bundle(directory / "ckpt-1", {"t": values(64)})
    checkpoint = open_checkpoint(directory / "ckpt-1")
    layout = StatedTable(key="t", kind="sparse_core", rows=rows, dim=4, cores=4)
    inventory = recognize(checkpoint, Statements(layouts={"t": layout}))
    return plan_tables(
        checkpoint, inventory, directory, write_options={"t": WriteOptions(**options)}
    )


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"segment_bytes": 10 * 16}, [8] * 7 + [4]),  # whole rounds of the cores
        ({"segment_bytes": 4 * 16}, [4] * 15),
        ({"segment_bytes": 3 * 16}, [3] * 20),  # less than a round
        ({"segment_rows": 10}, [10] * 6),
        ({}, [60]),
    ],
)
def test_plan_tables_on_cores_are_cut_where_a_round_of_rows_ends(
    tmp_path: Path, options: dict[str, int], rows: list[int]
) -> None:
    assert [task.rows for task in on_cores(tmp_path, 60, **options).tasks] == rows


def test_plan_tables_reads_the_rows_of_a_variable_that_no_table_takes(tmp_path: Path) -> None:
    plan = on_cores(tmp_path, 58)
    (sum_task,) = plan.sum_tasks
    assert sum_task.ranges == ((15, 16), (31, 32), (46, 48), (62, 64))
    assert (sum_task.step, sum_task.key, sum_task.columns, sum_task.itemsize) == (
        "rest of t 00000",
        "t",
        4,
        4,
    )
    assert (sum_task.bytes, plan.read_bytes, plan.moved_bytes) == (6 * 16, 64 * 16, 64 * 16)
    assert on_cores(tmp_path, 64).sum_tasks == ()


def test_sum_tasks_are_cut_into_batches_and_know_the_slices_that_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SUM_TASK_BYTES", 5 * 16)
    parts = [[(0, 12), (0, -1)], [(12, 5), (0, -1)], [(17, 5), (0, -1)]]
    checkpoint, _ = opened(tmp_path, {"a": values(22)}, boxes={"a": parts})
    tasks = plan_sums(checkpoint.entries["a"], [(0, 3), (10, 22)], 64)
    assert [task.ranges for task in tasks] == [((0, 3), (10, 12)), ((12, 17),), ((17, 22),)]
    assert [[part.starts[0] for part in task.slices] for task in tasks] == [[0], [12], [17]]
    assert [task.step for task in tasks] == [f"rest of a {number:05d}" for number in range(3)]
    assert {task.block_bytes for task in tasks} == {32}

    monkeypatch.setattr(planning, "SUM_TASK_BYTES", 1)
    assert len(plan_sums(checkpoint.entries["a"], [(0, 3)], 64)) == 3  # a row each

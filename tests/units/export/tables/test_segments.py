"""The copy: every layout of slices, bit for bit; damage, deletion and full disks; memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
import pytest

from benchmarks.exporter.big_checkpoints import write_plain
from bundle.format.manifest import NonFiniteRows
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.source_sums import SourceSum
from export.errors import CheckpointError, DestinationError
from export.tables.plan import ExportPlan, WriteOptions, plan_sums, plan_tables
from export.tables.segments import (
    Receipt,
    carry_out,
    check_sources,
    copy_rows,
    is_written,
    manifest_table,
    read_sources,
    sources_of,
)
from tests.units.export.checkpoint.tensor_bundles import write_bundle

ROWS = 101
DIM = 6
VALUES = np.random.default_rng(3).standard_normal((ROWS, DIM)).astype(np.float32)
CUTS: dict[str, Any] = {
    "whole": None,
    "rows": [[(34, 67), (0, -1)], [(0, 33), (0, -1)], [(33, 1), (0, -1)]],
    "columns": [[(0, -1), (4, 2)], [(0, -1), (0, 4)]],
    "bricks": [[(20, 81), (0, 3)], [(0, 20), (0, 3)], [(0, 9), (3, 3)], [(9, 92), (3, 3)]],
}


def planned(
    directory: Path,
    cut: str = "whole",
    values: Any = VALUES,
    segment_rows: int | None = None,
    **options: Any,
) -> ExportPlan:
    boxes = {"t": CUTS[cut]} if CUTS[cut] else None
    write_bundle(
        directory / "ckpt", {"other": np.zeros(3, np.float32), "t": values}, boxes=boxes, files=2
    )
    checkpoint = open_checkpoint(directory)
    inventory = recognize(checkpoint, {"t": "t"})
    return plan_tables(
        checkpoint,
        inventory,
        directory / "out",
        write_options={"t": WriteOptions(segment_rows)},
        **options,
    )


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("segment_rows", [None, 40, 1])
@pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16])
def test_copy_rows_any_cut_writes_the_table_bit_for_bit(
    tmp_path: Path, cut: str, segment_rows: int | None, dtype: Any
) -> None:
    values = VALUES.astype(dtype)
    plan = planned(
        tmp_path, cut, values, segment_rows, budget_bytes=1 << 20 if segment_rows else 64
    )
    receipts = [copy_rows(task) for task in reversed(plan.tasks)]
    check_sources(sources_of(plan), receipts)
    page = manifest_table(plan.tables[0], receipts)
    stored = [Path(plan.tasks[0].directory, segment.file).read_bytes() for segment in page.segments]
    assert b"".join(stored) == values.tobytes()
    assert [segment.crc32c for segment in page.segments] == [
        google_crc32c.value(segment) for segment in stored
    ]
    assert (page.rows, page.dim, page.dtype) == (ROWS, DIM, values.dtype.name)


def test_copy_rows_closes_what_it_opened(tmp_path: Path) -> None:
    plan = planned(tmp_path, "bricks")
    before = set(os.listdir("/proc/self/fd"))
    for task in plan.tasks:
        copy_rows(task)
    assert set(os.listdir("/proc/self/fd")) == before


def damage(directory: Path, offset: int, file: str = "ckpt.data-00001-of-00002") -> None:
    """Changes a byte as a failing disk does: without a new time."""
    data = bytearray((directory / file).read_bytes())
    before = (directory / file).stat()
    data[offset] ^= 0x40
    (directory / file).write_bytes(data)
    os.utime(directory / file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_copy_rows_of_a_data_file_that_changed_after_the_plan_is_rejected(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    name = plan.tasks[0].slices[0].file
    Path(name).write_bytes(Path(name).read_bytes())
    with pytest.raises(CheckpointError, match=f"{name} changed while it was read"):
        copy_rows(plan.tasks[0])
    assert not (tmp_path / "out" / plan.tasks[0].file).exists()


def test_copy_rows_damaged_slice_within_a_task_leaves_no_segment(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    damage(tmp_path, 1000)
    with pytest.raises(
        CheckpointError,
        match=r"'t' \('t'\): rows 0 to 101 of the stored .*ckpt\.data-00001-of-00002",
    ):
        copy_rows(plan.tasks[0])
    assert list((tmp_path / "out").rglob("*.bin")) == []


@pytest.mark.parametrize("cut", ["whole", "columns"])
def test_check_sources_finds_a_damaged_slice_that_tasks_share(tmp_path: Path, cut: str) -> None:
    plan = planned(tmp_path, cut, segment_rows=20)
    damage(tmp_path, 700)
    receipts = [copy_rows(task) for task in plan.tasks]
    with pytest.raises(CheckpointError, match="rows 0 to 101 of the stored variable do not match"):
        check_sources(sources_of(plan), receipts)


def test_copy_rows_destination_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    (tmp_path / "out").write_text("a file where a directory belongs")
    with pytest.raises(DestinationError, match="rows-00000-of-00001"):
        copy_rows(plan.tasks[0])


MEMORY_PROBE = """
import json, pathlib, sys
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.inventory.recognition import recognize
from export.tables.plan import WriteOptions, plan_tables
from export.tables.segments import check_sources, copy_rows, manifest_table, sources_of
from export.verify.table_rows import verify_tables

def peak():  # of this program alone: getrusage would return the peak of the parent, if larger
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10

before = peak()
source, out = map(pathlib.Path, sys.argv[1:])
checkpoint = open_checkpoint(source)
inventory = recognize(checkpoint, {"t": "t"})
plan = plan_tables(checkpoint, inventory, out, write_options={"t": WriteOptions(700_000)})
receipts = [copy_rows(task) for task in plan.tasks]
check_sources(sources_of(plan), receipts)
tables = {"t": manifest_table(plan.tables[0], receipts)}
assert verify_tables(checkpoint, out, tables)["t"].rows_compared == 4096
assert "tensorflow" not in sys.modules
print(json.dumps({"before": before, "grown": peak() - before, "planned": plan.peak_memory_bytes}))
"""


def test_copy_rows_table_of_512_mib_needs_little_memory_and_no_tensorflow(tmp_path: Path) -> None:
    source = write_plain(tmp_path / "c", 512 << 20, hole=True).directory
    command = [sys.executable, "-c", MEMORY_PROBE, str(source), str(tmp_path / "out")]
    metadata = json.loads(
        subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    )
    for segment in (tmp_path / "out").rglob("*.bin"):
        segment.unlink()
    assert metadata["grown"] < min(150 << 20, metadata["planned"])
    assert metadata["before"] > 10 << 20


def test_receipt_lists_the_files_that_its_task_wrote_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path, segment_rows=60)
    (first, second) = plan.tasks
    receipt = copy_rows(second)
    (file,) = receipt.files(second)
    assert (file.path, file.bytes) == ("tables/t/rows-00001-of-00002.bin", 41 * DIM * 4)
    assert file.crc32c == google_crc32c.value(VALUES[60:].tobytes())
    # Other tasks fill the file, too.
    assert receipt.files(replace(second, offset=0)) == []

    as_int8 = replace(first, written_dtype="int8", scales="scales.bin")
    rows, scales = copy_rows(as_int8).files(as_int8)
    assert (rows.path, rows.bytes) == (first.file, 60 * DIM)
    assert (scales.path, scales.bytes) == ("scales.bin", 60 * 4)


def padded(directory: Path) -> ExportPlan:
    """Plans the first 40 rows of a variable of 101 in slices."""
    write_bundle(directory / "ckpt", {"t": VALUES}, boxes={"t": CUTS["bricks"]})
    checkpoint = open_checkpoint(directory)
    layout = StatedTable(key="t", kind="plain", rows=40)
    inventory = recognize(checkpoint, Statements(layouts={"t": layout}))
    return plan_tables(
        checkpoint, inventory, directory / "out", write_options={"t": WriteOptions(16)}
    )


def in_order(receipt: Receipt) -> tuple[SourceSum, ...]:
    """Returns the sums of a receipt in the order of files and offsets."""
    return tuple(sorted(receipt.sources, key=lambda entry: (entry.file, entry.slice_offset)))


@pytest.mark.parametrize("block_bytes", [1, 7 * DIM * 4, 1 << 20])
def test_rows_that_no_table_takes_are_summed_and_complete_the_slices(
    tmp_path: Path, block_bytes: int
) -> None:
    plan = padded(tmp_path)
    (sum_task,) = plan.sum_tasks
    assert sum_task.ranges == ((40, 101),)
    tasks = [replace(task, block_bytes=block_bytes) for task in plan.all_tasks]
    receipts = [carry_out(task) for task in tasks]
    assert [receipt.table for receipt in receipts] == ["t", "t", "t", ""]
    assert (receipts[-1].segment, receipts[-1].key) == (None, "t")
    check_sources(sources_of(plan), receipts)
    for task, receipt in zip(tasks, receipts, strict=True):
        assert read_sources(task) == in_order(receipt)

    with pytest.raises(CheckpointError) as failure:
        check_sources(sources_of(plan), receipts[:-1])
    # Of rows 20 to 101, three columns of 4 bytes, those before row 40.
    assert str(failure.value) == (
        "table 't' ('t'): 240 of the 972 bytes from byte 1 on of "
        f"{tmp_path / 'ckpt.data-00000-of-00001'} were read; run the export again"
    )


def test_rows_that_no_table_takes_are_checked_with_their_slices(tmp_path: Path) -> None:
    write_bundle(tmp_path / "ckpt", {"t": VALUES})
    entry = open_checkpoint(tmp_path).entries["t"]
    (task,) = plan_sums(entry, [(0, ROWS)], 64)
    carry_out(task)
    damage(tmp_path, 500, "ckpt.data-00000-of-00001")
    with pytest.raises(CheckpointError) as failure:
        carry_out(task)
    file = tmp_path / "ckpt.data-00000-of-00001"
    assert str(failure.value) == (
        f"variable 't' ('t'): rows 0 to 101 of the stored variable do not match their checksum in "
        f"data file {file} (bytes 1 to {1 + VALUES.nbytes}): the checkpoint is damaged; copy it "
        "anew or take an older one"
    )


def test_read_sources_of_partitions_sums_the_rows_of_each_lane(tmp_path: Path) -> None:
    boxes = {"t": [[(0, 51), (0, -1)], [(51, 50), (0, -1)]]}
    write_bundle(tmp_path / "ckpt", {"t": VALUES}, boxes=boxes)
    checkpoint = open_checkpoint(tmp_path)
    inventory = recognize(checkpoint, Statements({"t": "t"}, ("t",)))
    plan = plan_tables(
        checkpoint, inventory, tmp_path / "out", write_options={"t": WriteOptions(30)}
    )
    receipts = [copy_rows(task) for task in plan.tasks]
    check_sources(sources_of(plan), receipts)
    for task, receipt in zip(plan.tasks, receipts, strict=True):
        small = replace(task, block_bytes=1)
        assert read_sources(small) == in_order(receipt)
    written = b"".join((tmp_path / "out" / task.file).read_bytes() for task in plan.tasks)
    rows = np.array([row // 2 + 51 * (row % 2) for row in range(ROWS)])
    assert written == VALUES[rows].tobytes()


def test_copy_rows_of_slices_that_leave_a_gap_is_rejected(tmp_path: Path) -> None:
    (task,) = planned(tmp_path, "rows").tasks
    with pytest.raises(CheckpointError, match=r"table 't' \('t'\): .* row 0.*; save the che"):
        copy_rows(replace(task, slices=task.slices[1:]))
    assert not list((tmp_path / "out").rglob("*.bin"))


def test_segment_of_a_file_that_several_tasks_fill_is_known_by_its_checksum(
    tmp_path: Path,
) -> None:
    first, second = planned(tmp_path, segment_rows=60).tasks
    shared = tmp_path / "out" / "all.bin"
    shared.parent.mkdir(parents=True)
    shared.write_bytes(bytes(VALUES.nbytes + 3))
    tasks = [replace(first, file="all.bin", offset=3)]
    tasks.append(replace(second, file="all.bin", offset=3 + first.bytes))
    receipts = [copy_rows(task) for task in tasks]
    assert shared.read_bytes()[3:] == VALUES.tobytes()
    segments = [receipt.segment for receipt in receipts]
    assert [segment.offset for segment in segments if segment] == [3, 3 + first.bytes]
    data = bytearray(shared.read_bytes())
    data[-1] ^= 1
    shared.write_bytes(data)
    known_counts = [
        is_written(task, segment)
        for task, segment in zip(tasks, segments, strict=True)
        if segment is not None
    ]
    assert known_counts == [True, False]


def test_manifest_table_takes_the_receipts_of_its_own_tasks(tmp_path: Path) -> None:
    plan = planned(tmp_path, segment_rows=60)
    receipts = [copy_rows(task) for task in reversed(plan.tasks)]
    other_receipts = [receipt.model_copy(update={"table": "other"}) for receipt in receipts]
    sum_receipt = receipts[0].model_copy(update={"segment": None})
    page = manifest_table(plan.tables[0], [*other_receipts, sum_receipt, *receipts])
    assert [segment.first_row for segment in page.segments] == [0, 60]
    assert (page.error, page.scales) == (None, ())
    assert (page.source.key, page.source.layout, page.source.stated) == ("t", "plain", False)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("segment_rows", [None, 40])
@pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16])
@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf])
def test_copy_rows_counts_the_rows_that_are_not_finite(
    tmp_path: Path, cut: str, segment_rows: int | None, dtype: Any, lost: float
) -> None:
    values = VALUES.astype(dtype)
    values[[8, 9, 40, 100], [0, 5, 3, 2]] = lost
    values[9] = lost
    plan = planned(tmp_path, cut, values, segment_rows, budget_bytes=64)
    page = manifest_table(plan.tables[0], [copy_rows(task) for task in plan.tasks])
    assert page.non_finite == NonFiniteRows(rows=4, first_row=8)


@pytest.mark.parametrize(("source", "target"), [("f4", "float16"), ("f4", "int8"), ("f8", None)])
def test_copy_rows_counts_them_in_rows_that_it_converts(
    tmp_path: Path, source: str, target: str | None
) -> None:
    values = VALUES.astype(source)
    values[[3, 70], 1] = np.nan
    write_bundle(tmp_path / "ckpt", {"t": values})
    checkpoint = open_checkpoint(tmp_path)
    inventory = recognize(checkpoint, {"t": "t"})
    plan = plan_tables(
        checkpoint, inventory, tmp_path / "out", write_options={"t": WriteOptions(dtype=target)}
    )
    page = manifest_table(plan.tables[0], [copy_rows(task) for task in plan.tasks])
    assert page.non_finite == NonFiniteRows(rows=2, first_row=3)


def test_copy_rows_passes_over_padding_that_belongs_to_no_table(tmp_path: Path) -> None:
    stack = np.full((16, DIM + 2), np.nan, np.float32)
    stack[[0, 1, 2, 8, 9], :DIM] = VALUES[:5]
    write_bundle(tmp_path / "ckpt", {"stack": stack})
    checkpoint = open_checkpoint(tmp_path)
    layout = StatedTable(key="stack", kind="sparse_core", rows=5, dim=DIM, cores=2)
    inventory = recognize(checkpoint, Statements(layouts={"t": layout}))
    plan = plan_tables(checkpoint, inventory, tmp_path / "out")
    page = manifest_table(plan.tables[0], [copy_rows(task) for task in plan.tasks])
    assert page.non_finite is None

"""The copy: every layout of slices, bit for bit; damage, deletion and full disks; memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
import pytest

from benchmarks.exporter.big_checkpoints import write_plain
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, DestinationError
from export.tables.plan import ExportPlan, Writing, plan_tables
from export.tables.segments import check_sources, copy_rows, manifest_table, sources_of
from tests.export.checkpoint.tensor_bundles import write_bundle

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
    **how: Any,
) -> ExportPlan:
    boxes = {"t": CUTS[cut]} if CUTS[cut] else None
    write_bundle(
        directory / "ckpt", {"other": np.zeros(3, np.float32), "t": values}, boxes=boxes, files=2
    )
    checkpoint = open_checkpoint(directory)
    inventory = recognise(checkpoint, {"t": "t"})
    return plan_tables(
        checkpoint, inventory, directory / "out", writing={"t": Writing(segment_rows)}, **how
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


def damage(directory: Path, at: int, file: str = "ckpt.data-00001-of-00002") -> None:
    """Changes a byte as a failing disk does: without a new time."""
    data = bytearray((directory / file).read_bytes())
    before = (directory / file).stat()
    data[at] ^= 0x40
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
from export.checkpoint.inventory.recognition import recognise
from export.tables.plan import Writing, plan_tables
from export.tables.segments import check_sources, copy_rows, manifest_table, sources_of
from export.verify.table_rows import verify_tables

def peak():  # of this program alone: getrusage would tell that of the parent, if larger
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10

before = peak()
source, out = map(pathlib.Path, sys.argv[1:])
checkpoint = open_checkpoint(source)
inventory = recognise(checkpoint, {"t": "t"})
plan = plan_tables(checkpoint, inventory, out, writing={"t": Writing(700_000)})
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
    told = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)
    for segment in (tmp_path / "out").rglob("*.bin"):
        segment.unlink()
    assert told["grown"] < min(150 << 20, told["planned"])
    assert told["before"] > 10 << 20

"""The copy: every layout of slices, bit for bit; damage, deletion and full disks; memory."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, DestinationError
from export.tables.plan import ExportPlan, Writing, plan_tables
from export.tables.shards import Receipt, check_sources, copy_rows, manifest_table
from tests.export.checkpoint.bundles import entry, header, table, write_bundle

ROWS, DIM = 101, 6
VALUES = np.random.default_rng(3).standard_normal((ROWS, DIM)).astype(np.float32)
CUTS: dict[str, Any] = {
    "whole": None,
    "rows": [[(0, 33), (0, -1)], [(33, 1), (0, -1)], [(34, 67), (0, -1)]],
    "columns": [[(0, -1), (4, 2)], [(0, -1), (0, 4)]],
    "bricks": [[(20, 81), (0, 3)], [(0, 20), (0, 3)], [(0, 9), (3, 3)], [(9, 92), (3, 3)]],
}


def planned(
    directory: Path, cut: str = "whole", values: Any = VALUES, shard_rows: int | None = None, **how: Any
) -> ExportPlan:
    boxes = {"t": CUTS[cut]} if CUTS[cut] else None
    write_bundle(directory / "ckpt", {"other": np.zeros(3, np.float32), "t": values}, boxes=boxes, files=2)
    checkpoint = open_checkpoint(directory)
    inventory = recognise(checkpoint, {"t": "t"})
    return plan_tables(checkpoint, inventory, directory / "out", writing={"t": Writing(shard_rows)}, **how)


def written(plan: ExportPlan, receipts: list[Receipt]) -> bytes:
    shards = manifest_table(plan.tables[0], receipts).shards
    return b"".join(Path(plan.tasks[0].directory, shard.file).read_bytes() for shard in shards)


@pytest.mark.parametrize("cut", sorted(CUTS))
@pytest.mark.parametrize("shard_rows", [None, 40, 1])
@pytest.mark.parametrize("budget_bytes", [64, 1 << 20])
def test_copy_rows_any_cut_writes_the_table_bit_for_bit(
    tmp_path: Path, cut: str, shard_rows: int | None, budget_bytes: int
) -> None:
    plan = planned(tmp_path, cut, shard_rows=shard_rows, budget_bytes=budget_bytes)
    receipts = [copy_rows(task) for task in reversed(plan.tasks)]
    check_sources(plan, receipts)
    assert written(plan, receipts) == VALUES.tobytes()


@pytest.mark.parametrize(("dtype", "name"), [("f4", "float32"), ("f2", "float16"), (ml_dtypes.bfloat16, "bfloat16")])
def test_copy_rows_dtype_is_kept(tmp_path: Path, dtype: Any, name: str) -> None:
    values = VALUES.astype(dtype)
    plan = planned(tmp_path, "bricks", values)
    receipts = [copy_rows(task) for task in plan.tasks]
    assert written(plan, receipts) == values.tobytes()
    assert manifest_table(plan.tables[0], receipts).dtype == name


def test_manifest_table_tells_digests_and_source(tmp_path: Path) -> None:
    plan = planned(tmp_path, "rows", shard_rows=60)
    page = manifest_table(plan.tables[0], [copy_rows(task) for task in reversed(plan.tasks)])
    assert (page.rows, page.dim, page.source.layout, page.source.key) == (ROWS, DIM, "plain", "t")
    assert [shard.crc32c for shard in page.shards] == [
        google_crc32c.value(VALUES[:60].tobytes()),
        google_crc32c.value(VALUES[60:].tobytes()),
    ]


def test_manifest_table_without_all_shards_is_refused(tmp_path: Path) -> None:
    plan = planned(tmp_path, shard_rows=60)
    with pytest.raises(ValueError, match="shards"):
        manifest_table(plan.tables[0], [copy_rows(plan.tasks[0])])


def test_receipt_survives_a_journal(tmp_path: Path) -> None:
    plan = planned(tmp_path, "bricks", shard_rows=60)
    receipts = [copy_rows(task) for task in plan.tasks]
    kept = [Receipt.model_validate(json.loads(json.dumps(each.model_dump(mode="json")))) for each in receipts]
    assert kept == receipts
    check_sources(plan, kept)


def damage(directory: Path, at: int, file: str = "ckpt.data-00001-of-00002") -> None:
    """Changes a byte as a failing disk does: without a new time."""
    data, before = bytearray((directory / file).read_bytes()), (directory / file).stat()
    data[at] ^= 0x40
    (directory / file).write_bytes(data)
    os.utime(directory / file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_copy_rows_data_file_written_to_after_the_plan_is_told(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    name = plan.tasks[0].slices[0].file
    Path(name).write_bytes(Path(name).read_bytes())
    with pytest.raises(CheckpointError, match=f"{name} changed while it was read"):
        copy_rows(plan.tasks[0])
    assert not (tmp_path / "out" / plan.tasks[0].file).exists()


def test_copy_rows_damaged_slice_within_a_task_leaves_no_shard(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    damage(tmp_path, 1000)
    with pytest.raises(CheckpointError, match=r"'t' \('t'\): rows 0 to 101 of the stored .*ckpt\.data-00001-of-00002"):
        copy_rows(plan.tasks[0])
    assert list((tmp_path / "out").rglob("*.bin")) == []


@pytest.mark.parametrize("cut", ["whole", "columns"])
def test_check_sources_damaged_slice_shared_by_tasks_is_found(tmp_path: Path, cut: str) -> None:
    plan = planned(tmp_path, cut, shard_rows=20)
    damage(tmp_path, 700)
    receipts = [copy_rows(task) for task in plan.tasks]
    with pytest.raises(CheckpointError, match="rows 0 to 101 of the stored variable do not match"):
        check_sources(plan, receipts)


def test_check_sources_missing_task_is_found(tmp_path: Path) -> None:
    plan = planned(tmp_path, shard_rows=20)
    receipts = [copy_rows(task) for task in plan.tasks]
    with pytest.raises(CheckpointError, match=r"1944 of the 2424 bytes .* were read; run the export again"):
        check_sources(plan, receipts[:2] + receipts[3:])


def test_copy_rows_data_file_deleted_meanwhile_says_so(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    (tmp_path / "ckpt.data-00001-of-00002").unlink()
    with pytest.raises(CheckpointError, match="max_to_keep"):
        copy_rows(plan.tasks[0])


def test_copy_rows_destination_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    (tmp_path / "out").write_text("a file where a directory belongs")
    with pytest.raises(DestinationError, match="rows-00000-of-00001"):
        copy_rows(plan.tasks[0])


def test_copy_rows_full_disk_is_told_and_leaves_no_shard(tmp_path: Path) -> None:
    """A limit on file sizes stands for a full disk: the write fails half way."""
    plan = planned(tmp_path)
    code = (
        "import pickle, resource, signal, sys\n"
        "from export.errors import DestinationError\n"
        "from export.tables.shards import copy_rows\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    copy_rows(pickle.loads(sys.stdin.buffer.read()))\n"
        "except DestinationError as problem:\n"
        "    print(problem)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(plan.tasks[0]), capture_output=True, check=True, timeout=60
    )
    assert b"cannot be written: File too large" in done.stdout
    assert list((tmp_path / "out").rglob("*.bin")) == []


MEMORY_PROBE = """
import json, pathlib, sys
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.inventory.recognition import recognise
from export.cli.inspect import inventory_json, inventory_table
from export.tables.plan import Writing, plan_tables
from export.tables.shards import check_sources, copy_rows, manifest_table
from export.verify.table_rows import verify_tables

def peak():  # of this program alone: getrusage would tell that of the parent, if larger
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10

before = peak()
source, out = map(pathlib.Path, sys.argv[1:])
checkpoint = open_checkpoint(source)
inventory = recognise(checkpoint, {"t": "t"})
inventory_json(inventory), inventory_table(inventory)
plan = plan_tables(checkpoint, inventory, out, writing={"t": Writing(700_000)})
receipts = [copy_rows(task) for task in plan.tasks]
check_sources(plan, receipts)
tables = {"t": manifest_table(plan.tables[0], receipts)}
assert verify_tables(checkpoint, out, tables)["t"].rows_compared == 4096
assert "tensorflow" not in sys.modules
print(json.dumps({"before": before, "grown": peak() - before, "planned": plan.peak_memory_bytes}))
"""


def test_copy_rows_table_of_512_mib_needs_little_memory_and_no_tensorflow(tmp_path: Path) -> None:
    rows, dim = 1 << 20, 128
    size = 4 * rows * dim
    crc = 0
    for _ in range(512):
        crc = google_crc32c.extend(crc, bytes(1 << 20))
    (tmp_path / "c.index").write_bytes(table([(b"", header()), (b"t", entry(1, (rows, dim), 1, size, crc))]))
    with (tmp_path / "c.data-00000-of-00001").open("wb") as file:
        file.truncate(size + 1)
    command = [sys.executable, "-c", MEMORY_PROBE, str(tmp_path), str(tmp_path / "out")]
    told = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)
    for shard in (tmp_path / "out").rglob("*.bin"):
        shard.unlink()
    assert told["grown"] < 150 << 20
    assert told["grown"] < told["planned"]
    assert told["before"] > 10 << 20

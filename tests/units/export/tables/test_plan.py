"""Plans of tables: what is rejected or copied instead of linked before anything is touched, what
an earlier run makes unnecessary, and what stands in the way of a copy.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory, RejectedTable, StatedTable, Statements
from export.checkpoint.layouts import Mod
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.variables import Entry, Listing, Slice
from export.errors import CheckpointError, DestinationError, NotConvertible, UsageError
from export.jobs.destinations import open_destination
from export.jobs.space import check_plan_fits
from export.tables.links import link_files
from export.tables.plan import ExportPlan, WriteOptions, plan_tables
from export.tables.segments import carry_out, check_sources, sources_of
from export.tables.task_keys import is_current, task_key
from export.tables.tasks import TableTask
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.checkpoint.tensor_bundles import write_bundle

Change = Callable[[Checkpoint, Inventory], tuple[Checkpoint, Inventory]]
VALUES = np.arange(60, dtype=np.float32).reshape(10, 6)
LINK = WriteOptions(link=True)


def opened(directory: Path, values: Any = VALUES, **options: Any) -> tuple[Checkpoint, Inventory]:
    write_bundle(directory / "ckpt", {"t": values}, **options)
    checkpoint = open_checkpoint(directory)
    return checkpoint, recognize(checkpoint, Statements({"t": "t"}))


def planned(directory: Path, writing: WriteOptions | None = None, **options: Any) -> ExportPlan:
    checkpoint, inventory = opened(directory, **options)
    write_options = {"t": writing or WriteOptions()}
    return plan_tables(checkpoint, inventory, directory / "out", write_options=write_options)


def with_slices(**changes: Any) -> Change:
    """Returns a change of the slices of the table's variable."""

    def change(checkpoint: Checkpoint, inventory: Inventory) -> tuple[Checkpoint, Inventory]:
        entry = checkpoint.entries["t"]
        entry = entry._replace(slices=tuple(part._replace(**changes) for part in entry.slices))
        return Checkpoint(checkpoint.prefix, Listing("crc32c:00000000", {"t": entry})), inventory

    return change


def with_table(**changes: Any) -> Change:
    """Returns a change of what is recognized."""

    def change(checkpoint: Checkpoint, inventory: Inventory) -> tuple[Checkpoint, Inventory]:
        return checkpoint, replace(inventory, tables=(replace(inventory.tables[0], **changes),))

    return change


def with_inventory(**changes: Any) -> Change:
    return lambda checkpoint, inventory: (checkpoint, replace(inventory, **changes))


def of_terabytes(count: int) -> Change:
    """Returns a change to a table of many terabytes, of which nothing is read."""

    def change(checkpoint: Checkpoint, _inventory: Inventory) -> tuple[Checkpoint, Inventory]:
        rows = count << 32
        part = Slice(str(checkpoint.prefix), 0, rows * 256, 0, (0, 0), (rows, 64))
        listing = Listing("crc32c:00000000", {"t": Entry("t", "float32", (rows, 64), (part,))})
        large = Checkpoint(checkpoint.prefix, listing)
        return large, recognize(large, Statements({"t": "t"}))

    return change


THREE_AXES = with_inventory(rejected=(RejectedTable("b", "b", "it has three axes"),))


@pytest.mark.parametrize(
    ("change", "options", "error", "words"),
    [
        (with_table(name="a b"), {}, NotConvertible, "--table NAME=a b"),
        (with_table(dtype="int32"), {}, NotConvertible, "--dtype t=float32"),
        (with_table(dtype="uint8"), {"dtype": "float32"}, NotConvertible, "holds uint8"),
        (with_table(rows=0), {}, NotConvertible, "holds nothing"),
        (with_table(dim=0), {}, NotConvertible, "holds nothing"),
        (with_inventory(tables=()), {}, NotConvertible, "no table is recognized"),
        (THREE_AXES, {}, NotConvertible, "'b' .* three axes"),
        (with_slices(starts=(1, 0)), {}, CheckpointError, "row 0"),
        (with_slices(shape=(9, 6)), {}, CheckpointError, "row 9"),
        (of_terabytes(50), {}, NotConvertible, "13107200 checksums"),
        (of_terabytes(50), {"segment_rows": 1 << 20}, UsageError, "at most 100000"),
        (of_terabytes(50), {"dtype": "bfloat16"}, None, ""),
        (of_terabytes(50), {"link": True}, None, ""),
    ],
)
def test_table_that_no_bundle_can_hold_is_rejected(
    tmp_path: Path,
    change: Change,
    options: dict[str, Any],
    error: type[Exception] | None,
    words: str,
) -> None:
    checkpoint, inventory = change(*opened(tmp_path))
    writing = {table.name: WriteOptions(**options) for table in inventory.tables}
    if error is None:
        assert plan_tables(checkpoint, inventory, tmp_path, write_options=writing).tables
        return
    with pytest.raises(error, match=words):
        plan_tables(checkpoint, inventory, tmp_path, write_options=writing)


def chunked(directory: Path, rows: int = 60) -> tuple[Checkpoint, Inventory]:
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset("t", data=np.zeros((rows, 16), "f4"), chunks=(8, 16))
    checkpoint = open_checkpoint(directory / "a.h5")
    return checkpoint, recognize(checkpoint, Statements({"t": "t"}))


def test_array_without_some_of_its_chunks_is_rejected(tmp_path: Path) -> None:
    checkpoint, inventory = chunked(tmp_path)
    entry = checkpoint.entries["t"]
    assert entry.array is not None
    lost = entry._replace(array=entry.array._replace(absent=2))
    partly = Checkpoint(checkpoint.prefix, Listing("", {"t": lost}))
    with pytest.raises(CheckpointError, match="2 of its chunks are not stored"):
        plan_tables(partly, inventory, tmp_path)


@pytest.mark.parametrize(
    ("options", "change", "stated", "reason"),
    [
        ({"boxes": {"t": [[(0, -1), (0, 2)], [(0, -1), (2, 4)]]}}, None, {}, "cut by columns"),
        ({}, None, {"kind": "sparse_core", "rows": 8, "dim": 6, "cores": 2}, "in order"),
        ({}, None, {"kind": "plain", "dim": 5}, "padding is cut off"),
        ({}, with_slices(crc32c=None), {}, "no checksums"),
        ({}, with_slices(file="s3://bucket/data"), {}, "this machine's disks"),
    ],
)
def test_table_that_cannot_be_linked_is_copied_with_the_reason(
    tmp_path: Path, options: dict[str, Any], change: Change | None, stated: Any, reason: str
) -> None:
    checkpoint, inventory = opened(tmp_path, **options)
    if stated:
        layout = StatedTable(key="t", **stated)
        inventory = recognize(checkpoint, Statements(layouts={"t": layout}))
    if change is not None:
        checkpoint, inventory = change(checkpoint, inventory)
    plan = plan_tables(checkpoint, inventory, tmp_path, write_options={"t": LINK})
    assert (len(plan.tasks), plan.links) == (1, {})
    assert reason in plan.to_json()["tables"]["t"]["note"]


def test_space_that_a_plan_needs_counts_what_is_unpacked_and_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free(count: int) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=count))

    writing = {"t": WriteOptions(20)}  # which cuts chunks of eight rows
    plan = plan_tables(*chunked(tmp_path), tmp_path / "staged", write_options=writing)
    needed = 2 * 60 * 64
    free(needed)
    check_plan_fits(plan, tmp_path / "not" / "yet" / "there")
    free(needed - 1)
    with pytest.raises(DestinationError, match="1 B more"):
        check_plan_fits(plan, tmp_path)
    begun = tmp_path / "staged" / plan.tasks[0].file
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"x" * 5000)
    check_plan_fits(plan, tmp_path)

    # The index of the keys is sorted in a file, and then written.
    sok_dump(tmp_path / "dump", "t", np.arange(10), VALUES)
    checkpoint = open_checkpoint(tmp_path / "dump")
    plan = plan_tables(checkpoint, recognize(checkpoint), tmp_path / "keyed")
    free(VALUES.nbytes + 10 * 16)
    with pytest.raises(DestinationError, match="more"):
        check_plan_fits(plan, tmp_path)
    free(VALUES.nbytes + (1 << 16))
    check_plan_fits(plan, tmp_path)


def test_streamed_segments_need_room_for_those_of_workers_and_uploads(tmp_path: Path) -> None:
    checkpoint, inventory = opened(tmp_path, np.zeros((100, 4), np.float32))
    plans = [
        plan_tables(
            checkpoint,
            inventory,
            tmp_path,
            write_options={"t": WriteOptions(5, streamed=streamed)},
            workers=2,
        )
        for streamed in (False, True)
    ]
    assert [plan.bytes for plan in plans] == [1600, 1600]
    assert 2 * 5 * 16 < plans[1].local_bytes < plans[0].local_bytes == 1600


def test_links_are_kept_and_lead_to_the_file_behind_a_symbolic_link(tmp_path: Path) -> None:
    opened(tmp_path / "real")
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "real").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    checkpoint = open_checkpoint(tmp_path / "snapshot")
    inventory = recognize(checkpoint, Statements({"t": "t"}))
    plan = plan_tables(checkpoint, inventory, tmp_path, write_options={"t": LINK})
    link = tmp_path / "out" / next(iter(plan.links.values()))
    link.parent.mkdir(parents=True)
    link.write_text("of a run on another checkpoint")
    for _ in range(2):
        link_files(plan, tmp_path / "out")
        assert not link.is_symlink()
        assert link.samefile(next(iter(plan.links)))


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EXDEV, "different filesystems"),
        (errno.EMLINK, "as many links as the filesystem allows"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_link_that_cannot_be_made_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def fail(_source: str, _link: Path) -> None:
        raise OSError(number, os.strerror(number))

    plan = planned(tmp_path, LINK)
    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(DestinationError, match=reason):
        link_files(plan, tmp_path / "out")


def test_link_to_a_lost_file_or_into_another_filesystem_is_rejected(tmp_path: Path) -> None:
    plan = planned(tmp_path, LINK)
    elsewhere = Path("/dev/shm")
    if elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        elsewhere = Path("/proc")
    open_destination(str(tmp_path / "not" / "yet"), tmp_path, tmp_path).reject_links(plan)
    with pytest.raises(DestinationError, match="different filesystems"):
        open_destination(str(elsewhere / "rowcast-none"), tmp_path, tmp_path).reject_links(plan)
    for file in tmp_path.glob("*.data*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"ckpt\.data.* is gone"):
        link_files(plan, tmp_path / "out")


def test_data_file_that_was_replaced_after_the_plan_is_not_copied(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    file = Path(plan.tasks[0].slices[0].file)
    os.utime(file, ns=(10**9, 10**9))
    with pytest.raises(CheckpointError, match=f"{file} changed while it was read"):
        carry_out(plan.tasks[0])
    assert not list(tmp_path.rglob("*.bin"))


def test_rows_that_no_table_takes_are_read_to_complete_the_checksums(tmp_path: Path) -> None:
    checkpoint, _ = opened(tmp_path)
    layout = StatedTable(key="t", kind="plain", rows=4)
    inventory = recognize(checkpoint, Statements(layouts={"t": layout}))
    writing = {"t": WriteOptions(3)}
    plan = plan_tables(checkpoint, inventory, tmp_path / "out", write_options=writing)
    assert plan.read_bytes == VALUES.nbytes
    receipts = [carry_out(task) for task in plan.all_tasks]
    check_sources(sources_of(plan), receipts)
    with pytest.raises(CheckpointError, match="run the export again"):
        check_sources(sources_of(plan), receipts[:-1])


def test_destination_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    (tmp_path / "out").write_text("a file where a directory belongs")
    with pytest.raises(DestinationError, match="rows-00000-of-00001"):
        carry_out(plan.tasks[0])


NOT_WRITTEN: dict[str, Any] = {
    "directory": "/elsewhere",
    "attempts": "/elsewhere",
    "block_bytes": 1,
    "older": "/older",
    "older_scales": "/older",
}
"""Fields of a task that change no byte of its segment."""
WRITTEN: dict[str, Any] = {
    "table": "u",
    "dim": 5,
    "key": "u",
    "dtype": "float16",
    "first_row": 1,
    "rows": 9,
    "layout": Mod((0, 5)),
    "stored": (11, 6),
    "written_dtype": "int8",
    "file": "other.bin",
    "scales": "scales.bin",
    "offset": 0,
    "value_dtype": "float32",
}
OF_SLICES: dict[str, Any] = {
    "file": "/a/other",
    "offset": 9,
    "bytes": 200,
    "crc32c": 8,
    "starts": (1, 0),
    "shape": (9, 6),
}


def test_finished_task_counts_unless_a_field_changed_that_decides_its_bytes(
    tmp_path: Path,
) -> None:
    (task,) = planned(tmp_path).tasks
    key = task_key(task).digest()
    assert {*NOT_WRITTEN, *WRITTEN, "slices", "array"} == {
        field.name for field in fields(TableTask)
    }
    for name, value in NOT_WRITTEN.items():
        assert task_key(replace(task, **{name: value})).digest() == key, name
    for name, value in WRITTEN.items():
        assert task_key(replace(task, **{name: value})).digest() != key, name
    (part,) = task.slices
    moved = part._replace(file=f"/moved/{Path(part.file).name}", stamp=None, crc32=9)
    assert task_key(replace(task, slices=(moved,))).digest() == key
    for name, value in OF_SLICES.items():
        changed = replace(task, slices=(part._replace(**{name: value}),))
        assert task_key(changed).digest() != key, name


def test_task_of_a_storage_without_checksums_is_current_if_it_reads_the_same(
    tmp_path: Path,
) -> None:
    def tasks() -> tuple[TableTask, ...]:
        checkpoint = open_checkpoint(tmp_path / "dump")
        writing = {"t": WriteOptions(5)}
        return plan_tables(
            checkpoint, recognize(checkpoint), tmp_path / "out", write_options=writing
        ).tasks

    sok_dump(tmp_path / "dump", "t", np.arange(10), VALUES)
    receipts = [carry_out(task) for task in tasks()]
    (path,) = (tmp_path / "dump").glob("*-weight")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    current = [is_current(task, receipt) for task, receipt in zip(tasks(), receipts, strict=True)]
    assert current == [True, False]


def test_task_that_fills_a_part_of_a_file_is_current_if_its_part_is_whole(tmp_path: Path) -> None:
    task = replace(planned(tmp_path).tasks[0], file="all.bin", offset=5)
    shared = tmp_path / "out" / "all.bin"
    shared.parent.mkdir()
    shared.write_bytes(bytes(8 + VALUES.nbytes))
    receipt = carry_out(task)
    written = bytes(5) + VALUES.tobytes() + bytes(3)
    assert shared.read_bytes() == written
    for position, current in ((0, True), (5, False), (len(written) - 1, True)):
        content = bytearray(written)
        content[position] ^= 1
        shared.write_bytes(content)
        assert is_current(task, receipt) is current


PROBE = """
import json, pathlib, sys
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.inventory.recognition import recognize
from export.tables.plan import plan_tables
from export.tables.segments import carry_out, manifest_table
from export.verify.table_rows import verify_tables

def peak():  # of this program alone: getrusage would return the peak of the parent, if larger
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10

source, out = map(pathlib.Path, sys.argv[1:])
checkpoint = open_checkpoint(source)
plan = plan_tables(checkpoint, recognize(checkpoint, {"t": "t"}), out)
receipts = [carry_out(task) for task in (*plan.unpacked, *plan.tasks)]
copied = peak()
verify_tables(checkpoint, out, {"t": manifest_table(plan.tables[0], receipts)})
assert "tensorflow" not in sys.modules
print(json.dumps({"copied": copied, "all": peak(), "planned": plan.peak_memory_bytes}))
"""
CHUNK_BYTES = 48 << 20
LARGE = np.random.default_rng(0).random((4 * CHUNK_BYTES // 512, 128), np.float32)


def write_hdf5(directory: Path) -> Path:
    with h5py.File(directory / "m.weights.h5", "w") as file:
        chunks = (len(LARGE) // 4, 128)
        file.create_dataset("t", data=LARGE, chunks=chunks, compression="lzf")
    return directory / "m.weights.h5"


def write_orbax(directory: Path) -> Path:
    write_item(directory / "item", {"t": LARGE}, chunk_rows=len(LARGE) // 4)
    return directory / "item"


def write_slices(directory: Path) -> Path:
    write_bundle(directory / "ckpt", {"t": LARGE})
    return directory / "ckpt"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("write", [write_slices, write_orbax, write_hdf5])
def test_copy_holds_at_most_400_mib_and_one_chunk(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    command = [sys.executable, "-c", PROBE, str(write(tmp_path)), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, check=True, timeout=300)
    page = json.loads(done.stdout)
    assert page["copied"] <= page["planned"]
    assert page["all"] <= (400 << 20) + CHUNK_BYTES

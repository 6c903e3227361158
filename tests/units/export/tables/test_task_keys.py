"""What decides whether a task that an earlier run finished is done again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import ArrayStore, Slice
from export.tables.plan import WriteOptions, plan_tables
from export.tables.segments import carry_out
from export.tables.task_keys import is_current, task_key
from export.tables.tasks import SumTask, TableTask
from object_store.stamps import Stamp
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.tables.test_tasks import TASK as SMALL_TASK

PART = Slice("/a/data", 8, 400, 7, (0, 0), (20, 5))
TASK = replace(SMALL_TASK, slices=(PART,), directory="/out")
REST = SumTask("rest", "k", 5, 4, ((0, 3),), (PART,), 1000)
STAMP = Stamp(400, "etag")


def with_part(**changes: Any) -> TableTask:
    return replace(TASK, slices=(PART._replace(**changes),))


@pytest.mark.parametrize(
    "same",
    [
        replace(TASK, directory="/elsewhere"),
        replace(TASK, attempts="/out/attempts"),
        replace(TASK, block_bytes=1),
        with_part(file="/moved/data"),
        with_part(stamp=STAMP),
        with_part(crc32=9),
    ],
)
def test_task_of_a_checkpoint_that_was_moved_is_the_same(same: TableTask) -> None:
    assert task_key(same).digest() == task_key(TASK).digest()
    assert task_key(replace(REST, block_bytes=1)).digest() == task_key(REST).digest()


@pytest.mark.parametrize(
    "second",
    [
        replace(TASK, written_dtype="int8"),
        replace(TASK, first_row=11),
        replace(TASK, dim=4),
        replace(TASK, offset=0),
        replace(TASK, array=ArrayStore("{}", (4, 5))),
        with_part(file="/a/other"),
        with_part(offset=9),
        with_part(bytes=380),
        with_part(crc32c=8),
        with_part(starts=(1, 0)),
        with_part(shape=(19, 5)),
    ],
)
def test_task_that_writes_something_else_is_another(second: TableTask) -> None:
    assert task_key(second).digest() != task_key(TASK).digest()


def test_task_of_an_array_depends_on_its_chunks_and_not_on_its_place() -> None:
    array = ArrayStore("{}", (4, 5), file="/a")
    key = task_key(replace(TASK, array=array)).digest()
    assert task_key(replace(TASK, array=array._replace(file="/b", spec="[]"))).digest() == key
    assert task_key(replace(TASK, array=array._replace(chunk=(2, 5)))).digest() != key


VALUES = np.arange(80, dtype=np.float32).reshape(20, 4)


def changed(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_task_whose_storage_keeps_checksums_is_current_without_a_read(tmp_path: Path) -> None:
    write_bundle(tmp_path / "ckpt", {"t": VALUES})
    checkpoint = open_checkpoint(tmp_path)
    plan = plan_tables(checkpoint, recognize(checkpoint, {"t": "t"}), tmp_path / "out")
    (task,) = plan.tasks
    receipt = carry_out(task)
    (tmp_path / "ckpt.data-00000-of-00001").unlink()
    assert is_current(task, receipt)


def test_task_whose_storage_keeps_no_checksums_is_current_if_it_reads_the_same(
    tmp_path: Path,
) -> None:
    sok_dump(tmp_path / "dump", "t", np.arange(20), VALUES)
    checkpoint = open_checkpoint(tmp_path / "dump")
    inventory = recognize(checkpoint)
    plan = plan_tables(
        checkpoint, inventory, tmp_path / "out", write_options={"t": WriteOptions(10)}
    )
    receipts = [carry_out(task) for task in plan.tasks]
    (path,) = (tmp_path / "dump").glob("*-weight")
    changed(path, path.stat().st_size - 1)
    reopened = open_checkpoint(tmp_path / "dump")
    tasks = plan_tables(
        reopened, inventory, tmp_path / "out", write_options={"t": WriteOptions(10)}
    ).tasks
    current = [is_current(task, receipt) for task, receipt in zip(tasks, receipts, strict=True)]
    assert current == [True, False]


def test_task_that_fills_a_shared_file_is_current_if_its_range_is_whole(tmp_path: Path) -> None:
    write_bundle(tmp_path / "ckpt", {"t": VALUES})
    checkpoint = open_checkpoint(tmp_path)
    plan = plan_tables(checkpoint, recognize(checkpoint, {"t": "t"}), tmp_path / "out")
    task = replace(plan.tasks[0], file="all.bin", offset=5)
    shared = tmp_path / "out" / "all.bin"
    shared.parent.mkdir()
    shared.write_bytes(bytes(5 + VALUES.nbytes))
    receipt = carry_out(task)
    assert is_current(task, receipt)
    changed(shared, 0)
    assert is_current(task, receipt)
    changed(shared, 5)
    assert not is_current(task, receipt)

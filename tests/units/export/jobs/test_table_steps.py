"""Which segments a second run of the same tables writes again: contents decide, whatever the size,
times and place of the data files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from bundle.storage.staging import Staging
from bundle.tables.reader import TableReader
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.reader import open_checkpoint
from export.errors import (
    CheckpointError,
    DestinationError,
    NotConvertible,
    UsageError,
    VerificationFailed,
)
from export.jobs import destinations, table_steps
from export.jobs.destinations import Destination
from export.jobs.executors import LocalExecutor
from export.jobs.table_steps import SMALL_JOB_BYTES, copy_tables, executor_of, plan_copy
from export.recipe.settings import ExportSettings
from export.tables.conversions import ErrorLimits
from export.tables.plan import AS_STORED, ExportPlan, WriteOptions, plan_tables
from object_store.remote_path import RemotePath
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.checkpoint.tensor_bundles import write_bundle

SETTINGS = ExportSettings(workers=1)
ROWS = 40
BEFORE = np.arange(ROWS * 8, dtype=np.float32).reshape(ROWS, 8)
AFTER = BEFORE.copy()
AFTER[25:] += 1
"""The same rows but for those of the last segments."""
Values = np.ndarray[Any, Any]
Write = Callable[[Path, Values], Path]


def whole_hdf5(directory: Path, values: Values, **options: Any) -> Path:
    with h5py.File(directory / "m.weights.h5", "w") as file:
        file.create_dataset("layers/embedding/vars/0", data=values, **options)
    return directory / "m.weights.h5"


def chunked_hdf5(directory: Path, values: Values) -> Path:
    return whole_hdf5(directory, values, chunks=(5, 8), shuffle=True)


def dump(directory: Path, values: Values) -> Path:
    keys = np.arange(100, 100 + len(values), dtype=np.int64)
    return sok_dump(directory / "dump", "embedding", keys, values)


def orbax(directory: Path, values: Values) -> Path:
    array = directory / "item" / "params.embedding.embedding"
    array.mkdir(parents=True)
    for number, chunk in enumerate(np.split(values, 4)):
        (array / f"{number}.0").write_bytes(chunk.tobytes())
    metadata = {"zarr_format": 2, "shape": [40, 8], "chunks": [10, 8], "dtype": "<f4", "order": "C"}
    absent = dict.fromkeys(("compressor", "fill_value", "filters"))
    (array / ".zarray").write_text(json.dumps(metadata | absent | {"dimension_separator": "."}))
    steps = [{"key": step, "key_type": 2} for step in array.name.split(".")]
    leaf = {"key_metadata": steps, "value_metadata": {"value_type": "jax.Array"}}
    (directory / "item" / "_METADATA").write_text(json.dumps({"tree_metadata": {"leaf": leaf}}))
    return directory / "item"


def bundle(directory: Path, values: Values) -> Path:
    write_bundle(directory / "ckpt", {"embedding/embeddings": values})
    return directory


WRITERS: dict[str, Write] = {
    "HDF5": whole_hdf5,
    "HDF5 in chunks": chunked_hdf5,
    "dump": dump,
    "Orbax": orbax,
    "TensorFlow": bundle,
}


class Run:
    """One run that copies the table and is then stopped."""

    def __init__(self, checkpoint: Path, root: Path, statements: Statements | None = None) -> None:
        opened = open_checkpoint(checkpoint)
        inventory = recognize(opened, statements)
        (name,) = (table.name for table in inventory.tables)
        with Staging(root, "m", 1) as stage:
            plan: ExportPlan = plan_tables(
                opened, inventory, stage.directory, write_options={name: WriteOptions(10)}
            )
            moved: list[int] = []
            copied = copy_tables(plan, stage, SETTINGS, moved.append)
            (table,) = copied.entries.values()
            self.moved_bytes = sum(moved)
            reader = TableReader(stage.directory, table)
            self.rows = reader.gather(np.arange(table.rows))
            reader.close()
            files = [stage.directory / segment.file for segment in table.segments]
            self.files = [file.stat().st_ino for file in files]


def overwrite(directory: Path, replacement: Path) -> None:
    """Overwrites every file that differs, in place: size, times and inode stay."""
    for file in directory.rglob("*"):
        new = replacement / file.relative_to(directory)
        if file.is_file() and file.read_bytes() != new.read_bytes():
            status = file.stat()
            with file.open("r+b") as stream:
                stream.write(new.read_bytes())
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
            assert (file.stat().st_size, file.stat().st_ino) == (status.st_size, status.st_ino)


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "TensorFlow"])
def test_segments_of_rows_that_were_overwritten_with_kept_times_are_written_again(
    tmp_path: Path, name: str
) -> None:
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
    checkpoint = WRITERS[name](tmp_path / "a", BEFORE)
    WRITERS[name](tmp_path / "b", AFTER)
    first = Run(checkpoint, tmp_path / "out")
    np.testing.assert_array_equal(first.rows, BEFORE)

    overwrite(tmp_path / "a", tmp_path / "b")
    second = Run(checkpoint, tmp_path / "out")
    np.testing.assert_array_equal(second.rows, AFTER)
    are_same = [
        file == later_file for file, later_file in zip(first.files, second.files, strict=True)
    ]
    assert are_same == [True, True, False, False]


@pytest.mark.parametrize("name", WRITERS)
def test_checkpoint_that_was_moved_is_not_copied_again(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").mkdir()
    checkpoint = WRITERS[name](tmp_path / "a", BEFORE)
    first = Run(checkpoint, tmp_path / "out")
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    shutil.rmtree(tmp_path / "a")
    second = Run(tmp_path / "b" / checkpoint.relative_to(tmp_path / "a"), tmp_path / "out")
    assert second.files == first.files
    assert first.moved_bytes == second.moved_bytes == BEFORE.nbytes  # as its progress reports
    np.testing.assert_array_equal(second.rows, BEFORE)


def test_slices_of_a_bundle_that_has_other_variables_now_are_not_copied_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    first = Run(bundle(tmp_path / "a", BEFORE), tmp_path / "out")
    variables = {"embedding/embeddings": BEFORE, "z": np.ones(3, np.float32)}
    write_bundle(tmp_path / "a" / "ckpt", variables)
    assert Run(tmp_path / "a", tmp_path / "out").files == first.files


STACK = Statements(
    layouts={
        "user": StatedTable(
            key="params.embedding.embedding", kind="sparse_core", rows=36, dim=8, cores=4
        )
    }
)


def test_stack_in_chunks_is_decoded_again_only_where_its_chunks_changed(tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
    checkpoint = orbax(tmp_path / "a", BEFORE)
    orbax(tmp_path / "b", AFTER)
    row = np.arange(36)
    stored = row % 4 * 10 + row // 4
    first = Run(checkpoint, tmp_path / "out", STACK)
    np.testing.assert_array_equal(first.rows, BEFORE[stored])
    assert Run(checkpoint, tmp_path / "out", STACK).files == first.files

    overwrite(tmp_path / "a", tmp_path / "b")
    second = Run(checkpoint, tmp_path / "out", STACK)
    np.testing.assert_array_equal(second.rows, AFTER[stored])


def test_stack_in_ocdbt_that_was_saved_anew_is_copied_anew(tmp_path: Path) -> None:
    write_item(tmp_path / "item", {"params.embedding.embedding": BEFORE}, chunk_rows=10)
    first = Run(tmp_path / "item", tmp_path / "out")
    shutil.rmtree(tmp_path / "item")
    write_item(tmp_path / "item", {"params.embedding.embedding": AFTER}, chunk_rows=10)
    second = Run(tmp_path / "item", tmp_path / "out")
    np.testing.assert_array_equal(second.rows, AFTER)
    assert [
        file == later_file for file, later_file in zip(first.files, second.files, strict=True)
    ] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("workers", "sizes", "expected"),
    [
        (0, [], 1),
        (0, [10 * SMALL_JOB_BYTES], 1),
        (0, [10 * SMALL_JOB_BYTES, SMALL_JOB_BYTES - 3, 3], 1),
        (0, [4, SMALL_JOB_BYTES - 3, 10 * SMALL_JOB_BYTES], 0),
        (0, [SMALL_JOB_BYTES] * 3, 0),
        (5, [1, 2], 5),
    ],
)
def test_small_job_runs_in_this_process_unless_workers_are_set(
    tmp_path: Path, workers: int, sizes: list[int], expected: int
) -> None:
    settings = ExportSettings(workers=workers)
    with Staging(tmp_path, "m", 1) as stage:
        executor = executor_of(settings, stage, sizes, memory_bytes=1, sources=())
    # Several processes would take longer to start than to copy all but the largest segment.
    assert executor == LocalExecutor(expected)


def planned(
    directory: Path,
    store: RemotePath | None,
    read_again: tuple[str, ...] = (),
    staged: Path | None = None,
    first: WriteOptions = AS_STORED,
) -> ExportPlan:
    """Plans two tables of 40 rows, of 32 bytes each; the first may be written in another way."""
    write_bundle(directory / "ckpt", dict.fromkeys("ab", BEFORE))
    checkpoint = open_checkpoint(directory / "ckpt")
    inventory = recognize(checkpoint, {name: name for name in "ab"})
    return plan_copy(
        checkpoint,
        inventory,
        Destination(directory, store),
        staged or directory / "staged",
        {"a": first, "b": AS_STORED},
        ExportSettings(workers=3, budget_bytes=16 << 20),
        read_again,
    )


def test_plan_copy_streams_to_a_store_what_no_later_step_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_steps, "STREAMED_SEGMENT_BYTES", 10 * 32)
    plan = planned(tmp_path, RemotePath("memory://bundles"), ("b",))
    assert [(table.options.streamed, table.segments) for table in plan.tables] == [
        (True, 4),
        (False, 4),
    ]
    plan = planned(tmp_path, None, ("b",))
    assert [(table.options.streamed, table.segments) for table in plan.tables] == [
        (False, 1),
        (False, 1),
    ]
    assert plan.workers == 3


def test_plan_copy_rejects_what_its_destination_cannot_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = WriteOptions(link=True)
    with pytest.raises(UsageError, match="tables cannot be linked into memory://bundles"):
        planned(tmp_path, RemotePath("memory://bundles"), first=link)
    with monkeypatch.context() as patch:
        patch.setattr(destinations, "OBJECTS_MAX", 1)
        with pytest.raises(NotConvertible, match=r"need 2 objects of 4194304 bytes, .* at most 1;"):
            planned(tmp_path, RemotePath("memory://bundles"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2559))
    with pytest.raises(DestinationError, match=r"the tables need 2\.5 KiB: 1 B more"):
        planned(tmp_path, None)


def ignored(_: int) -> None:
    """Takes the bytes that were moved."""


def copied(
    directory: Path, moved: Callable[[int], None] = ignored, first: WriteOptions = AS_STORED
) -> None:
    """Copies the two tables."""
    with Staging(directory, "m", 1) as stage:
        plan = planned(directory, None, staged=stage.directory, first=first)
        copy_tables(plan, stage, SETTINGS, moved)


def test_copy_tables_rejects_converted_rows_that_break_a_limit(tmp_path: Path) -> None:
    def writing(limit: float) -> WriteOptions:
        return WriteOptions(dtype="int8", limits=ErrorLimits(max_abs=limit))

    copied(tmp_path, first=writing(2))
    with pytest.raises(VerificationFailed, match="table 'a': max_abs_error of its converted rows"):
        copied(tmp_path, first=writing(0.5))


def test_copy_tables_of_a_file_that_changes_after_its_last_row_was_read_is_rejected(
    tmp_path: Path,
) -> None:
    moved_bytes = 0

    def moved(more: int) -> None:
        nonlocal moved_bytes
        moved_bytes += more
        if moved_bytes == 2 * BEFORE.nbytes:
            os.utime(tmp_path / "ckpt.data-00000-of-00001", (5, 5))

    with pytest.raises(CheckpointError, match="data-00000-of-00001 changed while it was read"):
        copied(tmp_path, moved)


def test_tables_of_a_damaged_slice_are_copied_again_by_the_next_run(tmp_path: Path) -> None:
    bundle(tmp_path, BEFORE)
    data = tmp_path / "ckpt.data-00000-of-00001"
    right = data.read_bytes()
    status = data.stat()

    def overwrite_data(content: bytes) -> None:
        data.write_bytes(content)
        os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns))

    overwrite_data(right[:200] + bytes([right[200] ^ 1]) + right[201:])
    with pytest.raises(
        CheckpointError,
        match=r"rows 0 to 40 of .* do not match .*; the tables are copied again by the next run",
    ):
        Run(tmp_path, tmp_path / "out")
    overwrite_data(right)
    np.testing.assert_array_equal(Run(tmp_path, tmp_path / "out").rows, BEFORE)

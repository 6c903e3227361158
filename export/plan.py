"""Tables -> shards -> tasks, under a memory budget. The whole plan can be printed without running; no file is read."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle import paths, shards
from export.checkpoint import bands as stored
from export.checkpoint.bands import Band, SlicesOverlap
from export.checkpoint.specs import Inventory, TableSpec
from export.checkpoint.variables import NUMPY_DTYPES, Slice, StoredVariables
from export.errors import CheckpointError, DestinationError, NotConvertible, UsageError

DTYPES = ("float32", "bfloat16", "float16")
BLOCK_BYTES_MAX = 8 << 20
BUDGET_BYTES = 256 << 20
SHARDS_MAX = 100_000
WORKER_BYTES = 80 << 20
"""What a table worker holds before it reads anything: the interpreter and its libraries."""


@dataclass(frozen=True, slots=True)
class TableTask:
    """One shard to be written: plain data, for any process on any machine that sees the files.

    Attributes:
      step: name of the task, the same in every run of the same plan.
      table, key, dtype, dim: of the table.
      first_row, rows: the rows of the shard.
      slices: those of the variable that hold rows of it.
      directory: where bundle paths begin.
      file: bundle path of the shard.
      block_bytes: bytes read at a time.
      attempts: directory of the run, where the shard lies until it is whole; None: beside `file`.
    """

    step: str
    table: str
    key: str
    dtype: str
    dim: int
    first_row: int
    rows: int
    slices: tuple[Slice, ...]
    directory: str
    file: str
    block_bytes: int
    attempts: str | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dim * NUMPY_DTYPES[self.dtype].itemsize

    @property
    def bytes(self) -> int:
        """Bytes of the shard."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class TablePlan:
    """One table, the slices that hold it and the tasks that write it."""

    spec: TableSpec
    slices: tuple[Slice, ...]
    tasks: tuple[TableTask, ...]


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What a job would read and write.

    Attributes:
      checkpoint: base name of its prefix.
      tables: in the order of their names.
      left_out_bytes: slot variables, not read.
      workers: processes that run at a time.
    """

    checkpoint: str
    tables: tuple[TablePlan, ...]
    left_out_bytes: int
    workers: int

    @property
    def tasks(self) -> tuple[TableTask, ...]:
        """All tasks; each may run at any time, anywhere."""
        return tuple(task for table in self.tables for task in table.tasks)

    @property
    def bytes(self) -> int:
        """Bytes read, and written: tables are copied as they are."""
        return sum(task.bytes for task in self.tasks)

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory that all workers together hold, an upper bound."""
        held = sorted((WORKER_BYTES + 2 * max(task.block_bytes, task.row_bytes) for task in self.tasks), reverse=True)
        return sum(held[: self.workers])

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON values."""
        tables = {
            table.spec.name: {
                "rows": table.spec.rows,
                "dim": table.spec.dim,
                "dtype": table.spec.dtype,
                "key": table.spec.key,
                "bytes": sum(task.bytes for task in table.tasks),
                "slices": len(table.slices),
                "shards": len(table.tasks),
                "note": table.spec.note,
            }
            for table in self.tables
        }
        return {
            "checkpoint": self.checkpoint,
            "tables": tables,
            "read_bytes": self.bytes,
            "written_bytes": self.bytes,
            "left_out_bytes": self.left_out_bytes,
            "files": len(self.tasks),
            "tasks": len(self.tasks),
            "workers": self.workers,
            "peak_memory_bytes": self.peak_memory_bytes,
        }


def plan_tables(
    checkpoint: StoredVariables,
    inventory: Inventory,
    directory: Path,
    *,
    tables: Sequence[str] | None = None,
    shard_rows: Mapping[str, int | None] | None = None,
    budget_bytes: int = BUDGET_BYTES,
    workers: int = 1,
) -> ExportPlan:
    """Plans the copy of tables.

    Args:
      checkpoint: the open checkpoint.
      inventory: what `recognise` made of it.
      directory: where bundle paths will begin; need not exist yet.
      tables: names of those wanted; None: all.
      shard_rows: table -> rows in a shard; None or absent: as many as fit 4 GiB.
      budget_bytes: memory that one worker may hold beyond its libraries.
      workers: processes that will run at a time.
    Raises:
      NotConvertible: a wanted table is not there or cannot be exported, or no table is known at all; says the cure.
      UsageError: shards so small that there would be more than SHARDS_MAX.
      CheckpointError: the slices of a table overlap or leave a gap.
    """
    wanted = _wanted(inventory, tables)
    rows_of = dict(shard_rows or {})
    for name in rows_of:
        inventory.table(name)
    plans = []
    for spec in wanted:
        _check_exportable(spec)
        slices = checkpoint.entries[spec.key].slices
        try:
            bands = stored.bands(slices, spec.dim, 0, spec.rows)
        except SlicesOverlap as problem:
            raise CheckpointError(
                f"table {spec.name!r} ({spec.key!r} in checkpoint {inventory.checkpoint}): {problem}; save it anew"
            ) from problem
        block_bytes = _block_bytes(spec, bands, budget_bytes)
        plans.append(TablePlan(spec, slices, _tasks(spec, bands, directory, rows_of.get(spec.name), block_bytes)))
    return ExportPlan(inventory.checkpoint, tuple(plans), inventory.slot_bytes, workers)


def check_space(plan: ExportPlan, directory: Path, finished_bytes: int = 0) -> None:
    """Refuses a plan that does not fit the disk.

    Args:
      plan: the plan.
      directory: where it writes; it, or the nearest directory above it that exists, tells the disk.
      finished_bytes: what an earlier run has written already.
    Raises:
      DestinationError: it does not fit; tells both sizes.
    """
    existing = next((place for place in (directory, *directory.absolute().parents) if place.is_dir()), Path("/"))
    free = shutil.disk_usage(existing).free
    needed = plan.bytes - finished_bytes
    if needed > free:
        raise DestinationError(
            f"{directory} has {free} bytes free, the tables need {needed}; free some, or export to another disk"
        )


def _wanted(inventory: Inventory, names: Sequence[str] | None) -> list[TableSpec]:
    if names is not None:
        return sorted((inventory.table(name) for name in dict.fromkeys(names)), key=lambda table: table.name)
    if inventory.refused:
        inventory.table(inventory.refused[0].name)  # leaving it out without being asked to would be silence
    if not inventory.tables:
        raise NotConvertible(f"no table is recognised in checkpoint {inventory.checkpoint}; {inventory.naming_help()}")
    return list(inventory.tables)


def _check_exportable(spec: TableSpec) -> None:
    if spec.dtype not in DTYPES:
        raise NotConvertible(
            f"table {spec.name!r} holds {spec.dtype} values; exported are {', '.join(DTYPES)}; cast the variable and "
            "save the checkpoint anew"
        )
    if not paths.is_name(spec.name):
        raise NotConvertible(
            f"table {spec.name!r} cannot be called so in a bundle (letters, digits, '_', '.', '-'; at most 128; "
            f"beginning with a letter or digit); name it with --table NAME={spec.key}"
        )
    if spec.rows < 1 or spec.dim < 1:
        raise NotConvertible(f"table {spec.name!r} of shape [{spec.rows}, {spec.dim}] holds nothing; leave it out")


def _block_bytes(spec: TableSpec, bands: Sequence[Band], budget_bytes: int) -> int:
    """Returns how many bytes a worker reads at a time: where columns are joined it holds two such blocks."""
    row_bytes = spec.dim * NUMPY_DTYPES[spec.dtype].itemsize
    if any(len(band.slices) > 1 for band in bands) and 2 * row_bytes > budget_bytes:
        raise NotConvertible(
            f"table {spec.name!r} is cut by columns and has rows of {row_bytes} bytes, two of which exceed the "
            f"budget of {budget_bytes}; raise ROWCAST_EXPORT_BUDGET_BYTES"
        )
    return min(BLOCK_BYTES_MAX, max(1, budget_bytes // 2))


def _tasks(
    spec: TableSpec, bands: Sequence[Band], directory: Path, rows_max: int | None, block_bytes: int
) -> tuple[TableTask, ...]:
    rows_max = rows_max or shards.shard_rows(spec.dim * NUMPY_DTYPES[spec.dtype].itemsize)
    count = -(-spec.rows // rows_max)
    if count > SHARDS_MAX:
        raise UsageError(
            f"table {spec.name!r} of {spec.rows} rows would become {count} files of {rows_max} rows; at most "
            f"{SHARDS_MAX} are written; raise shard_rows"
        )
    tasks = []
    for number, part in enumerate(shards.cut(spec.rows, rows_max)):
        held = [piece for band in stored.within(bands, part.first, part.rows) for piece in band.slices]
        file = paths.table_shard(spec.name, number, count)
        tasks.append(
            TableTask(
                step=file,
                table=spec.name,
                key=spec.key,
                dtype=spec.dtype,
                dim=spec.dim,
                first_row=part.first,
                rows=part.rows,
                slices=tuple(dict.fromkeys(held)),
                directory=str(directory),
                file=file,
                block_bytes=block_bytes,
            )
        )
    return tuple(tasks)

"""One task: slices of a checkpoint -> rows -> one shard, in bounded memory. Plain arguments, no open handles.

A crc32c of the checkpoint covers a whole slice. Whatever part of a slice a task reads, it sums in the same pass; slices
that lie within one task are checked there, those shared by several tasks by `check_sources`, from the joined sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt

from bundle import manifest
from bundle.checksums import extend, joined
from bundle.fields import Crc32c, Page
from bundle.manifest import Shard, TableSource
from bundle.tables import ShardWriter
from export.checkpoint import bands
from export.checkpoint.bands import Band, SlicesOverlap, SourceRange
from export.checkpoint.datafiles import DataFiles
from export.checkpoint.variables import Slice
from export.errors import CheckpointError, DestinationError, VerificationFailed
from export.plan import ExportPlan, TablePlan, TableTask


class SourceSum(Page):
    """Bytes of one slice that were read, and their crc32c.

    Attributes:
      file: base name of the data file.
      slice_offset: first byte of the slice in it.
      offset: first byte read, counted from the slice's.
    """

    file: str
    slice_offset: NonNegativeInt
    offset: NonNegativeInt
    bytes: NonNegativeInt
    crc32c: Crc32c


class Receipt(Page):
    """What a finished task tells: small, plain, fit for a journal."""

    step: str
    table: str
    shard: Shard
    sources: tuple[SourceSum, ...]


def copy_rows(task: TableTask) -> Receipt:
    """Writes one shard.

    Raises:
      CheckpointError: a data file is gone, cut short or damaged; no shard is left behind.
      DestinationError: the shard cannot be written, e.g. the disk is full; none is left behind.
      VerificationFailed: what was written is not what was read; none is left behind.
    """
    path = Path(task.directory, task.file)
    attempts = None if task.attempts is None else Path(task.attempts)
    sums = _Sums()
    try:
        with DataFiles() as files, ShardWriter(path, attempts) as writer:
            for band in bands.bands(task.slices, task.dim, task.first_row, task.rows):
                if len(band.slices) == 1:
                    _stream(files, writer, band, task, sums)
                else:
                    _join_columns(files, writer, band, task, sums)
            sums.check_whole(task)
            digest = writer.close()
            sums.check_written(task, digest.crc32c)
    except SlicesOverlap as problem:
        raise CheckpointError(f"table {task.table!r} ({task.key!r}): {problem}; save the checkpoint anew") from problem
    except OSError as problem:
        raise DestinationError(f"shard {path} cannot be written: {problem.strerror or problem}") from problem
    shard = Shard(file=task.file, first_row=task.first_row, rows=task.rows, crc32c=digest.crc32c, blocks=digest.blocks)
    return Receipt(step=task.step, table=task.table, shard=shard, sources=sums.told())


def check_sources(plan: ExportPlan, receipts: Sequence[Receipt]) -> None:
    """Checks every slice of every planned table against the checkpoint's crc32c, by the sums that the tasks returned.

    Args:
      plan: the plan that was run.
      receipts: of all its tasks, in any order, of this run and of earlier ones.
    Raises:
      CheckpointError: a slice does not match, or not all of it was read; names file and rows.
    """
    sums: dict[tuple[str, str, int], list[SourceSum]] = defaultdict(list)
    for receipt in receipts:
        for each in receipt.sources:
            sums[receipt.table, each.file, each.slice_offset].append(each)
    for table in plan.tables:
        for part in table.slices:
            if part.bytes:
                _check_slice(table, part, sums[table.spec.name, Path(part.file).name, part.offset])


def manifest_table(table: TablePlan, receipts: Sequence[Receipt]) -> manifest.Table:
    """Returns a table's entry in the manifest.

    Args:
      table: its plan.
      receipts: of all its tasks; those of other tables are passed over.
    Raises:
      ValueError: (pydantic's) shards are missing.
    """
    own = sorted((each.shard for each in receipts if each.table == table.spec.name), key=lambda shard: shard.first_row)
    spec = table.spec
    return manifest.Table.model_validate(
        {
            "rows": spec.rows,
            "dim": spec.dim,
            "dtype": spec.dtype,
            "shards": tuple(own),
            "source": TableSource(layout=spec.layout.kind, key=spec.key),
        }
    )


class _Sums:
    """crc32c of what was read of each slice. A task reads each slice from front to back."""

    def __init__(self) -> None:
        self._read: dict[Slice, tuple[int, int, int]] = {}

    def add(self, source: SourceRange, data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        first, count, crc = self._read.get(source.slice, (source.offset, 0, 0))
        assert first + count == source.offset, "a slice is read from front to back"  # noqa: S101
        self._read[source.slice] = first, count + data.size, extend(crc, data)

    def check_whole(self, task: TableTask) -> None:
        for part, (_, count, crc) in self._read.items():
            if count == part.bytes and crc != part.crc32c:
                raise CheckpointError(_damaged(task.table, part))

    def check_written(self, task: TableTask, crc32c: int) -> None:
        """Holds all rows, not a sample, to what was read, where slices have whole rows: they follow one another."""
        if any(part.shape[1] != task.dim for part in self._read):
            return
        if joined((crc, count) for _, count, crc in self._read.values()) != crc32c:
            raise VerificationFailed(
                f"table {task.table!r}: shard {task.file!r} holds other bytes than were read from the checkpoint; run "
                "the export again, and report it if it persists"
            )

    def told(self) -> tuple[SourceSum, ...]:
        return tuple(
            SourceSum(file=Path(part.file).name, slice_offset=part.offset, offset=first, bytes=count, crc32c=crc)
            for part, (first, count, crc) in self._read.items()
        )


def _stream(files: DataFiles, writer: ShardWriter, band: Band, task: TableTask, sums: _Sums) -> None:
    """Copies a band that lies in one slice: bytes as they are, wherever rows end."""
    part = band.slices[0]
    whole = bands.source_range(part, band.first, band.rows)
    buffer = np.empty(min(task.block_bytes, whole.bytes), np.uint8)
    for done in range(0, whole.bytes, buffer.size):
        block = buffer[: min(buffer.size, whole.bytes - done)]
        source = SourceRange(part, whole.offset + done, block.size)
        files.read_into(part.file, part.offset + source.offset, block)
        sums.add(source, block)
        writer.write(block)


def _join_columns(files: DataFiles, writer: ShardWriter, band: Band, task: TableTask, sums: _Sums) -> None:
    """Copies a band whose columns lie in several slices: joined row by row, a block at a time."""
    itemsize = task.row_bytes // task.dim
    rows_max = max(1, task.block_bytes // task.row_bytes)
    joint = np.empty((min(rows_max, band.rows), task.row_bytes), np.uint8)
    for first, rows in bands.blocks(band, rows_max):
        for part in band.slices:
            source = bands.source_range(part, first, rows)
            data = np.empty(source.bytes, np.uint8)
            files.read_into(part.file, part.offset + source.offset, data)
            sums.add(source, data)
            start, width = part.starts[1] * itemsize, part.shape[1] * itemsize
            joint[:rows, start : start + width] = data.reshape(rows, width)
        writer.write(joint[:rows])


def _check_slice(table: TablePlan, part: Slice, sums: list[SourceSum]) -> None:
    name, end = table.spec.name, 0
    ordered = sorted(sums, key=lambda each: each.offset)
    for each in ordered:
        if each.offset != end:
            break
        end += each.bytes
    if end != part.bytes:
        first, _ = bands.table_rows(SourceRange(part, end, 0))
        raise CheckpointError(
            f"table {name!r}: rows from {first} on were not read from {part.file}; run the export again"
        )
    if joined((each.crc32c, each.bytes) for each in ordered) != part.crc32c:
        raise CheckpointError(_damaged(name, part))


def _damaged(table: str, part: Slice) -> str:
    first, rows = bands.table_rows(SourceRange(part, 0, part.bytes))
    return (
        f"table {table!r}: rows {first} to {first + rows} do not match their checksum in data file {part.file} (bytes "
        f"{part.offset} to {part.offset + part.bytes}): the checkpoint is damaged; copy it anew or take an older one"
    )

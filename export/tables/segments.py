"""One task: rows of a stored variable -> rows of a table -> one segment, in bounded memory. Plain
arguments, no handles.

A task sums whatever it reads in the same pass. A crc32c of the checkpoint covers a whole slice:
slices that lie within one task are checked there, those shared by several tasks by `check_sources`,
from what each of them read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bundle.format import manifest
from bundle.format.checksums import digest
from bundle.format.dtypes import SCALE_BYTES
from bundle.format.fields import StrictModel
from bundle.format.manifest import Segment
from bundle.tables.segment_writer import SegmentWriter
from export.checkpoint.bands import SlicesOverlap
from export.checkpoint.formats.arrays import ArrayRows
from export.checkpoint.layouts import lane_ranges
from export.checkpoint.source_sums import SourceSum
from export.checkpoint.stored_rows import SliceRows, StoredRows
from export.checkpoint.variables import Slice
from export.errors import CheckpointError, DestinationError
from export.tables.compared_segment import SAMPLE_ROWS, ComparedSegment, OlderSegmentRejected
from export.tables.conversions import Conversion, ErrorSums, table_error
from export.tables.finite_rows import FiniteScan, joined
from export.tables.interleaving import stripes_of
from export.tables.links import linked_segments
from export.tables.plan import ExportPlan, TablePlan
from export.tables.sources import source_of
from export.tables.stored_segments import with_fetched_segments
from export.tables.tasks import OlderSegment, StoredSegment, SumTask, TableTask, stored_range

_SAMPLED_PART = 64
"""A sample is compared first of segments that have this many times its rows: of a smaller one, all
rows are compared soon.
"""


class Receipt(StrictModel):
    """The result of a finished task: small, plain, fit for a journal.

    Attributes:
      table: The name of the table; "" if the task only summed.
      key: The key of the variable that was read.
      segment: The segment that was written; None if the task only summed.
      sources: The sums of what was read of each slice.
      scales: The segment of the scales of int8 rows.
      error: The error of the rows, if they were converted.
      non_finite: The rows of the segment that hold NaN or an infinity.
      reused_segments: In how many of `segment` and `scales` nothing changed since an older version.
      reused_bytes: The bytes of their files that are links to files of that version.
      changed_rows: The number of rows in the deltas that were written.
      written_bytes: The bytes of the files that were written.
      link_problem: Why files of the older version could not be fetched or linked, or "".
    """

    table: str
    key: str
    segment: Segment | None
    sources: tuple[SourceSum, ...]
    scales: Segment | None = None
    error: ErrorSums | None = None
    non_finite: manifest.NonFiniteRows | None = None
    reused_segments: int = 0
    reused_bytes: int = 0
    changed_rows: int = 0
    written_bytes: int = 0
    link_problem: str = ""

    def files(self, task: TableTask | SumTask) -> list[manifest.File]:
        """Returns the files that the task wrote or linked; a file that several tasks fill is none
        of them.
        """
        if not isinstance(task, TableTask) or task.offset is not None:
            return []
        files = []
        for segment, size in ((self.segment, task.row_bytes), (self.scales, SCALE_BYTES)):
            if segment is None:
                continue
            segment_bytes = segment.rows * size
            files.append(
                manifest.File(path=segment.file, bytes=segment_bytes, crc32c=segment.crc32c)
            )
            files += [
                manifest.File(path=delta.file, bytes=delta.bytes, crc32c=delta.crc32c)
                for delta in segment.deltas
            ]
        return files


def copy_rows(task: TableTask) -> Receipt:
    """Writes one segment, or links an older version's and writes the rows that changed.

    Raises:
      CheckpointError: A data file is gone, cut short or damaged; no segment is left behind.
      DestinationError: The segment cannot be written, e.g. because the disk is full; no segment is
        left behind.
      NotConvertible: A value cannot be converted; the error names its row.
    """
    with with_fetched_segments(task) as (fetched_task, fetch_problem):
        return _copy_compared(fetched_task, fetch_problem)


def _copy_compared(task: TableTask, link_problem: str) -> Receipt:
    """Copies rows as `copy_rows` does; begins again without an older segment that is rejected."""
    while True:
        try:
            return _copy(task).model_copy(update={"link_problem": link_problem})
        except OlderSegmentRejected as rejection:
            link_problem = link_problem or rejection.link_problem
            # Where only the scales change, as if all rows are multiplied, the rows are shared. Most
            # rows that change have another scale, too: to find that out would be another attempt.
            task = replace(task, older_scales=None)
            if rejection.file == task.file:
                task = replace(task, older=None)


def _copy(task: TableTask) -> Receipt:
    """Copies rows as `copy_rows` does, once.

    Raises:
      OlderSegmentRejected: A segment cannot share rows with the older one.
      ExportError: See `copy_rows`.
    """
    try:
        with ExitStack() as resources:
            stored = open_rows(task)
            resources.enter_context(stored)
            # Rows in order are appended as they are read; others are written at their positions,
            # and so are those that are compared: as whole rows.
            in_order = task.as_stored and isinstance(stored, SliceRows) and stored.undivided
            in_order = in_order and task.older is None
            writer = _writer(task, task.file, task.row_bytes, task.older, in_order=in_order)
            resources.enter_context(writer)
            scales = None
            if task.scales:
                scales = _writer(task, task.scales, SCALE_BYTES, task.older_scales)
                resources.enter_context(scales)

            # A row of an array would cost a whole chunk.
            is_sampled = task.array is None and task.rows > _SAMPLED_PART * SAMPLE_ROWS
            if isinstance(writer, ComparedSegment) and is_sampled:
                _check_sample(task, writer)
            error = None
            scan = FiniteScan(task.value_dtype or task.dtype, task.values_per_row)
            if task.converted:
                error = _convert(stored, task, writer, scales, scan)
            elif in_order and isinstance(stored, SliceRows) and isinstance(writer, SegmentWriter):
                byte_offset = task.first_row * task.dim * task.itemsize
                for piece, crc in stored.pieces(lambda: writer.room_bytes):
                    writer.write(piece, crc)
                    scan.scan(piece, byte_offset)
                    byte_offset += piece.size
            else:
                for first, rows in stripes_of(stored, task):
                    writer.write_at((first - task.first_row) * rows.shape[1], rows)
                    scan.scan(rows, first * rows.shape[1])

            # Checked before the files get their names: a damaged segment never lies in its place.
            _reject_damaged(stored, f"table {task.table!r}", task)
            segment = _close_segment(task, task.file, writer, task.offset or 0)
            closed_scales = None
            if task.scales and scales:
                closed_scales = _close_segment(task, task.scales, scales)
            compared = [part for part in (writer, scales) if isinstance(part, ComparedSegment)]
            receipt = Receipt(
                table=task.table,
                key=task.key,
                segment=segment,
                sources=stored.sums(),
                scales=closed_scales,
                error=error,
                non_finite=scan.non_finite,
                reused_segments=sum(not part.changed_rows for part in compared),
                reused_bytes=sum(part.linked_bytes for part in compared),
                changed_rows=sum(part.changed_rows for part in compared),
            )
            file_bytes = sum(file.bytes for file in receipt.files(task))
            written_bytes = file_bytes - receipt.reused_bytes
            return receipt.model_copy(update={"written_bytes": written_bytes})
    except SlicesOverlap as problem:
        raise CheckpointError(
            f"table {task.table!r} ({task.key!r}): {problem}; save the checkpoint anew"
        ) from problem
    except OSError as problem:
        path = Path(task.directory, task.file)
        raise DestinationError(
            f"segment {path} cannot be written: {problem.strerror or problem}; once it can, run "
            "again: it resumes"
        ) from problem


def sum_rows(task: SumTask) -> Receipt:
    """Reads rows of a variable that belong to no exported table: the crc32c of a slice covers them
    too.

    Raises:
      CheckpointError: A data file is gone, cut short or damaged.
    """
    count = max(1, task.block_bytes // task.stored_row_bytes)
    buffer = np.empty((count, task.stored_row_bytes), np.uint8)
    # Ranges ascend, so that the first and the last bound the slices that are opened.
    first = task.ranges[0][0]
    end = task.ranges[-1][1]
    with SliceRows(task.slices, task.columns, task.itemsize, first, end - first) as stored:
        for low, high in task.ranges:
            for row in range(low, high, count):
                stored.read_into(row, buffer[: min(count, high - row)])
        _reject_damaged(stored, f"variable {task.key!r}", task)
        return Receipt(table="", key=task.key, segment=None, sources=stored.sums())


def open_rows(task: TableTask) -> StoredRows:
    """Opens the rows that a task reads.

    Raises:
      SlicesOverlap: The slices overlap in these rows, or leave a gap.
      CheckpointError: An array cannot be opened.
    """
    if task.array is not None:
        return ArrayRows(task.array)
    first, end = stored_range(task.layout, task.first_row, task.rows)
    return SliceRows(task.slices, task.stored[1], task.itemsize, first, end - first)


def read_sources(task: TableTask | SumTask) -> tuple[SourceSum, ...]:
    """Sums what a task reads, and writes nothing.

    Returns:
      What the task's receipt holds as its sources, in the order of files and offsets, if the
      storage still holds the bytes that the task read.

    Raises:
      CheckpointError: A data file is gone, cut short, changed or cannot be read.
    """
    if isinstance(task, SumTask):
        ranges = list(task.ranges)
        rows = SliceRows(
            task.slices, task.columns, task.itemsize, ranges[0][0], ranges[-1][1] - ranges[0][0]
        )
    else:
        ranges = list(lane_ranges(task.layout, task.first_row, task.rows))
        stored_rows = open_rows(task)
        # Chunks are summed as they are stored, which decodes nothing.
        if isinstance(stored_rows, ArrayRows):
            with stored_rows:
                return stored_rows.stored_sums(*ranges[0])
        rows = stored_rows
    count = max(1, task.block_bytes // task.stored_row_bytes)
    buffer = np.empty((count, task.stored_row_bytes), np.uint8)
    with rows:
        for first, end in ranges:
            for row in range(first, end, count):
                rows.read_into(row, buffer[: min(count, end - row)])
        return tuple(sorted(rows.sums(), key=lambda source: (source.file, source.slice_offset)))


def carry_out(task: TableTask | SumTask) -> Receipt:
    """Runs a task of either kind. Raises the errors of `copy_rows` and `sum_rows`."""
    if isinstance(task, TableTask):
        return copy_rows(task)
    return sum_rows(task)


class Source(NamedTuple):
    """The stored variable that the tasks of one table read.

    Attributes:
      subject: The table, as messages name it.
      key: The key of its variable.
      slices: The slices of its variable.
    """

    subject: str
    key: str
    slices: Sequence[Slice]


def check_sources(sources: Iterable[Source], receipts: Sequence[Receipt]) -> None:
    """Checks every slice of every copied variable against the checkpoint's crc32c, by the sums that
    the tasks returned.

    Args:
      sources: What all tasks of a plan read.
      receipts: The receipts of all these tasks, in any order, of this run and of earlier ones.
    Raises:
      CheckpointError: A slice does not match, or not all of it was read; the error names file and
        rows.
    """
    sum_of_slice: dict[tuple[str, str, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for receipt in receipts:
        for source in receipt.sources:
            # Each sum is what a range adds to the crc32c of its slice, so that XOR joins them.
            slice_name = receipt.key, source.file, source.slice_offset
            count, crc = sum_of_slice[slice_name]
            sum_of_slice[slice_name] = count + source.bytes, crc ^ source.crc32c
    for subject, key, slices in sources:
        for part in slices:
            # Receipts have names of files without directories: the checkpoint may have moved since.
            count, crc = sum_of_slice[key, Path(part.file).name, part.offset]
            # An incomplete sum is that of other bytes, so that it is not compared.
            if count != part.bytes:
                raise CheckpointError(
                    f"{subject}: {count} of the {part.bytes} bytes from byte {part.offset} on of "
                    f"{part.file} were read; run the export again"
                )
            # Some storages, such as HDF5, keep no crc32c with which the sum could be compared.
            if part.bytes and part.crc32c not in (None, crc):
                raise CheckpointError(_damage_text(subject, part))


def manifest_table(
    table: TablePlan, receipts: Sequence[Receipt], links: Mapping[str, str] | None = None
) -> manifest.Table:
    """Returns a table's entry in the manifest.

    Args:
      table: The plan of the table.
      receipts: The receipts of all its tasks; receipts of other tables are ignored.
      links: The bundle path of each data file that the plan links.
    Raises:
      ValueError: Segments are missing (the error is pydantic's).
    """
    spec = table.spec
    segment_receipts = [
        (receipt.segment, receipt)
        for receipt in receipts
        if receipt.table == spec.name and receipt.segment is not None
    ]
    # Workers finish in any order, and a manifest lists segments in the order of their rows.
    segment_receipts.sort(key=lambda pair: pair[0].first_row)
    errors = [receipt.error for _, receipt in segment_receipts if receipt.error is not None]
    error = None
    if errors:
        error = table_error(spec.dtype, spec.dim, errors)
    non_finite = joined(receipt.non_finite for _, receipt in segment_receipts)
    # Nobody looked at the rows of a linked table, which may hold such values then.
    if table.linked and table.options.allow_non_finite:
        non_finite = manifest.NonFiniteRows()
    segments = tuple(segment for segment, _ in segment_receipts)
    scales = tuple(receipt.scales for _, receipt in segment_receipts if receipt.scales is not None)
    return manifest.Table.model_validate(
        {
            "rows": spec.rows,
            "dim": spec.dim,
            "dtype": table.dtype,
            "segments": linked_segments(table, links or {}) or segments,
            "scales": scales,
            "error": error,
            "source": source_of(spec.layout, spec.key, stated=spec.stated),
            "non_finite": non_finite,
        }
    )


def sources_of(plan: ExportPlan) -> list[Source]:
    """Returns what the tasks of a plan read."""
    return [
        Source(f"table {table.spec.name!r} ({table.spec.key!r})", table.spec.key, table.slices)
        for table in plan.tables
        if table.tasks
    ]


def is_written(task: TableTask, segment: Segment) -> bool:
    """Returns whether a range of a file that several tasks fill holds what a task wrote there."""
    with Path(task.directory, task.file).open("rb", buffering=0) as file:
        file.seek(segment.offset)
        return digest(file, task.bytes).crc32c == segment.crc32c


def _writer(
    task: TableTask,
    file: str,
    width: int,
    older: OlderSegment | StoredSegment | None,
    *,
    in_order: bool = False,
) -> SegmentWriter | ComparedSegment:
    """Returns the writer of a segment.

    Args:
      task: The task that writes it.
      file: The bundle path of the segment.
      width: The number of bytes of a row.
      older: The segment that it is compared with; None: it is written whole.
      in_order: Whether the rows come in order.
    """
    attempts = None
    if task.attempts is not None:
        attempts = Path(task.attempts)
    if isinstance(older, OlderSegment):
        return ComparedSegment(Path(task.directory), file, older, width, attempts)
    size = None
    if not in_order:
        size = task.rows * width
    return SegmentWriter(Path(task.directory, file), attempts, size, task.offset)


def _check_sample(task: TableTask, writer: ComparedSegment) -> None:
    """Compares some rows of a segment, before all of them are; raises as `check_sample`."""
    random = np.random.default_rng(task.first_row)
    sample = np.unique(random.integers(0, task.rows, SAMPLE_ROWS))
    lanes = task.layout.lanes
    bases = task.layout.bases()
    rows = task.first_row + sample
    positions = np.asarray(bases)[rows % lanes] + rows // lanes
    block = np.empty((sample.size, task.stored_row_bytes), np.uint8)
    # Opened apart, so that the sums of what the task reads have each byte once.
    with open_rows(task) as stored:
        stored.read_each([(position, 1) for position in positions.tolist()], block)
    new = np.ascontiguousarray(block[:, : task.dim * task.itemsize])
    if task.converted:
        new = Conversion(task.table, task.dtype, task.written_dtype).stored(new)
    writer.check_sample(sample, new)


def _close_segment(
    task: TableTask, file: str, writer: SegmentWriter | ComparedSegment, offset: int = 0
) -> Segment:
    if isinstance(writer, ComparedSegment):
        return writer.close()
    segment_digest = writer.close()
    return Segment(
        file=file,
        offset=offset,
        first_row=task.first_row,
        rows=task.rows,
        crc32c=segment_digest.crc32c,
        blocks=segment_digest.blocks,
    )


def _convert(
    stored: StoredRows,
    task: TableTask,
    writer: SegmentWriter | ComparedSegment,
    scales: SegmentWriter | ComparedSegment | None,
    scan: FiniteScan,
) -> ErrorSums:
    conversion = Conversion(task.table, task.dtype, task.written_dtype)
    for first, rows in stripes_of(stored, task):
        row = first - task.first_row
        non_finite_rows = scan.scan(rows, first * rows.shape[1])
        if non_finite_rows.size:
            # The table is rejected once all such rows are counted. Until then, zeros keep the
            # conversion from stopping at the first one.
            rows = rows.copy()  # noqa: PLW2901 - the same rows
            rows[non_finite_rows - first] = 0
        for piece in conversion.pieces(rows, first):
            writer.write_at(row * task.row_bytes, piece.stored)
            if scales is not None and piece.scales is not None:
                scales.write_at(row * SCALE_BYTES, piece.scales)
            row += len(piece.stored)
    return conversion.error


def _reject_damaged(stored: StoredRows, subject: str, task: TableTask | SumTask) -> None:
    part = stored.damaged()
    if part is not None:
        raise CheckpointError(_damage_text(f"{subject} ({task.key!r})", part))


def _damage_text(subject: str, part: Slice) -> str:
    first = part.starts[0]
    end = part.starts[0] + part.shape[0]
    return (
        f"{subject}: rows {first} to {end} of the stored variable do not match their checksum in "
        f"data file {part.file} (bytes {part.offset} to {part.offset + part.bytes}): the "
        "checkpoint is damaged; copy it anew or take an older one"
    )

"""Tables -> segments -> tasks, under a memory budget. The whole plan can be printed without
running; no table is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bundle.arithmetic import ceil_div
from bundle.format import paths
from bundle.format.checksums import BLOCK_BYTES
from bundle.format.dtypes import SCALE_BYTES, row_bytes
from bundle.format.manifest import MANIFEST_BYTES_MAX, segments_bytes
from bundle.tables import segments
from export.checkpoint import bands as stored
from export.checkpoint.bands import Band, SlicesOverlap
from export.checkpoint.inventory.specs import Inventory, TableSpec
from export.checkpoint.layouts import Plain, occupied
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Entry, Slice
from export.errors import CheckpointError, NotConvertible, UsageError
from export.tables.conversions import NO_LIMITS, ErrorLimits, written_dtype
from export.tables.tasks import (
    SumTask,
    TableTask,
    block_bytes,
    delta_bytes_max,
    stored_range,
)
from export.tables.unpacking import check_whole, cuts_chunks, unpack, whole_chunks
from object_store.locations import is_url

BUDGET_BYTES = 256 << 20
"""The default memory that one worker may use beyond its libraries."""
SEGMENTS_MAX = 100_000
"""The maximum number of segments of a table: each is a file and a task."""
SUM_TASK_BYTES = 4 << 30
"""The maximum number of bytes that one task sums, so that several workers can share a variable."""
UPLOADS = 4
"""The number of segments that are sent to a store at a time."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options by which a table is written.

    Attributes:
      segment_rows: The number of rows in a segment; None: as many as fit `segment_bytes`.
      dtype: The dtype of the table's rows in the bundle; None: as stored, float64 as float32.
      limits: The limits of the error of converted rows.
      link: Whether the segments are hard links into the checkpoint, if the rows lie there in order.
      segment_bytes: The maximum size of a segment if `segment_rows` is None.
      streamed: Whether a segment is removed from the local disk once a store holds it.
      allow_non_finite: Whether rows may hold NaN or infinities.
    """

    segment_rows: int | None = None
    dtype: str | None = None
    limits: ErrorLimits = NO_LIMITS
    link: bool = False
    segment_bytes: int = segments.SEGMENT_BYTES
    streamed: bool = False
    allow_non_finite: bool = False


AS_STORED = WriteOptions()
"""The options of a table that is copied as the checkpoint stores it."""
_LINKED_NOTE = (
    "its rows are linked and not read: NaN and infinities are found only in rows that are compared "
    "(all of them with --full)"
)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """One table and the slices of the variable that holds it.

    Attributes:
      spec: The table.
      options: How the table is written.
      slices: The slices of its variable.
      tasks: The tasks that write the table; () if it is linked.
      linked: The slices in the order of their rows, each a segment; () if the table is copied.
      note: What the user should know of how the table is written, or "".
    """

    spec: TableSpec
    options: WriteOptions
    slices: tuple[Slice, ...]
    tasks: tuple[TableTask, ...]
    linked: tuple[Slice, ...] = ()
    note: str = ""

    @property
    def dtype(self) -> str:
        """The dtype of the table's rows in the bundle."""
        # A linked table has no tasks, and is not converted.
        if not self.tasks:
            return self.spec.dtype
        return self.tasks[0].written_dtype

    @property
    def bytes(self) -> int:
        """Bytes of the table's rows in the bundle, copied or linked."""
        return sum(task.bytes for task in self.tasks) + sum(part.bytes for part in self.linked)

    @property
    def segments(self) -> int:
        """The number of segments."""
        return len(self.tasks) or len(self.linked)

    @property
    def notes(self) -> str:
        """All that the user should know of the table, or ""."""
        return "; ".join(note for note in (self.spec.note, self.note) if note)

    def to_json(self) -> dict[str, Any]:
        """Returns the plan of the table as JSON values."""
        trained_ids = None
        if self.spec.proof is not None:
            trained_ids = self.spec.proof.model_dump()
        return {
            "rows": self.spec.rows,
            "dim": self.spec.dim,
            "dtype": self.dtype,
            "key": self.spec.key,
            "layout": self.spec.layout_json,
            "stated": self.spec.stated,
            "trained_ids": trained_ids,
            "bytes": self.bytes,
            "slices": self.spec.slices,
            "segments": self.segments,
            "linked": bool(self.linked),
            "note": self.notes,
        }


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The plan of what a job would read and write.

    Attributes:
      checkpoint: The base name of the checkpoint's prefix.
      tables: The tables in the order of their names.
      sum_tasks: The tasks that read rows of no exported table: a crc32c covers them, too.
      left_out_bytes: The bytes of slot variables, which are not read.
      workers: The number of processes that run at a time.
      unpacked: The tasks that decode arrays for other tasks; they run first (see `unpacking`).
      older_version: The version whose segments are reused where the bytes are the same; None if
        none is.
      older_note: Why no segment of an older version is reused, or "".
    """

    checkpoint: str
    tables: tuple[TablePlan, ...]
    sum_tasks: tuple[SumTask, ...]
    left_out_bytes: int
    workers: int
    unpacked: tuple[TableTask, ...] = ()
    older_version: int | None = None
    older_note: str = ""

    @property
    def links(self) -> dict[str, str]:
        """Data file of the checkpoint -> bundle path of the hard link into it."""
        # A data file that holds rows of several tables is linked once.
        files = dict.fromkeys(part.file for table in self.tables for part in table.linked)
        return {file: paths.linked_file(number) for number, file in enumerate(files)}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the tables, a sentence for each."""
        notes = [f"table {table.spec.name}: {table.notes}" for table in self.tables if table.notes]
        if self.older_note:
            notes.append(self.older_note)
        return tuple(notes)

    @property
    def linked_bytes(self) -> int:
        """Bytes of tables that are linked: neither read nor written."""
        return sum(part.bytes for table in self.tables for part in table.linked)

    @property
    def tasks(self) -> tuple[TableTask, ...]:
        """The tasks that write; each may run at any time, anywhere."""
        return tuple(task for table in self.tables for task in table.tasks)

    @property
    def all_tasks(self) -> tuple[TableTask | SumTask, ...]:
        """All tasks."""
        return (*self.tasks, *self.sum_tasks)

    @property
    def bytes(self) -> int:
        """Bytes written."""
        return sum(task.bytes for task in self.tasks)

    @property
    def unpacked_bytes(self) -> int:
        """Bytes of decoded arrays that lie on the disk until the bundle is published."""
        return sum(task.bytes for task in self.unpacked)

    @property
    def local_bytes(self) -> int:
        """An upper bound of the bytes of tables that lie on the local disk at a time.

        Of streamed tables, these are the segments that workers write, one segment that waits for an
        upload, and the segments that are being sent. Each worker also has what it compares with,
        if that is fetched from a store.
        """
        streamed_sizes: list[int] = []
        staying_bytes = 0
        for table in self.tables:
            if table.options.streamed:
                streamed_sizes += [task.staged_bytes for task in table.tasks]
            else:
                staying_bytes += sum(task.staged_bytes for task in table.tasks)
        fetched_sizes = [task.fetched_bytes for task in self.tasks]

        # The largest segments may all be on the disk at the same time.
        streamed_sizes.sort(reverse=True)
        fetched_sizes.sort(reverse=True)
        local_segments = self.workers + 1 + UPLOADS
        fetched_bytes = sum(fetched_sizes[: self.workers])
        return staying_bytes + sum(streamed_sizes[:local_segments]) + fetched_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes that all tasks move: those that are written, and those that are only summed."""
        return sum(task.bytes for task in (*self.unpacked, *self.all_tasks))

    @property
    def read_bytes(self) -> int:
        """Bytes read."""
        copy_tasks = (*self.unpacked, *self.tasks)
        copied_bytes = sum(task.rows * task.stored_row_bytes for task in copy_tasks)
        return copied_bytes + sum(task.bytes for task in self.sum_tasks)

    @property
    def peak_memory_bytes(self) -> int:
        """An upper bound of the memory that all workers use together."""
        tasks = (*self.unpacked, *self.all_tasks)
        # The largest tasks may run at the same time.
        memory_sizes = sorted((task.memory_bytes for task in tasks), reverse=True)
        return sum(memory_sizes[: self.workers])

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON values."""
        tables = {table.spec.name: table.to_json() for table in self.tables}
        return {
            "checkpoint": self.checkpoint,
            "tables": tables,
            "read_bytes": self.read_bytes,
            "written_bytes": self.bytes,
            "older_version": self.older_version,
            "linked_bytes": self.linked_bytes,
            "unpacked_bytes": self.unpacked_bytes,
            "local_bytes": self.local_bytes,
            "left_out_bytes": self.left_out_bytes,
            "files": len(self.tasks) + len(self.links),
            "tasks": len(self.unpacked) + len(self.all_tasks),
            "workers": self.workers,
            "peak_memory_bytes": self.peak_memory_bytes,
            # Those of a table are beside its facts.
            "notes": [self.older_note] if self.older_note else [],
        }


def plan_tables(
    checkpoint: Checkpoint,
    inventory: Inventory,
    directory: Path,
    *,
    tables: Sequence[str] | None = None,
    write_options: Mapping[str, WriteOptions] | None = None,
    budget_bytes: int = BUDGET_BYTES,
    workers: int = 1,
) -> ExportPlan:
    """Plans the copy of tables.

    Args:
      checkpoint: The open checkpoint.
      inventory: The checkpoint's inventory, as `recognize` returns it.
      directory: The directory where bundle paths will begin; it need not exist yet.
      tables: The names of the tables to export; None: all.
      write_options: The options of tables by name. Other tables are written as they are stored.
      budget_bytes: The memory that one worker may use beyond its libraries.
      workers: The number of processes that will run at a time.
    Raises:
      NotConvertible: A requested table does not exist or cannot be exported, no table is known at
        all, or the tables are larger than one bundle can describe; the error says the remedy.
      UsageError: Segments are so small that there would be more than SEGMENTS_MAX.
      CheckpointError: The slices of a table overlap or leave a gap.
    """
    options_by_table = dict(write_options or {})
    # A name that the checkpoint lacks raises an error: its options would be ignored otherwise.
    for name in options_by_table:
        inventory.table(name)
    plans = []
    unpacked: dict[str, tuple[Entry, tuple[TableTask, ...]]] = {}
    for spec in _select_tables(inventory, tables):
        options = options_by_table.get(spec.name, AS_STORED)
        check_exportable(spec, options)
        entry = checkpoint.entries[spec.key]
        if entry.array is not None:
            check_whole(spec.name, entry.array)
            if cuts_chunks(spec, entry.array, options.segment_rows):
                # Tables of a stack share its array, which is decoded once for all of them.
                if spec.key not in unpacked:
                    unpacked[spec.key] = unpack(entry, len(unpacked), directory, budget_bytes)
                entry = unpacked[spec.key][0]
        plans.append(_plan_table(checkpoint, spec, entry, options, directory, budget_bytes))

    # The plan decides the number of checksums, so it is checked before anything is copied.
    _check_manifest(plans)
    # The slices of a linked table are not read, so that no sum of them has to be completed.
    sum_tasks = _sum_tasks(checkpoint, [plan.spec for plan in plans if plan.tasks], budget_bytes)
    return ExportPlan(
        inventory.checkpoint,
        tuple(plans),
        sum_tasks,
        inventory.slot_bytes,
        workers,
        tuple(task for _, tasks in unpacked.values() for task in tasks),
    )


def _plan_table(
    checkpoint: Checkpoint,
    spec: TableSpec,
    entry: Entry,
    options: WriteOptions,
    directory: Path,
    budget_bytes: int,
) -> TablePlan:
    """Plans the copy of one table, or the links to its slices.

    Args:
      checkpoint: The open checkpoint.
      spec: The table.
      entry: The table's variable as tasks read it: in the checkpoint, or unpacked.
      options: How the table is written.
      directory: The directory where bundle paths begin.
      budget_bytes: The memory that one worker may use beyond its libraries.
    """
    # The checkpoint's own slices, whose checksums are checked, not those of unpacked files.
    slices = checkpoint.entries[spec.key].slices
    bands = _bands(spec, entry, checkpoint.name)
    hindrance = ""
    if options.link:
        hindrance = _hindrance(spec, entry, bands, options)
    if options.link and not hindrance:
        # Each band is one slice: `_hindrance` excludes variables that are cut by columns.
        linked = tuple(band.slices[0] for band in bands)
        return TablePlan(spec, options, slices, (), linked, _LINKED_NOTE)

    is_remote = any(is_url(part.file) for part in entry.slices)
    block_size = block_bytes(spec.layout.lanes, budget_bytes, remote=is_remote)
    tasks = _tasks(spec, entry, bands, directory, options, block_size)
    note = ""
    if hindrance:
        note = f"it is copied, not linked: {hindrance}"
    elif options.dtype is None and tasks[0].converted:
        note = f"its rows are converted from {spec.dtype} to {tasks[0].written_dtype}"
    return TablePlan(spec, options, slices, tasks, note=note)


def _select_tables(inventory: Inventory, names: Sequence[str] | None) -> list[TableSpec]:
    # A name that is given twice is exported once.
    if names is not None:
        return sorted(
            (inventory.table(name) for name in dict.fromkeys(names)), key=lambda table: table.name
        )
    if inventory.rejected:
        # Nobody would notice that a table is left out, so the error of the first one is raised.
        inventory.table(inventory.rejected[0].name)
    if not inventory.tables:
        raise NotConvertible(
            f"no table is recognized in checkpoint {inventory.checkpoint}; "
            f"{inventory.naming_help()}"
        )
    return list(inventory.tables)


def check_exportable(spec: TableSpec, options: WriteOptions = AS_STORED) -> None:
    """Checks dtype, name and shape of a table.

    Raises:
      NotConvertible: The table cannot be in a bundle as it is; the error says why.
    """
    written_dtype(spec.name, spec.dtype, options.dtype)
    if not paths.is_name(spec.name):
        raise NotConvertible(
            f"table {spec.name!r} cannot be called so in a bundle (letters, digits, '_', '.', '-'; "
            f"at most 128; beginning with a letter or digit); name it with --table NAME={spec.name}"
        )
    if spec.rows < 1 or spec.dim < 1:
        raise NotConvertible(
            f"table {spec.name!r} of shape [{spec.rows}, {spec.dim}] holds nothing; leave it out"
        )


class ManifestEntries(NamedTuple):
    """How much of a manifest tables take, at most.

    Attributes:
      blocks: The number of checksums of blocks.
      files: The number of segments and deltas.
    """

    blocks: int
    files: int


def manifest_entries(plans: Sequence[TablePlan]) -> ManifestEntries:
    """Returns what tables take of a manifest: their segments, and the deltas that those may have
    which are compared with older ones.
    """
    blocks = 0
    files = 0
    for table in plans:
        files += len(table.linked)
        for task in table.tasks:
            segments_of_task = [(task.row_bytes, task.older)]
            if task.scales is not None:
                segments_of_task.append((SCALE_BYTES, task.older_scales))
            for width, older in segments_of_task:
                blocks += ceil_div(task.rows * width, BLOCK_BYTES)
                files += 1
                if older is not None:
                    deltas = older.segment.deltas
                    blocks += sum(len(delta.blocks) for delta in deltas)
                    blocks += ceil_div(delta_bytes_max(task.rows, width), BLOCK_BYTES)
                    files += len(deltas) + 1
    return ManifestEntries(blocks, files)


def _check_manifest(plans: Sequence[TablePlan]) -> None:
    """Rejects tables with more block checksums than readers of a manifest take."""
    entries = manifest_entries(plans)
    needed_bytes = segments_bytes(*entries)
    if needed_bytes > MANIFEST_BYTES_MAX:
        copied_bytes = sum(task.bytes for table in plans for task in table.tasks)
        raise NotConvertible(
            f"the tables need {entries.blocks} checksums, one for each 4 MiB of the {copied_bytes} "
            f"bytes that are copied, and {entries.files} segments: a manifest of up to "
            f"{needed_bytes} bytes, of which readers take {MANIFEST_BYTES_MAX}; write "
            'smaller rows (dtype bfloat16 or int8), link the tables (tables = "link"), or divide '
            "them among several bundles; other segment sizes do not help"
        )


def _hindrance(spec: TableSpec, entry: Entry, bands: Sequence[Band], options: WriteOptions) -> str:
    """Returns why a table cannot be linked; "" if it can."""
    dtype = written_dtype(spec.name, spec.dtype, options.dtype)
    hindrances = (
        (entry.array is not None, "its values lie in encoded chunks"),
        (
            not isinstance(spec.layout, Plain),
            "its rows do not lie in order in the checkpoint",
        ),
        (spec.stored != (spec.rows, spec.dim), "padding is cut off"),
        (dtype != spec.dtype, f"its rows are converted from {spec.dtype} to {dtype}"),
        (
            any(len(band.slices) > 1 for band in bands),
            "its rows are cut by columns in the checkpoint",
        ),
        # Nothing is read of a linked table: the checksums of its segments are those of the slices.
        (any(part.crc32c is None for part in entry.slices), "its storage keeps no checksums"),
        (
            any("://" in part.file for part in entry.slices),
            "the checkpoint is not on this machine's disks",
        ),
    )
    return next((reason for holds, reason in hindrances if holds), "")


def _bands(spec: TableSpec, entry: Entry, checkpoint: str) -> list[Band]:
    # An array has no slices: `ArrayRows` finds its chunks itself.
    if entry.array is not None:
        return []
    first, end = stored_range(spec.layout, 0, spec.rows)
    try:
        return stored.bands(entry.slices, spec.stored[1], first, end - first)
    except SlicesOverlap as problem:
        raise CheckpointError(
            f"table {spec.name!r} ({spec.key!r} in checkpoint {checkpoint}): {problem}; save it "
            "anew"
        ) from problem


def _tasks(
    spec: TableSpec,
    entry: Entry,
    bands: Sequence[Band],
    directory: Path,
    options: WriteOptions,
    block_bytes: int,
) -> tuple[TableTask, ...]:
    dtype = written_dtype(spec.name, spec.dtype, options.dtype)
    rows_max = options.segment_rows or segments.segment_rows(
        row_bytes(dtype, spec.dim), options.segment_bytes
    )
    if options.segment_rows is None:
        # Whole rounds of the lanes: only the last block of the table is cut within one.
        whole_rounds = rows_max - rows_max % spec.layout.lanes
        rows_max = whole_rounds or rows_max
    # A chunk is decoded as a whole: no two tasks should share one (ADR 38).
    if entry.array is not None:
        rows_max = whole_chunks(rows_max, entry.array)
    segment_count = ceil_div(spec.rows, rows_max)
    if segment_count > SEGMENTS_MAX:
        raise UsageError(
            f"table {spec.name!r} of {spec.rows} rows would become {segment_count} files of "
            f"{rows_max} rows; at most {SEGMENTS_MAX} are written; raise segment_rows"
        )
    tasks = []
    for number, segment in enumerate(segments.cut(spec.rows, rows_max)):
        first, end = stored_range(spec.layout, segment.first, segment.rows)
        # A slice of a grid lies in several bands, and the task opens it once.
        pieces: list[Slice] = []
        for band in stored.within(bands, first, end - first):
            pieces += band.slices
        file = paths.table_segment(spec.name, number, segment_count)
        scales = None
        if dtype == "int8":
            scales = paths.table_scales(spec.name, number, segment_count)
        tasks.append(
            TableTask(
                table=spec.name,
                dim=spec.dim,
                key=spec.key,
                dtype=spec.dtype,
                first_row=segment.first,
                rows=segment.rows,
                layout=spec.layout,
                stored=spec.stored,
                slices=tuple(dict.fromkeys(pieces)),
                array=entry.array,
                written_dtype=dtype,
                directory=str(directory),
                file=file,
                block_bytes=block_bytes,
                scales=scales,
            )
        )
    return tuple(tasks)


def _sum_tasks(
    checkpoint: Checkpoint, specs: Sequence[TableSpec], budget_bytes: int
) -> tuple[SumTask, ...]:
    """Plans the reading of the rows of variables that belong to no exported table."""
    tasks: list[SumTask] = []
    for key in dict.fromkeys(spec.key for spec in specs):
        entry = checkpoint.entries[key]
        if entry.array is not None:
            # An array has no checksum that its other rows would complete.
            continue
        table_specs = [spec for spec in specs if spec.key == key]
        occupied_ranges: list[tuple[int, int]] = []
        for spec in table_specs:
            occupied_ranges += occupied(spec.layout, spec.rows)
        # Gaps lie between neighbors, and the tables of a stack come in the order of their names.
        occupied_ranges.sort()
        tasks += plan_sums(entry, _gaps(occupied_ranges, entry.shape[0]), budget_bytes)
    return tuple(tasks)


def plan_sums(entry: Entry, ranges: Sequence[tuple[int, int]], budget_bytes: int) -> list[SumTask]:
    """Plans the reading of rows of a variable that no task copies.

    Args:
      entry: The variable, [rows, columns] in slices.
      ranges: The ranges of its rows, [first, end), ascending.
      budget_bytes: The memory that one worker may use beyond its libraries.
    """
    columns = entry.shape[1]
    tasks = []
    rows_max = max(1, SUM_TASK_BYTES // (columns * entry.itemsize))
    for number, batch in enumerate(_batches(ranges, rows_max)):
        first = batch[0][0]
        end = batch[-1][1]
        slices = tuple(
            part
            for part in entry.slices
            if part.starts[0] < end and part.starts[0] + part.shape[0] > first
        )
        tasks.append(
            SumTask(
                step=f"rest of {entry.key} {number:05d}",
                key=entry.key,
                columns=columns,
                itemsize=entry.itemsize,
                ranges=tuple(batch),
                slices=slices,
                block_bytes=block_bytes(1, budget_bytes),
            )
        )
    return tasks


def _gaps(occupied_ranges: Sequence[tuple[int, int]], rows: int) -> list[tuple[int, int]]:
    """Returns the ranges of [0, rows) between ascending ranges."""
    ends = [0, *(end for _, end in occupied_ranges)]
    starts = [*(first for first, _ in occupied_ranges), rows]
    return [(low, high) for low, high in zip(ends, starts, strict=True) if low < high]


def _batches(ranges: Sequence[tuple[int, int]], rows_max: int) -> list[list[tuple[int, int]]]:
    """Cuts ranges into batches of at most `rows_max` rows."""
    batches: list[list[tuple[int, int]]] = []
    remaining_rows = 0
    for first, end in ranges:
        low = first
        while low < end:
            if remaining_rows == 0:
                batches.append([])
                remaining_rows = rows_max
            # A range may exceed the remaining rows of a batch: then it goes on in the next one.
            high = min(end, low + remaining_rows)
            batches[-1].append((low, high))
            remaining_rows -= high - low
            low = high
    return batches

"""Segments of the newest published version, of which a new version shares the rows that did not
change.

A segment is compared if it holds the same rows of a table of the same name, width and dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bundle.errors import BundleError
from bundle.format import manifest
from bundle.format.manifest import MANIFEST_BYTES_MAX, segments_bytes
from bundle.format.tables import Segment
from bundle.storage import catalog
from export.tables.plan import ExportPlan, TablePlan, manifest_entries
from export.tables.segments import Receipt
from export.tables.tasks import OlderSegment, StoredSegment, TableTask


@dataclass(frozen=True)
class OlderVersion:
    """The newest published version of a model.

    Attributes:
      number: The number of the version.
      tables: The tables of its manifest, by name.
      locate: Returns where the files of a segment are; None: some are missing.
    """

    number: int
    tables: Mapping[str, manifest.Table]
    locate: Callable[[Segment], OlderSegment | StoredSegment | None]


@dataclass(frozen=True)
class ReusedSegments:
    """What a new version takes from older versions, and what it adds to them.

    Attributes:
      segments: The number of segments, of rows and of scales, in which nothing changed.
      bytes: The bytes of tables that lie in files of older versions.
      changed_rows: The number of rows in the deltas that were written; a row of int8 that has
        another scale, too, counts twice.
      written_bytes: The bytes of tables that were written: deltas, and segments as a whole.
      link_problem: Why files of an older version could not be fetched or linked, or "".
    """

    segments: int = 0
    bytes: int = 0
    changed_rows: int = 0
    written_bytes: int = 0
    link_problem: str = ""

    @property
    def notes(self) -> list[str]:
        """What the user should know."""
        if not self.link_problem:
            return []
        return [
            "segments were written whole, because those of the older version cannot be shared: "
            f"{self.link_problem}"
        ]


NOTHING_REUSED = ReusedSegments()


def compare_with_newest(plan: ExportPlan, model_directory: Path) -> ExportPlan:
    """Returns a plan whose tasks compare what they produce with the newest published version.

    Args:
      plan: The plan of a new version.
      model_directory: The directory that holds the versions of the model.
    """
    versions = catalog.committed_versions(model_directory.parent, model_directory.name)
    if not versions:
        return plan
    directory = model_directory / str(versions[-1])
    try:
        tables = catalog.read_manifest(directory).tables
    except (BundleError, OSError) as problem:
        return without_older_segments(plan, problem)
    # Hard links cannot lead to another file system.
    if directory.stat().st_dev != model_directory.stat().st_dev:
        return replace(
            plan,
            older_note=f"no segment of version {versions[-1]} is reused: it is on another file "
            f"system than {model_directory}",
        )
    older = OlderVersion(
        versions[-1], tables, lambda segment: OlderSegment(str(directory), segment)
    )
    return with_older_segments(plan, older)


def without_older_segments(plan: ExportPlan, problem: BundleError | OSError) -> ExportPlan:
    """Returns a plan that notes why nothing is compared."""
    text = str(problem)
    if isinstance(problem, OSError):
        text = f"{problem.filename}: {problem.strerror}"
    return replace(plan, older_note=f"no segment of an older version is reused: {text}")


def with_older_segments(plan: ExportPlan, older: OlderVersion) -> ExportPlan:
    """Returns a plan whose tasks compare what they produce with an older version."""
    tables = tuple(_with_older_segments(table, older) for table in plan.tables)
    if segments_bytes(*manifest_entries(tables)) > MANIFEST_BYTES_MAX:
        return replace(
            plan,
            older_note=f"no segment of version {older.number} is reused: the checksums of all "
            "deltas might exceed the size of a manifest",
        )
    return replace(plan, tables=tables, older_version=older.number)


def reused_segments(receipts: Iterable[Receipt]) -> ReusedSegments:
    """Returns what tasks took from older versions, in this run and in earlier ones."""
    receipt_list = list(receipts)
    problems = [receipt.link_problem for receipt in receipt_list if receipt.link_problem]
    return ReusedSegments(
        sum(receipt.reused_segments for receipt in receipt_list),
        sum(receipt.reused_bytes for receipt in receipt_list),
        sum(receipt.changed_rows for receipt in receipt_list),
        sum(receipt.written_bytes for receipt in receipt_list),
        next(iter(problems), ""),
    )


def _with_older_segments(table: TablePlan, older: OlderVersion) -> TablePlan:
    """Returns the plan of a table whose tasks know the segments of the older version."""
    entry = older.tables.get(table.spec.name)
    # Equal bytes of another width or dtype are other rows.
    if entry is None or (entry.dim, entry.dtype) != (table.spec.dim, table.dtype):
        return table
    rows = _by_rows(entry.segments, older)
    scales = _by_rows(entry.scales, older)

    def with_older_segments(task: TableTask) -> TableTask:
        row_range = task.first_row, task.rows
        older_scales = None
        if task.scales:
            older_scales = scales.get(row_range)
        return replace(task, older=rows.get(row_range), older_scales=older_scales)

    return replace(table, tasks=tuple(with_older_segments(task) for task in table.tasks))


def _by_rows(
    segments: Sequence[Segment], older: OlderVersion
) -> dict[tuple[int, int], OlderSegment | StoredSegment | None]:
    """Returns the segments that can be shared, by their first row and their number of rows.

    The file of a linked segment is one of a checkpoint, and that of a part of a segment, which a
    shard has, holds other rows: both hold more than the segment.
    """
    return {
        (segment.first_row, segment.rows): older.locate(segment)
        for segment in segments
        if segment.blocks
        and not segment.offset
        and not any(delta.skipped_rows for delta in segment.deltas)
    }

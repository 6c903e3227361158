"""Segments of the newest published version, of which a new version shares the rows that did not
change.

A segment is compared if it holds the same rows of a table of the same name, width and dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bundle.errors import BundleError
from bundle.format import manifest
from bundle.format.tables import Segment
from bundle.storage import catalog
from export.tables.plan import ExportPlan, TablePlan
from export.tables.segments import Receipt
from export.tables.tasks import OlderSegment, TableTask


@dataclass(frozen=True)
class OlderVersion:
    """The newest published version of a model.

    Attributes:
      number: The number of the version.
      directory: The directory of its bundle.
      tables: The tables of its manifest, by name.
    """

    number: int
    directory: Path
    tables: Mapping[str, manifest.Table]


@dataclass(frozen=True)
class ReusedSegments:
    """What a new version takes from older versions, and what it adds to them.

    Attributes:
      segments: The number of segments, of rows and of scales, in which nothing changed.
      bytes: The bytes of tables that lie in files of older versions.
      changed_rows: The number of rows in the deltas that were written; a row of int8 that has
        another scale, too, counts twice.
      written_bytes: The bytes of tables that were written: deltas, and segments as a whole.
      link_problem: Why files of an older version could not be linked, or "".
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
            "segments were written whole, because those of the older version cannot be linked: "
            f"{self.link_problem}"
        ]


NOTHING_REUSED = ReusedSegments()


def compare_with_newest(plan: ExportPlan, model_directory: Path) -> ExportPlan:
    """Returns a plan whose tasks compare what they produce with the newest published version.

    Args:
      plan: The plan of a new version.
      model_directory: The directory that holds the versions of the model.
    """
    try:
        older = _newest_version(model_directory)
    except (BundleError, OSError) as problem:
        return replace(
            plan, older_note=f"no segment of an older version is reused: {_problem_text(problem)}"
        )
    if older is None:
        return plan
    # Hard links cannot lead to another file system.
    if older.directory.stat().st_dev != model_directory.stat().st_dev:
        return replace(
            plan,
            older_note=f"no segment of version {older.number} is reused: it is on another file "
            f"system than {model_directory}",
        )
    tables = tuple(_with_older_segments(table, older) for table in plan.tables)
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


def _newest_version(model_directory: Path) -> OlderVersion | None:
    """Returns the newest published version; None if there is none.

    Raises:
      BundleError: The manifest of the version is invalid.
      OSError: The manifest cannot be read.
    """
    versions = catalog.committed_versions(model_directory.parent, model_directory.name)
    if not versions:
        return None
    directory = model_directory / str(versions[-1])
    return OlderVersion(versions[-1], directory, catalog.read_manifest(directory).tables)


def _with_older_segments(table: TablePlan, older: OlderVersion) -> TablePlan:
    """Returns the plan of a table whose tasks know the segments of the older version."""
    entry = older.tables.get(table.spec.name)
    # Equal bytes of another width or dtype are other rows.
    if entry is None or (entry.dim, entry.dtype) != (table.spec.dim, table.dtype):
        return table
    rows = _by_rows(entry.segments, older.directory)
    scales = _by_rows(entry.scales, older.directory)

    def with_older_segments(task: TableTask) -> TableTask:
        row_range = task.first_row, task.rows
        older_scales = None
        if task.scales:
            older_scales = scales.get(row_range)
        return replace(task, older=rows.get(row_range), older_scales=older_scales)

    return replace(table, tasks=tuple(with_older_segments(task) for task in table.tasks))


def _by_rows(segments: Sequence[Segment], directory: Path) -> dict[tuple[int, int], OlderSegment]:
    """Returns the segments that can be shared, by their first row and their number of rows.

    The file of a linked segment is one of a checkpoint, and that of a part of a segment, which a
    shard has, holds other rows: both hold more than the segment.
    """
    return {
        (segment.first_row, segment.rows): OlderSegment(str(directory), segment)
        for segment in segments
        if segment.blocks
        and not segment.offset
        and not any(delta.skipped_rows for delta in segment.deltas)
    }


def _problem_text(problem: BundleError | OSError) -> str:
    """Returns the text of a problem for a note."""
    if isinstance(problem, OSError):
        return f"{problem.filename}: {problem.strerror}"
    return str(problem)

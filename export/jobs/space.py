"""Checks that a plan fits the disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bundle.format import paths
from bundle.format.tables import DELTAS_MAX
from bundle.tables.key_index import ENTRY_BYTES, index_bytes
from export.errors import DestinationError
from export.report_text import size_text
from export.tables.plan import ExportPlan
from export.tables.tasks import OlderSegment, TableTask

STAT_BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the size of the file system's own blocks."""


def check_plan_fits(plan: ExportPlan, directory: Path) -> None:
    """Rejects a plan of tables that does not fit the disk of a directory: see `check_space`.

    What an earlier run left staged is counted as written: this run goes on with it, or removes it
    first. Segments that may share rows with an older version are not counted, since it is not known
    yet how many rows are written.
    """
    compared_tasks = [task for task in plan.tasks if isinstance(task.older, OlderSegment)]
    finished_bytes = _staged_bytes(plan, compared_tasks)
    key_counts = [table.spec.rows for table in plan.tables if table.spec.keys]
    # An index needs space twice: its entries are sorted in a file, then written.
    key_index_bytes = sum(index_bytes(count) + ENTRY_BYTES * count for count in key_counts)
    compared_bytes = sum(task.bytes for task in compared_tasks)
    table_bytes = plan.local_bytes + plan.unpacked_bytes - compared_bytes
    if finished_bytes:
        # The run that staged these rows has checked that the indexes fit.
        key_index_bytes = 0
    check_space(directory, table_bytes - finished_bytes + key_index_bytes)


def check_space(directory: Path, needed_bytes: int, remedy: str = "") -> None:
    """Checks that the disk of a directory has space, or that of the nearest existing one above it.

    Args:
      directory: The directory, which may not exist yet.
      needed_bytes: The number of bytes that will be written.
      remedy: What else the user can do, for the message.

    Raises:
      DestinationError: There is less space; the message has both sizes, and the remedies.
    """
    directory = directory.absolute()
    existing = next(path for path in (directory, *directory.parents) if path.is_dir())
    free_bytes = shutil.disk_usage(existing).free
    if needed_bytes > free_bytes:
        raise DestinationError(
            f"{directory} has {size_text(free_bytes)} free, the tables need "
            f"{size_text(needed_bytes)}: {size_text(needed_bytes - free_bytes)} more; "
            f"free some, or export to another disk{remedy}"
        )


def _staged_bytes(plan: ExportPlan, uncounted_tasks: Sequence[TableTask]) -> int:
    """Returns how much of the disk is taken by the files that lie where the plan would write,
    without the segments of the tasks that are not counted.
    """
    blocks = 0
    uncounted = set()
    for task in uncounted_tasks:
        for segment in filter(None, (task.file, task.scales)):
            deltas = [paths.delta(segment, number) for number in range(1, DELTAS_MAX + 1)]
            uncounted |= {Path(task.directory, path) for path in (segment, *deltas)}
    for table_directory in dict.fromkeys(Path(task.directory) for task in plan.tasks):
        for file in table_directory.rglob("*"):
            if file in uncounted:
                continue
            # Another run may be at work there, which is reported later.
            with suppress(FileNotFoundError):
                blocks += file.lstat().st_blocks
    return blocks * STAT_BLOCK_BYTES

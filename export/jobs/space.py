"""Whether a plan fits the disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bundle.tables.key_index import ENTRY_BYTES, index_bytes
from export.errors import DestinationError
from export.report_text import size_text
from export.tables.plan import ExportPlan
from export.tables.tasks import TableTask

_BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the size of the file system's own blocks."""


def check_plan_fits(plan: ExportPlan, directory: Path) -> None:
    """Rejects a plan of tables that does not fit the disk of a directory: see `check_space`.

    What an earlier run left staged is counted as written: this run goes on with it, or removes it
    first. Segments that may be those of an older version are not counted, since it is not known yet
    how many of them are written.
    """
    compared = [task for task in plan.tasks if task.older is not None]
    finished_bytes = _staged_bytes(plan, compared)
    keyed = [table.spec.rows for table in plan.tables if table.spec.keys]
    # An index needs space twice: its entries are sorted in a file, then written.
    indexes = sum(index_bytes(rows) + ENTRY_BYTES * rows for rows in keyed)
    tables = plan.local_bytes + plan.unpacked_bytes - sum(task.bytes for task in compared)
    if finished_bytes:
        # The run that staged these rows has checked that the indexes fit.
        indexes = 0
    check_space(directory, tables - finished_bytes + indexes)


def check_space(directory: Path, needed: int, remedy: str = "") -> None:
    """Rejects what does not fit the disk of a directory, or of the nearest one above it that
    exists.

    Raises:
      DestinationError: There is less space; the message has both sizes, and the further remedy.
    """
    directory = directory.absolute()
    existing = next(path for path in (directory, *directory.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DestinationError(
            f"{directory} has {size_text(free)} free, the tables need {size_text(needed)}: "
            f"{size_text(needed - free)} more; free some, or export to another disk{remedy}"
        )


def _staged_bytes(plan: ExportPlan, compared: Sequence[TableTask]) -> int:
    """Returns how much of the disk is taken by what lies where the plan would write, without the
    segments of the tasks that are not counted.
    """
    blocks = 0
    uncounted = {Path(task.directory, task.file) for task in compared}
    uncounted |= {Path(task.directory, task.scales) for task in compared if task.scales}
    for table_directory in dict.fromkeys(Path(task.directory) for task in plan.tasks):
        for file in table_directory.rglob("*"):
            if file in uncounted:
                continue
            # Another run may be at work there, which is reported later.
            with suppress(FileNotFoundError):
                blocks += file.lstat().st_blocks
    return blocks * _BLOCK_BYTES

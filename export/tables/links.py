"""Tables that are not copied: hard links into the checkpoint's data files, where its slices are the
bundle's segments.

A slice's crc32c in the checkpoint is the segment's; its bytes are not read. What else lies in a
data file (slot variables, other tables) is no content of the bundle, and stays on the disk as long
as the link.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from bundle.format.manifest import Segment
from bundle.storage import files
from export.errors import CheckpointError, DestinationError
from export.tables.plan import ExportPlan, TablePlan
from object_store.locations import is_url

_REASONS = {
    errno.EXDEV: "they are on different filesystems",
    errno.EPERM: "the filesystem or its rules forbid hard links to it (is it another user's?)",
    errno.EMLINK: "it has as many links as the filesystem allows",
}


def link_files(plan: ExportPlan, directory: Path) -> None:
    """Links the data files that a plan names; those that an earlier run linked stay.

    Args:
      plan: The plan.
      directory: The directory where bundle paths begin.
    Raises:
      CheckpointError: A data file is gone.
      DestinationError: The destination cannot hold hard links to a data file: it is on another
        filesystem, or on one without hard links.
    """
    for source, path in plan.links.items():
        link_file(source, directory / path, 'copy the tables instead (tables = "copy")')


def link_file(source: str, link: Path, remedy: str) -> None:
    """Links a data file of a checkpoint, unless an earlier run linked it.

    Args:
      source: The data file.
      link: The path of the link.
      remedy: What to do if the file cannot be linked, for the message.
    Raises:
      CheckpointError: The data file is gone.
      DestinationError: The file cannot be linked; the error names the reason.
    """
    if is_url(source):
        raise DestinationError(
            f"data file {source} cannot be linked: it lies in an object store; {remedy}"
        )
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        # An earlier run may have linked a data file that was replaced since.
        if link.exists() and not link.samefile(source):
            link.unlink()
        if not link.exists():
            # os.link would make a link to a symbolic link, which leads out of the bundle.
            os.link(os.path.realpath(source), link)
    except FileNotFoundError as problem:
        raise CheckpointError(
            f"data file {source} is gone; did its training job delete the checkpoint?"
        ) from problem
    except OSError as problem:
        reason = _REASONS.get(problem.errno or 0, problem.strerror or str(problem))
        raise DestinationError(
            f"data file {source} cannot be linked as {link}: {reason}; {remedy}"
        ) from problem
    # Otherwise, a loss of power could undo the link.
    files.sync(link.parent)


def linked_segments(table: TablePlan, links: Mapping[str, str]) -> tuple[Segment, ...]:
    """Returns the segments of a linked table.

    Args:
      table: The plan of the table.
      links: The bundle path of each data file that is linked.
    """
    return tuple(
        Segment(
            file=links[part.file],
            offset=part.offset,
            first_row=part.starts[0],
            rows=part.shape[0],
            crc32c=part.crc32c or 0,
            blocks=(),
        )
        for part in table.linked
    )

"""Segments of an older version in a store, fetched for as long as a task compares its rows with one
of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bundle.errors import BundleError
from bundle.format.tables import Delta, Segment
from export.tables.tasks import OlderSegment, StoredSegment, TableTask
from object_store.remote_path import RemotePath
from object_store.stored_content import content_of, fetch_file


@contextmanager
def with_fetched_segments(task: TableTask) -> Iterator[tuple[TableTask, str]]:
    """Fetches the older segments of a task that are in a store, until the context is left.

    Args:
      task: The task.

    Yields:
      The task with older segments on the local disk, or with none where one cannot be fetched, and
      the reason, or "".
    """
    if not task.fetched_bytes:
        yield task, ""
        return
    problem_text = ""
    # On the disk of the segment: files that are fetched become files of the new version by links.
    with TemporaryDirectory(dir=task.attempts or task.directory) as name:
        older_segments: list[OlderSegment | None] = []
        for stored in (task.older, task.older_scales):
            older = None
            if isinstance(stored, StoredSegment):
                try:
                    _fetch(stored, Path(name))
                    older = OlderSegment(name, stored.segment)
                except (BundleError, OSError) as problem:
                    problem_text = problem_text or str(problem)
            older_segments.append(older)
        older, older_scales = older_segments
        yield replace(task, older=older, older_scales=older_scales), problem_text


def _fetch(stored: StoredSegment, directory: Path) -> None:
    """Writes the files of a segment into a directory, under their bundle paths.

    Raises:
      DigestMismatch: The store holds other bytes.
      OSError: The store cannot be read, or the disk is full.
    """
    extents: list[Segment | Delta] = [stored.segment, *stored.segment.deltas]
    for extent in extents:
        file = stored.files[extent.file]
        content = content_of(RemotePath(stored.model), file)
        fetch_file(content, file.bytes, extent, directory)

"""Segments of an older version in a store, fetched for as long as a task compares its rows with one
of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bundle.errors import BundleError, DigestMismatch
from bundle.format.checksums import BLOCK_BYTES, crc32c
from bundle.format.objects import OBJECT_BYTES, pool_path
from bundle.format.tables import Delta, Segment
from export.tables.tasks import OlderSegment, StoredSegment, TableTask
from object_store.remote_path import RemotePath
from object_store.stored_content import StoredContent

_REQUESTS = 8
"""The number of requests at a time: one waits for the store most of the time."""


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
        objects = [RemotePath(stored.model) / pool_path(sha256) for sha256 in file.objects]
        content = StoredContent(tuple(objects), OBJECT_BYTES)
        fetch_file(content, file.bytes, extent, directory)


def fetch_file(content: StoredContent, size: int, extent: Segment | Delta, directory: Path) -> None:
    """Writes the file of a segment or of a delta into a directory, under its bundle path.

    Args:
      content: The content of the file in a store.
      size: The size of the file in bytes.
      extent: The segment or the delta, which fills the file.
      directory: The directory on a disk.

    Raises:
      DigestMismatch: The store holds other bytes.
      OSError: The store cannot be read, or the disk is full.
    """
    path = directory / extent.file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb", buffering=0) as file:

        def fetch(number: int) -> None:
            offset = number * BLOCK_BYTES
            data = content.read(offset, min(BLOCK_BYTES, size - offset))
            if crc32c(data) != extent.blocks[number]:
                raise DigestMismatch(
                    f"object {content.object_at(offset)} differs from its checksum"
                )
            unwritten = memoryview(data)
            while unwritten:
                # It may write less than it was given.
                count = os.pwrite(file.fileno(), unwritten, offset)
                offset += count
                unwritten = unwritten[count:]

        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="rowcast-fetch") as pool:
            for _ in pool.map(fetch, range(len(extent.blocks))):
                pass

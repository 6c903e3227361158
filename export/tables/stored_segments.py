"""Segments of an older version in a store, fetched for as long as a task compares its rows with one
of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import DigestMismatch
from bundle.format.checksums import BLOCK_BYTES, crc32c
from bundle.format.objects import OBJECT_BYTES, StoredFile, pool_path
from bundle.format.tables import Delta, Segment
from object_store.remote_path import RemotePath
from object_store.stored_content import StoredContent

_REQUESTS = 8
"""The number of requests at a time: one waits for the store most of the time."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment of a version in a store.

    Attributes:
      model: The URL of the directory of the model.
      segment: The segment.
      files: Which objects its file and those of its deltas are, by their bundle paths.
    """

    model: str
    segment: Segment
    files: Mapping[str, StoredFile]

    @property
    def bytes(self) -> int:
        """The bytes of its files."""
        return sum(file.bytes for file in self.files.values())

    def fetch(self, directory: Path) -> None:
        """Writes its files into a directory, under their bundle paths.

        Raises:
          DigestMismatch: The store holds other bytes.
          OSError: The store cannot be read, or the disk is full.
        """
        extents: list[Segment | Delta] = [self.segment, *self.segment.deltas]
        for extent in extents:
            stored = self.files[extent.file]
            objects = [RemotePath(self.model) / pool_path(sha256) for sha256 in stored.objects]
            content = StoredContent(tuple(objects), OBJECT_BYTES)
            fetch_file(content, stored.bytes, extent, directory)


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

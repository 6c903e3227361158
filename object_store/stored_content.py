"""The content of a file that lies in a store as one object, or as several."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import DigestMismatch
from bundle.format import paths
from bundle.format.checksums import BLOCK_BYTES, crc32c
from bundle.format.objects import OBJECT_BYTES, OBJECTS, StoredFile, pool_path
from bundle.format.tables import Delta, Segment
from object_store.remote_path import RemotePath

_REQUESTS = 8
"""The number of requests at a time: one waits for the store most of the time."""


def is_committed(directory: RemotePath) -> bool:
    """Returns whether a version can be read: published by an exporter, or copied as it lies on a
    disk. One of these files is written last.
    """
    return any((directory / name).is_file() for name in (OBJECTS, paths.MANIFEST))


@dataclass(frozen=True)
class StoredContent:
    """The content of a file in a store.

    Attributes:
      objects: The objects that hold it, in the order of its bytes.
      object_bytes: The size of each but the last; None if there is one, of any size.
    """

    objects: tuple[RemotePath, ...]
    object_bytes: int | None = None

    def read(self, offset: int, count: int) -> bytes:
        """Returns `count` bytes from `offset`; fewer at the end of the content.

        Raises:
          OSError: An object is missing, or the store cannot be reached.
        """
        if self.object_bytes is None:
            return self.objects[0].read(offset, count)
        parts = []
        end = min(offset + count, len(self.objects) * self.object_bytes)
        while offset < end:
            start = offset % self.object_bytes
            part_bytes = min(self.object_bytes - start, end - offset)
            part = self.object_at(offset).read(start, part_bytes)
            parts.append(part)
            if len(part) < part_bytes:
                break
            offset += part_bytes
        return b"".join(parts)

    def object_at(self, offset: int) -> RemotePath:
        """Returns the object that holds a byte of the content."""
        if self.object_bytes is None:
            return self.objects[0]
        return self.objects[min(offset // self.object_bytes, len(self.objects) - 1)]


def content_of(model: RemotePath, file: StoredFile) -> StoredContent:
    """Returns the content of a file that consists of objects.

    Args:
      model: The directory of the model, whose versions share the objects.
      file: The objects of the file.
    """
    objects = tuple(model / pool_path(sha256) for sha256 in file.objects)
    return StoredContent(objects, OBJECT_BYTES)


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

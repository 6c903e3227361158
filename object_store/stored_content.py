"""The content of a file that lies in a store as one object, or as several."""

from __future__ import annotations

from dataclasses import dataclass

from bundle.format import paths
from bundle.format.objects import OBJECT_BYTES, OBJECTS, ObjectMap, pool_path
from object_store.remote_path import RemotePath


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


def content_of(directory: RemotePath, objects: ObjectMap, path: str) -> StoredContent:
    """Returns the content of a file of a version.

    Args:
      directory: The directory of the version.
      objects: The objects of the version.
      path: The path of the file in a bundle, which `objects` names.
    """
    blocks = objects.files[path].blocks
    pool = directory.parent
    shared = tuple(pool / pool_path(block.sha256) for block in blocks)
    return StoredContent(shared, OBJECT_BYTES)

"""The integrity scrub: mapped files compared with their checksums while their version is served, at a bounded rate.

The files are read, not the maps of them, so that a file that was cut short is a short read and not a fault.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from bundle import files
from bundle.checksums import crc32c, extend
from bundle.errors import BundleError, DigestMismatch
from bundle.manifest import BLOCK_BYTES, Manifest
from bundle.mapped_files import checked_later
from service.models.version import ModelVersion

Proceed = Callable[[int], bool]
"""Called with the bytes of each block that was read; may wait; False ends the scrub early."""
_Extent = tuple[str, int, int, int, tuple[int, ...]]
"""A range of a file: its path, offset, bytes, crc32c, and those of its blocks: () where only the whole has one."""


def scrub(version: ModelVersion, proceed: Proceed) -> bool:
    """Compares with its checksum every block of each table shard, and as a whole what has no checksums of blocks:
    linked shards, key indexes and large files of vectors.

    Returns:
      Whether all of it was compared.
    Raises:
      DigestMismatch: a block differs or is missing; names file and block.
      OSError: a file exists but cannot be read now, which says nothing about its bytes.
    """
    for extent in _extents(version.manifest):
        try:
            path = files.locate(version.directory, extent[0])
            stream = path.open("rb", buffering=0)
        except (BundleError, OSError) as problem:
            if not version.directory.is_dir():  # removed from the root while it is served: its maps stay whole
                return False
            reason = problem if isinstance(problem, OSError) else problem.__cause__
            if isinstance(reason, OSError) and not isinstance(reason, FileNotFoundError | NotADirectoryError):
                raise reason from problem
            raise DigestMismatch(f"file {extent[0]!r} is missing; export or copy the version again") from None
        with stream:
            if not _scrub_extent(stream.fileno(), extent, proceed):
                return False
    return True


def _extents(manifest: Manifest) -> Iterator[_Extent]:
    """Yields what was checked by its size alone before it was served; first what most requests read from."""
    for file in checked_later(manifest):
        yield file.path, 0, file.bytes, file.crc32c, ()
    for table in manifest.tables.values():
        for shard, size in table.extents():
            yield shard.file, shard.offset, size, shard.crc32c, shard.blocks


def _scrub_extent(descriptor: int, extent: _Extent, proceed: Proceed) -> bool:
    (file, offset, extent_bytes, expected, blocks), whole = extent, 0
    for first in range(0, extent_bytes, BLOCK_BYTES):
        size = min(BLOCK_BYTES, extent_bytes - first)
        data = os.pread(descriptor, size, offset + first)
        if blocks:
            right = crc32c(data) == blocks[first // BLOCK_BYTES]
        else:
            whole = extend(whole, data)
            right = first + size < extent_bytes or whole == expected
        if len(data) != size or not right:
            what = f"block {first // BLOCK_BYTES}" if blocks else f"the range from byte {offset} on"
            raise DigestMismatch(
                f"{what} of file {file!r} ({os.fstat(descriptor).st_size} bytes) does not match its checksum; "
                "export or copy the version again"
            )
        if not proceed(size):
            return False
    return True

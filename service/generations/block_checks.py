"""Mapped files compared with their checksums while their version is served, at a bounded rate.

The files are read beside the maps, so that a file that was cut short is found by a short read here, not by a fault.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bundle import files
from bundle.checksums import crc32c, extend
from bundle.errors import BundleError, DigestMismatch
from bundle.manifest import BLOCK_BYTES, Manifest
from bundle.mapped_files import checked_later
from service.generations.generation import Generation

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class _Extent(NamedTuple):
    """A part of a file, its crc32c, and those of its blocks: none where only the whole has one.

    Attributes:
      soon: most calls read from it: what checks it brings it into memory for them.
    """

    soon: bool
    file: str
    offset: int
    size: int
    crc32c: int
    blocks: tuple[int, ...]


def _extents(manifest: Manifest) -> Iterator[_Extent]:
    """Yields what was checked by its size alone before it was served."""
    for file in checked_later(manifest):
        yield _Extent(True, file.path, 0, file.bytes, file.crc32c, ())
    for table in manifest.tables.values():
        for shard, size in table.extents():
            yield _Extent(False, shard.file, shard.offset, size, shard.crc32c, shard.blocks)


def check_mapped(generation: Generation, go_on: Callable[[int, bool], bool]) -> bool:
    """Compares every block of every table shard with its checksum; as a whole what has no blocks: linked shards, key
    indexes and large files of vectors.

    Args:
      go_on: told the bytes of each block that was read, and whether the next ones are wanted soon; may wait; False ends
        the check early.
    Returns:
      Whether every block was compared.
    Raises:
      DigestMismatch: a block differs or is missing; names file and block.
      OSError: a file is there but cannot be read now, which tells nothing of its bytes.
    """
    for extent in _extents(generation.manifest):
        try:
            path = files.locate(generation.directory, extent.file)
            descriptor = os.open(path, os.O_RDONLY)
        except (BundleError, OSError) as problem:
            if not generation.directory.is_dir():  # taken from the root while it is served: its maps stay whole
                return False
            reason = problem if isinstance(problem, OSError) else problem.__cause__
            if isinstance(reason, OSError) and reason.errno not in _MISSING:
                raise reason from problem
            raise DigestMismatch(f"file {extent.file!r} is missing; export or copy the version again") from None
        try:
            if not _check_extent(descriptor, path, extent, go_on):
                return False
        finally:
            os.close(descriptor)
    return True


def _check_extent(descriptor: int, path: Path, extent: _Extent, go_on: Callable[[int, bool], bool]) -> bool:
    whole = 0
    for first in range(0, extent.size, BLOCK_BYTES):
        wanted = min(BLOCK_BYTES, extent.size - first)
        data = os.pread(descriptor, wanted, extent.offset + first)
        if extent.blocks:
            right = crc32c(data) == extent.blocks[first // BLOCK_BYTES]
        else:
            whole = extend(whole, data)
            right = first + wanted < extent.size or whole == extent.crc32c
        if len(data) != wanted or not right:
            what = f"block {first // BLOCK_BYTES}" if extent.blocks else f"what lies from byte {extent.offset} on"
            raise DigestMismatch(
                f"{what} of file {extent.file!r} ({path.stat().st_size} bytes) does not match its checksum; "
                "export or copy the version again"
            )
        if not go_on(wanted, extent.soon):
            return False
    return True

"""Table blocks compared with their checksums while their version is served, at a bounded rate.

The files are read beside the maps, so that a file that was cut short is found by a short read here, not by a fault.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from bundle import files
from bundle.checksums import crc32c, extend
from bundle.errors import BundleError, DigestMismatch
from bundle.manifest import BLOCK_BYTES, Shard
from service.generations.generation import Generation

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def check_tables(generation: Generation, go_on: Callable[[int], bool]) -> bool:
    """Compares every block of every table shard with its checksum; a linked shard, which has no blocks, as a whole.

    Args:
      go_on: told the bytes of each block that was read; may wait; False ends the check early.
    Returns:
      Whether every block was compared.
    Raises:
      DigestMismatch: a block differs or is missing; names file and block.
      OSError: a file is there but cannot be read now, which tells nothing of its bytes.
    """
    for table in generation.manifest.tables.values():
        for shard, size in table.extents():
            try:
                path = files.locate(generation.directory, shard.file)
                descriptor = os.open(path, os.O_RDONLY)
            except (BundleError, OSError) as problem:
                if not generation.directory.is_dir():  # taken from the root while it is served: its maps stay whole
                    return False
                reason = problem if isinstance(problem, OSError) else problem.__cause__
                if isinstance(reason, OSError) and reason.errno not in _MISSING:
                    raise reason from problem
                raise DigestMismatch(f"file {shard.file!r} is missing; export or copy the version again") from None
            try:
                if not _check_shard(descriptor, path, shard, size, go_on):
                    return False
            finally:
                os.close(descriptor)
    return True


def _check_shard(descriptor: int, path: Path, shard: Shard, size: int, go_on: Callable[[int], bool]) -> bool:
    whole = 0
    for first in range(0, size, BLOCK_BYTES):
        wanted = min(BLOCK_BYTES, size - first)
        data = os.pread(descriptor, wanted, shard.offset + first)
        if shard.blocks:
            right = crc32c(data) == shard.blocks[first // BLOCK_BYTES]
        else:
            whole = extend(whole, data)
            right = first + wanted < size or whole == shard.crc32c
        if len(data) != wanted or not right:
            what = f"block {first // BLOCK_BYTES}" if shard.blocks else f"shard at byte {shard.offset}"
            raise DigestMismatch(
                f"{what} of file {shard.file!r} ({path.stat().st_size} bytes) does not match its checksum; "
                "export or copy the version again"
            )
        if not go_on(wanted):
            return False
    return True

"""Table blocks compared with their checksums while their version is served, at a bounded rate.

The files are read beside the maps, so that a file that was cut short is found by a short read here, not by a fault.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from bundle import files
from bundle.checksums import crc32c
from bundle.errors import BundleError, DigestMismatch
from bundle.manifest import BLOCK_BYTES, Shard, Table
from bundle.tables import row_bytes
from service.generations.generation import Generation

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def check_tables(generation: Generation, go_on: Callable[[int], bool]) -> bool:
    """Compares every block of every table shard with its checksum.

    Args:
      go_on: told the bytes of each block that was found right; may wait; False ends the check early.
    Returns:
      Whether every block was compared.
    Raises:
      DigestMismatch: a block differs or is missing; names file and block.
      OSError: a file is there but cannot be read now, which tells nothing of its bytes.
    """
    for table in generation.manifest.tables.values():
        for shard in table.shards:
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
                if not _check_shard(descriptor, path, table, shard, go_on):
                    return False
            finally:
                os.close(descriptor)
    return True


def _check_shard(descriptor: int, path: Path, table: Table, shard: Shard, go_on: Callable[[int], bool]) -> bool:
    size = shard.rows * row_bytes(table.dtype, table.dim)
    for block, expected in enumerate(shard.blocks):
        first = block * BLOCK_BYTES
        wanted = min(BLOCK_BYTES, size - first)
        data = os.pread(descriptor, wanted, shard.offset + first)
        if len(data) != wanted or crc32c(data) != expected:
            raise DigestMismatch(
                f"block {block} of file {shard.file!r} ({path.stat().st_size} bytes) does not match its checksum; "
                "export or copy the version again"
            )
        if not go_on(wanted):
            return False
    return True

"""Checks slices that lie in zip files against the crc32 that these files keep.

A crc32 covers a whole slice, and the tasks that copy a table read ranges of it. So each slice is
read once more, before any of its rows are copied.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from export.checkpoint.datafiles import DataFiles
from export.checkpoint.variables import Slice
from export.errors import CheckpointError

_READERS = 4
"""The number of slices that are read at a time: zlib computes a crc32 without the GIL."""
_PIECE_BYTES = 8 << 20
"""The number of bytes that are read at a time, in memory for each reader."""


def check_zip_sums(_base: Path, table: str, slices: Sequence[Slice]) -> None:
    """Reads the slices of a table that have a crc32, and compares their bytes with it.

    Args:
      table: The name of the table, for messages.
      slices: The slices of its variable; slices without a crc32 are ignored.

    Raises:
      CheckpointError: A slice is damaged, or a data file is gone, cut short or cannot be read.
    """
    zipped = [part for part in slices if part.crc32 is not None]
    # Slices are compared in their order, so that the error names the first damaged one.
    with ThreadPoolExecutor(_READERS, thread_name_prefix="rowcast-sums") as pool:
        for part, crc32 in zip(zipped, pool.map(_crc32, zipped), strict=True):
            if crc32 != part.crc32:
                raise CheckpointError(
                    f"table {table!r}: {part.bytes} bytes from byte {part.offset} on of "
                    f"{part.file} do not match their crc32: the file is damaged; copy it anew (or "
                    "it was saved with torch.serialization.set_crc32_options(False): save it "
                    "without that)"
                )


def _crc32(part: Slice) -> int:
    crc32 = 0
    with DataFiles() as files:
        for start in range(0, part.bytes, _PIECE_BYTES):
            piece = np.empty(min(_PIECE_BYTES, part.bytes - start), np.uint8)
            files.read_into(part.file, part.offset + start, piece)
            crc32 = zlib.crc32(piece.data, crc32)
    return crc32

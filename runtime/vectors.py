"""Vectors of an index in their file, read when they are needed; none stay in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.tables.segments import RowRange
from runtime.errors import InvalidInput

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]

BLOCK_BYTES = 16 << 20
"""The number of bytes that are read at a time where all vectors are needed."""


class VectorFile:
    """Raw little-endian float32 rows. Safe for any thread.

    Attributes:
      shape: The numbers of rows and dims.
    """

    def __init__(self, path: Path, dim: int, rows: RowRange | None = None) -> None:
        """Creates the reader of a file, or of some rows of it, which count from 0.

        Raises:
          OSError: The file does not exist.
          InvalidInput: Its size is no multiple of a row's.
        """
        value_count, excess_bytes = divmod(path.stat().st_size, 4)
        if excess_bytes or value_count % dim:
            raise InvalidInput(f"{value_count} values of candidates are no vectors of dim {dim}")
        self.path = path
        self._first, count = rows or (0, value_count // dim)
        self.shape = count, dim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Vectors:
        """Reads rows by a slice of step 1, or by [m] int64 positions, into memory of the caller's
        own.
        """
        size, dim = self.shape
        if not isinstance(rows, slice):
            chosen: Vectors = np.array(self.mapped[rows])
            return chosen
        first, stop, _ = rows.indices(size)
        count = max(0, stop - first)
        # Read, not mapped: a pass over a large file would fill the memory of the process with it.
        offset = (self._first + first) * dim * 4
        block: Vectors = np.fromfile(self.path, "<f4", count * dim, offset=offset)
        return block.reshape(count, dim)

    @property
    def mapped(self) -> Vectors:
        """All vectors, [size, dim] float32: pages of the file."""
        if not len(self):  # NumPy maps no empty array
            return np.empty(self.shape, np.float32)
        offset = self._first * self.shape[1] * 4
        mapped = np.memmap(self.path, "<f4", "r", offset=offset, shape=self.shape)
        return np.asarray(mapped)  # which is read faster than a memmap

    @property
    def block_rows(self) -> int:
        """The number of rows to read at a time."""
        return max(1, BLOCK_BYTES // (4 * self.shape[1]))

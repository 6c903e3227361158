"""Vectors of an index in their file, read when they are needed; which vectors can be searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.tables.segments import RowRange
from runtime.errors import InvalidInput

Vectors = NDArray[np.float32]

BLOCK_BYTES = 16 << 20
"""The number of bytes that are read at a time where all vectors are needed."""
LENGTH_MAX = 2.0**60
"""The maximum length of a vector that is searched for or found, about 1.15e18.

ScaNN ends the process, or never returns, once a product overflows float32 and infinities of both
signs meet. Centroids are means of vectors, hence no longer than these. Residuals and differences
from a query are at most twice as long, so that no square or product of any two exceeds 2^122. The
rest up to 2^128, where float32 ends, is for codes, which lie near residuals, and for rounding.
"""
_SQUARE_MAX = np.float32(LENGTH_MAX**2)
SEARCHABLE = "a vector of finite numbers whose length is at most 2^60 (1.15e18)"
"""What is expected of a vector, in messages: `SEARCHABLE` was expected."""


class Unsearchable(NamedTuple):
    """The first of some vectors that cannot be searched.

    Attributes:
      position: Its position among the vectors.
      value: What it holds, in words.
    """

    position: int
    value: str


def is_searchable(vectors: Vectors) -> NDArray[np.bool_]:
    """Returns which of [n, dim] float32 vectors are finite and not longer than LENGTH_MAX, [n]."""
    # Unlike a ufunc, einsum does not warn of what overflows; NaN is not searchable either.
    searchable: NDArray[np.bool_] = np.einsum("ij,ij->i", vectors, vectors) <= _SQUARE_MAX
    return searchable


def find_unsearchable(vectors: Vectors) -> Unsearchable | None:
    """Returns the first of [n, dim] float32 vectors that cannot be searched; None: all can."""
    # No vector is longer than all of them together: one product decides almost always. Like einsum,
    # vdot does not warn.
    if np.vdot(vectors, vectors) <= _SQUARE_MAX:
        return None
    searchable = is_searchable(vectors)
    if searchable.all():
        return None
    position = int(searchable.argmin())
    vector = vectors[position].astype(np.float64)
    if not np.isfinite(vector).all():
        return Unsearchable(position, "NaN or an infinity")
    return Unsearchable(position, f"numbers up to {np.abs(vector).max():.4g}")


def zero_padded(vectors: Vectors, dim: int) -> Vectors:
    """Returns [n, dim] float32 in C order: vectors of at most `dim` dims, and zeros behind them."""
    padding = dim - vectors.shape[1]
    if padding:
        vectors = np.pad(vectors, ((0, 0), (0, padding)))
    return np.ascontiguousarray(vectors, np.float32)


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

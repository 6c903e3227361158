"""Vectors that are appended to while earlier ones are read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
_FIRST_CAPACITY = 1024
"""Number of vectors that the first buffer has room for; each later one has room for twice as many.
"""


class GrowingVectors:
    """Vectors of one length. One thread appends; views of what was there stay as they are."""

    def __init__(self, dim: int) -> None:
        """Begins without vectors.

        Args:
          dim: The length of each vector.
        """
        self._buffer: Vectors = np.empty((_FIRST_CAPACITY, dim), np.float32)
        self.size = 0

    @property
    def view(self) -> Vectors:
        """The vectors now, [size, dim]; no copy."""
        return self._buffer[: self.size]

    def replace(self, numbers: NDArray[np.int64], vectors: Vectors) -> None:
        """Overwrites vectors that nobody has been given a view of.

        Args:
          numbers: [m] int64, their positions.
          vectors: [m, dim], the vectors.
        """
        self._buffer[numbers] = vectors

    def append(self, vectors: Vectors) -> None:
        """Appends [m, dim] vectors."""
        end = self.size + len(vectors)
        # A new buffer, not a resized one: views of the old one keep it.
        if end > len(self._buffer):
            capacity = max(end, 2 * len(self._buffer))
            grown: Vectors = np.empty((capacity, self._buffer.shape[1]), np.float32)
            grown[: self.size] = self.view
            self._buffer = grown
        self._buffer[self.size : end] = vectors
        self.size = end

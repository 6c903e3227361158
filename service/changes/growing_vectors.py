"""Vectors that are appended to while earlier ones are read, and their codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Distance

if TYPE_CHECKING:  # faiss is loaded once there are codes
    from runtime.code_blocks import BlockedCodes

Vectors = NDArray[np.float32]
_FIRST_CAPACITY = 1024
"""Number of vectors that the first buffer has room for; each later one has room for twice as many.
"""
CODED_BYTES_MIN = 8 << 20
"""The bytes of vectors from which on a scan of their codes takes less time than exact scores of all
of them (measured with 32 to 256 dims, one query at a time).
"""


class GrowingVectors:
    """Vectors of one length. One thread appends; views of what was there stay as they are."""

    def __init__(self, dim: int, distance: Distance) -> None:
        """Begins without vectors.

        Args:
          dim: The length of each vector.
          distance: The distance by which they are searched.
        """
        self._buffer: Vectors = np.empty((_FIRST_CAPACITY, dim), np.float32)
        self._is_logged = np.empty(_FIRST_CAPACITY, bool)
        self._distance = distance
        self._codes: BlockedCodes | None = None
        self.size = 0

    @property
    def view(self) -> Vectors:
        """The vectors now, [size, dim]; no copy."""
        return self._buffer[: self.size]

    @property
    def is_logged(self) -> NDArray[np.bool_]:
        """Which of the vectors are in the changes or in the bundle, [size]; no copy."""
        return self._is_logged[: self.size]

    def codes(self, exported: Callable[[], Vectors]) -> BlockedCodes | None:
        """Returns the codes of the vectors now, which `replace` must not change any more; None: all
        of them are scored exactly in less time.

        Levels are trained on vectors that are the same in every process. A vector that a process
        computes is not, once its candidate has ended: it depends on which changes were applied
        together.

        Args:
          exported: Returns [m, dim] vectors of the bundle, perhaps none.
        """
        if self.view.nbytes < CODED_BYTES_MIN:
            return None
        from runtime.code_blocks import BlockedCodes

        self._codes = BlockedCodes(self.view, self._distance, self._codes, self.is_logged, exported)
        return self._codes

    def replace(self, numbers: NDArray[np.int64], vectors: Vectors) -> None:
        """Overwrites vectors that nobody has been given a view of.

        Args:
          numbers: [m] int64, their positions.
          vectors: [m, dim], the vectors.
        """
        self._buffer[numbers] = vectors

    def append(self, vectors: Vectors, is_logged: bool | NDArray[np.bool_]) -> None:
        """Appends [m, dim] vectors.

        Args:
          vectors: The vectors.
          is_logged: Whether they, or which of them, are in the changes or in the bundle.
        """
        end = self.size + len(vectors)
        # A new buffer, not a resized one: views of the old one keep it.
        if end > len(self._buffer):
            capacity = max(end, 2 * len(self._buffer))
            grown: Vectors = np.empty((capacity, self._buffer.shape[1]), np.float32)
            grown[: self.size] = self.view
            self._is_logged = np.append(self.is_logged, np.empty(capacity - self.size, bool))
            self._buffer = grown
        self._buffer[self.size : end] = vectors
        self._is_logged[self.size : end] = is_logged
        self.size = end

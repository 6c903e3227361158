"""Sets of positions, such as those of the candidates that match a filter, with a bit for each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle import native
from bundle.arithmetic import ceil_div

Positions = NDArray[np.uint32]
_WORD_BITS = 64


class PositionSet:
    """Some of the positions below a size.

    Attributes:
      size: The number of positions that there are.
    """

    def __init__(self, size: int, bits: NDArray[np.uint64]) -> None:
        """Takes bits; use `of` or `all`.

        Args:
          size: The number of positions that there are.
          bits: [ceil(size / 64)], the first position in the lowest bit of the first word; those
            behind the last position are 0.
        """
        self.size = size
        self._bits = bits

    @classmethod
    def of(cls, positions: Positions, size: int) -> PositionSet:
        """Returns the set of some positions, in any order."""
        created = cls(size, np.zeros(ceil_div(size, _WORD_BITS), np.uint64))
        created.add(positions)
        return created

    @classmethod
    def all(cls, size: int) -> PositionSet:
        """Returns the set of all positions below a size."""
        bits = np.full(ceil_div(size, _WORD_BITS), -1, np.int64).view(np.uint64)
        if size % _WORD_BITS:
            bits[-1] >>= np.uint64(_WORD_BITS - size % _WORD_BITS)
        return cls(size, bits)

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        return self._bits.nbytes

    def __len__(self) -> int:
        """Returns the number of its positions."""
        return int(np.bitwise_count(self._bits).sum(dtype=np.int64))

    def add(self, positions: Positions) -> None:
        """Adds positions, in any order."""
        if native.mark is not None:
            native.mark(self._bits, np.ascontiguousarray(positions), True)
        else:
            self._bits |= self._packed(positions)

    def remove(self, positions: Positions) -> None:
        """Removes positions, in any order."""
        if native.mark is not None:
            native.mark(self._bits, np.ascontiguousarray(positions), False)
        else:
            self._bits &= ~self._packed(positions)

    def __iand__(self, other: PositionSet) -> PositionSet:
        """Removes what another set of the same size does not hold."""
        self._bits &= other._bits
        return self

    def __ior__(self, other: PositionSet) -> PositionSet:
        """Adds what another set of the same size holds."""
        self._bits |= other._bits
        return self

    def __isub__(self, other: PositionSet) -> PositionSet:
        """Removes what another set of the same size holds."""
        self._bits &= ~other._bits
        return self

    def where(self, positions: Positions) -> NDArray[np.integer[Any]]:
        """Returns the indices of those of [m] uint32 positions that it holds, ascending."""
        if native.where_marked is not None:
            return native.where_marked(self._bits, np.ascontiguousarray(positions))
        words = self._bits[positions >> 6]
        in_lowest = words >> (positions & 63).astype(np.uint64) & np.uint64(1)
        indices: NDArray[np.integer[Any]] = in_lowest.nonzero()[0]
        return indices

    def positions(self) -> Positions:
        """Returns its positions, ascending."""
        if native.marked is not None:
            return native.marked(self._bits)
        in_bytes = self._bits.astype("<u8").view(np.uint8)
        is_marked = np.unpackbits(in_bytes, bitorder="little")
        return is_marked.nonzero()[0].astype(np.uint32)

    def _packed(self, positions: Positions) -> NDArray[np.uint64]:
        is_marked = np.zeros(_WORD_BITS * self._bits.size, bool)
        is_marked[positions] = True
        return np.packbits(is_marked, bitorder="little").view("<u8").astype(np.uint64)

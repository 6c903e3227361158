"""Codes of vectors that grow in number: half a byte for each dim, in blocks.

Each full unit of vectors is encoded with levels that were trained on it, or on one before it. Units
are merged into blocks of twice the size, as the digits of a binary counter. So blocks depend on the
vectors and their order alone: not on when they were added, nor on how many at a time. A vector's
codes depend on the levels and on itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.codes import CodeBook, Codes, PackedCodes, Vectors
from runtime.exact import VectorBlock, prepared
from runtime.vectors import find_unsearchable, is_searchable

UNIT = 2_048
"""The number of vectors of the smallest block, and of the largest sample of levels."""
_SAMPLE_MIN = UNIT // 2
"""The minimum number of vectors of a unit that levels are trained on."""
_LEVELS = 16
_ROUNDS = 12
"""How often levels move to the means of the values that they stand for. Further rounds lower the
error by less than a hundredth.
"""
_OUTERMOST_SHARE = 0.03
"""The share of the smallest, and of the largest values that no level stands for by squared L2.
"""
_ERROR_GROWTH_MAX = 2.0
"""The maximum error of a unit's codes, as a factor of the error of the unit that the levels were
trained on. Among vectors of one tower, it was at most 1.5; of vectors that are twice as long 4.8 to
8.7, and of vectors that are moved by a deviation 1.7 to 4.4 (measured).
"""


class Levels(CodeBook):
    """16 levels for each dim of a vector, of which a code names the nearest. Safe for any thread.

    Attributes:
      error: The error of the sample's codes.
    """

    def __init__(self, sample: Vectors, distance: Distance) -> None:
        """Finds levels by k-means of each dim, the same for the same sample.

        Args:
          sample: [n, dim] float32; n at least 1.
          distance: The distance of the index; cosine encodes vectors of length 1.

        Raises:
          InvalidIndex: A vector cannot be searched.
        """
        # Sums are added in one order on every processor.
        values = np.sort(prepared(sample, distance).T.astype(np.float64), axis=1)
        if distance == "squared_l2":
            # faiss rounds all distances of levels to 8 bits of the largest. What lies far from the
            # others is never near, whichever level it has.
            outermost = int(_OUTERMOST_SHARE * len(sample))
            values = values[:, outermost : len(sample) - outermost]
        dim, count = values.shape
        sums = np.zeros((dim, count + 1))
        np.cumsum(values, axis=1, out=sums[:, 1:])

        levels = values[:, (2 * np.arange(_LEVELS) + 1) * count // (2 * _LEVELS)]
        rows = np.arange(dim)[:, np.newaxis]
        # The values between two ends are nearest to the same level.
        ends = np.zeros((dim, _LEVELS + 1), np.int64)
        ends[:, -1] = count
        for _ in range(_ROUNDS):
            for row, edges in enumerate(_between(levels)):
                ends[row, 1:-1] = values[row].searchsorted(edges)
            counts = np.diff(ends)
            np.divide(np.diff(sums[rows, ends]), counts, out=levels, where=counts > 0)

        centroids: Vectors = levels.astype(np.float32)
        super().__init__(centroids[:, :, np.newaxis], distance)
        self._edges = _between(centroids).T
        self.error = self.error_of(sample, self.encode(sample))

    def encode(self, vectors: Vectors) -> Codes:
        """Returns codes as `CodeBook.encode` does, in a fraction of its time."""
        vectors = prepared(vectors, self.distance)
        numbers: Codes = np.zeros((len(vectors), 2 * self.code_bytes), np.uint8)
        for edges in self._edges:
            numbers[:, : edges.size] += vectors > edges
        return numbers[:, 0::2] | numbers[:, 1::2] << np.uint8(4)

    def error_of(self, vectors: Vectors, codes: Codes) -> float:
        """Returns the squares of what codes differ from their vectors by, as a share of the squares
        of what the vectors differ from their mean by.

        Args:
          vectors: [n, dim] float32.
          codes: [n, code_bytes] uint8, their codes.
        """
        vectors = prepared(vectors, self.distance)
        differences = vectors - self._quantizer.decode(codes)
        error = np.square(differences, dtype=np.float64).mean()
        variance = np.var(vectors, axis=0, dtype=np.float64).mean()
        # Equal vectors have no variance, and are levels themselves but for rounding.
        return float(error / max(variance, np.finfo(np.float32).tiny))


def _searchable(vectors: Vectors) -> Vectors:
    """Returns vectors with zeros in the place of those that cannot be searched: no search returns
    them, whatever their codes are.
    """
    if find_unsearchable(vectors) is None:
        return vectors
    return np.where(is_searchable(vectors)[:, np.newaxis], vectors, np.float32(0))


def _between(levels: NDArray[Any]) -> NDArray[Any]:
    """Returns the middle of each level and the next one."""
    middle: NDArray[Any] = (levels[:, 1:] + levels[:, :-1]) / 2
    return middle


class _Block:
    """Codes of consecutive vectors."""

    def __init__(self, levels: Levels, codes: Codes) -> None:
        self.levels = levels
        self.codes = codes

    @cached_property
    def packed(self) -> PackedCodes:
        """The codes in the order in which they are compared."""
        return self.levels.pack(self.codes)


class BlockedCodes:
    """Codes of some vectors in blocks, of all but those behind the last full unit. Immutable: any
    number of threads may read it.
    """

    def __init__(
        self,
        vectors: Vectors,
        distance: Distance,
        before: BlockedCodes | None = None,
        is_sample: NDArray[np.bool_] | None = None,
        read_spare: Callable[[], Vectors] | None = None,
    ) -> None:
        """Encodes vectors.

        Args:
          vectors: [n, dim] float32, which stay as they are.
          distance: The distance of the index.
          before: The codes of the first of these vectors, which are shared; None: there are none.
          is_sample: [n], which of the vectors levels may be trained on; None: all.
          read_spare: Returns [m, dim] further vectors, perhaps none, to train the first levels on
            if less than half of the first unit may be taken. None: there are none.
        """
        self._vectors = vectors
        self._distance = distance
        self._blocks: list[_Block] = []
        self._levels: Levels | None = None
        self._coded = 0
        if before is not None:
            self._blocks += before._blocks  # noqa: SLF001 - of the same class
            self._levels = before._levels  # noqa: SLF001 - of the same class
            self._coded = before._coded  # noqa: SLF001 - of the same class
        if is_sample is None:
            is_sample = np.ones(len(vectors), bool)
        if self._levels is None:
            self._levels = self._first_levels(is_sample, read_spare)
        if self._levels is not None:
            while self._coded + UNIT <= len(vectors):
                unit = slice(self._coded, self._coded + UNIT)
                self._append(self._levels, _searchable(vectors[unit]), is_sample[unit])

    def _first_levels(
        self, is_sample: NDArray[np.bool_], read_spare: Callable[[], Vectors] | None
    ) -> Levels | None:
        """Returns the levels of the first unit, or else of spare vectors, or else of the first unit
        that has a sample; None: there is none.
        """
        full_units = is_sample[: len(is_sample) // UNIT * UNIT].reshape(-1, UNIT)
        if not len(full_units):
            return None
        (units,) = (np.count_nonzero(full_units, axis=1) >= _SAMPLE_MIN).nonzero()
        numbers = units.tolist()
        if read_spare is not None and numbers[:1] != [0]:
            sample = read_spare()
            if len(sample):
                return Levels(_searchable(sample), self._distance)
        if not numbers:
            return None
        unit = slice(numbers[0] * UNIT, (numbers[0] + 1) * UNIT)
        return Levels(_searchable(self._vectors[unit][is_sample[unit]]), self._distance)

    def _append(self, levels: Levels, unit: Vectors, is_sample: NDArray[np.bool_]) -> None:
        """Adds a unit of vectors, and merges blocks of equal sizes; `levels`: the last ones."""
        codes = levels.encode(unit)
        if np.count_nonzero(is_sample) >= _SAMPLE_MIN:
            sample = unit[is_sample]
            if levels.error_of(sample, codes[is_sample]) > _ERROR_GROWTH_MAX * levels.error:
                levels = Levels(sample, self._distance)
                codes = levels.encode(unit)
        block = _Block(levels, codes)
        while (
            self._blocks
            and self._blocks[-1].levels is levels
            and len(self._blocks[-1].codes) == len(block.codes)
        ):
            merged = self._blocks.pop().codes, block.codes
            block = _Block(levels, np.concatenate(merged))
        self._blocks.append(block)
        self._levels = levels
        self._coded += UNIT

    @cached_property
    def packed(self) -> PackedBlocks:
        """The codes of all vectors, for searches."""
        blocks = [block.packed for block in self._blocks]
        return PackedBlocks(blocks, self._vectors[self._coded :], self._distance)

    def pack(self, positions: NDArray[Any]) -> PackedBlocks:
        """Returns the codes of the vectors at [m] ascending positions, for searches."""
        blocks = []
        first = 0
        for block in self._blocks:
            end = first + len(block.codes)
            start, stop = positions.searchsorted([first, end])
            inside = positions[start:stop] - first
            blocks.append(block.levels.pack(block.codes, inside))
            first = end
        rest = positions[positions.searchsorted(first) :]
        return PackedBlocks(blocks, self._vectors[rest], self._distance)


class PackedBlocks:
    """Codes of vectors in blocks, and some vectors behind them; searched as `PackedCodes`.

    Attributes:
      size: The number of vectors.
      bytes: The memory that the codes and the vectors take.
    """

    def __init__(self, blocks: Sequence[PackedCodes], rest: Vectors, distance: Distance) -> None:
        """Takes blocks, and the vectors behind them; use `BlockedCodes.packed`."""
        self._blocks = [block for block in blocks if block.size]
        self._rest = VectorBlock(rest, distance)
        self.size = sum(block.size for block in self._blocks) + len(rest)
        self.bytes = sum(block.bytes for block in self._blocks) + rest.nbytes

    def nearest(self, queries: Vectors, count: int) -> list[NDArray[np.int64]]:
        """Finds the vectors that seem nearest to each query as `PackedCodes.nearest` does, those
        without codes by their scores.

        Args:
          queries, count: As for `PackedCodes.nearest`.

        Returns:
          [m] int64 positions among the vectors of all blocks for each query, best first; m is at
          most `count`.
        """
        scored_by_block = [block.scored(queries, count) for block in self._blocks]
        firsts = np.cumsum([0, *(block.size for block in self._blocks)]).tolist()
        rest = np.arange(firsts.pop(), self.size)
        nearest = []
        for number, query in enumerate(queries):
            nearest_by_block = [by_query[number] for by_query in scored_by_block]
            scores = [
                *(block_scores for _, block_scores in nearest_by_block),
                self._rest.rounded_scores(query),
            ]
            keys = -np.concatenate(scores)
            pairs = zip(firsts, nearest_by_block, strict=True)
            positions = np.concatenate([*(first + inside for first, (inside, _) in pairs), rest])
            if count < keys.size:
                # To sort what is left takes a fraction of the time that it takes to sort all.
                best = keys.argpartition(count)[:count]
                positions = positions[best]
                keys = keys[best]
            nearest.append(positions[keys.argsort()])
        return nearest

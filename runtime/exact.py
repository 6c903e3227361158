"""Exact nearest-candidate search. Recall is measured against it, and it serves requests that allow
few candidates.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.format.manifest import Distance
from runtime.errors import InvalidIndex, InvalidInput
from runtime.vectors import SEARCHABLE, VectorFile, find_unsearchable

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
Subset = NDArray[np.integer[Any]]
RunEach = Callable[[int, Callable[[int], None]], None]
"""Calls a function with every number below a count, in any order, from any threads; returns once
all calls have returned.
"""
_BLOCK_BYTES = 8 << 20
"""The bytes of vectors that are scored at a time in a search of all vectors."""
_CACHED_BYTES = 1 << 20
"""The bytes of vectors that are scored at a time in a search of a few: they stay in the processor's
cache.
"""
_SORTED_MAX = 512
"""The maximum number of scores that are sorted as a whole: with so few, it takes longer to pick the
best ones first.
"""
_ROUNDING = 2.0**-16
"""A bound far above the error of a product of two vectors in float32, as a share of the product of
their lengths.
"""
_MARGINS_MAX = 1e30
"""The sum of the margins of keys below which all keys are finite."""
_PRODUCTS_MAX = 1_000_000
"""The number of multiplications in a product of matrices up to which OpenBLAS does not copy the
factors first.
"""


class ExactIndex:
    """Scores every vector, in blocks of bounded memory. Safe for any thread.

    Equal scores are ordered by position. Scores of squared_l2 are computed from the differences,
    not from the expanded square, which loses the small distances.
    """

    def __init__(self, vectors: Vectors | VectorFile, distance: Distance) -> None:
        """Takes vectors as they are; they may be mapped from a file, or read from it.

        Args:
          vectors: [size, dim] float32.
          distance: The distance; cosine scales both sides to length 1, and a vector of zeros has
            the score 0.
        """
        self._vectors = vectors
        self._distance = distance
        self.size, self.dim = vectors.shape
        self._lengths: Vectors | None = None
        if distance == "cosine":
            # Zeros, which take no memory, until a search has read the vectors.
            self._lengths = np.zeros(self.size, np.float32)

    def search(
        self,
        queries: Vectors,
        k: int,
        positions_allowed: NDArray[np.integer[Any]] | None = None,
        run_each: RunEach | None = None,
    ) -> tuple[Positions, Vectors]:
        """Finds the k nearest of all vectors, or of some.

        Args:
          queries: [n, dim] float32.
          k: The number of neighbors of each query.
          positions_allowed: [m] positions of the vectors to score, distinct; None: all.
          run_each: Has every block scored, perhaps by several threads; None: one after the other.
            The result is the same.

        Returns:
          [n, k] int64 positions and [n, k] float32 scores, best first. If there are fewer vectors,
          the end is filled with -1 and -inf. Scores beyond float32 are infinities.

        Raises:
          InvalidInput: The queries have another shape or cannot be searched, or k is below 1.
        """
        check_queries(queries, self.dim, k)
        queries = self._prepared(queries)
        rows_total = self.size
        if positions_allowed is not None:
            rows_total = positions_allowed.size
        best_positions = np.full((len(queries), k), -1, np.int64)
        best_scores = np.full((len(queries), k), -np.inf, np.float32)
        block_rows = max(1, _BLOCK_BYTES // (4 * max(self.dim, len(queries), 1)))
        merge_lock = threading.Lock()

        def score(number: int) -> None:
            first = number * block_rows
            if positions_allowed is None:
                positions = np.arange(first, min(first + block_rows, rows_total), dtype=np.int64)
                scores = self._scored(queries, slice(first, first + positions.size))
            else:
                positions = positions_allowed[first : first + block_rows]
                scores = self._scored(queries, positions)
            highest = scores.max(axis=1)
            if np.isnan(highest).any():
                # Infinities of both signs met. They are ranked first, so that the caller sees them.
                scores[np.isnan(scores)] = np.inf
            # Read without the lock: while other threads merge, the k-th score only rises, so
            # that what is below it stays below it.
            is_hopeless = highest < best_scores[:, -1]
            for row in np.flatnonzero(~is_hopeless):
                best = _largest(scores[row], positions, k)
                with merge_lock:
                    merged_scores = np.concatenate([best_scores[row], scores[row, best]])
                    merged = np.concatenate([best_positions[row], positions[best]])
                    # Of equal scores, positions that are still empty come last.
                    order = np.lexsort((merged, merged < 0, -merged_scores))[:k]
                    best_scores[row] = merged_scores[order]
                    best_positions[row] = merged[order]

        (run_each or _in_turn)(ceil_div(rows_total, block_rows), score)
        return best_positions, best_scores

    def scores(self, query: Vectors, positions: Positions) -> Vectors:
        """Returns [m] float32: the exact scores of [dim] float32 `query` against the vectors at [m]
        `positions`.
        """
        queries = self._prepared(query[np.newaxis])
        scores: Vectors = self._scored(queries, positions)[0]
        return scores

    def _prepared(self, queries: Vectors) -> Vectors:
        """Returns the queries as they are scored."""
        queries = np.ascontiguousarray(queries, np.float32)
        if self._distance == "cosine":
            return normalized(queries)
        return queries

    @np.errstate(over="ignore", invalid="ignore")
    def _scored(self, queries: Vectors, rows: slice | Subset) -> Vectors:
        """Returns [n, m] scores of the vectors in some rows; for cosine, queries have length 1."""
        vectors = self._vectors[rows]
        scores: Vectors
        if self._distance != "squared_l2":
            scores = queries @ vectors.T
            if self._lengths is not None:
                scores /= _known_lengths(self._lengths, rows, vectors)
            return scores
        scores = np.empty((len(queries), len(vectors)), np.float32)
        for row, query in enumerate(queries):
            differences = vectors - query
            np.einsum("ij,ij->i", differences, differences, out=scores[row])
        return np.subtract(np.float32(0), scores, out=scores)


def _known_lengths(lengths: Vectors, rows: slice | Subset, vectors: Vectors) -> Vectors:
    """Returns the lengths of the vectors in some rows; those of zeros are 1.

    Args:
      lengths: [size] lengths of all vectors; those still unknown are 0, and are written. Threads
        that do so at the same time write the same.
      rows: The [m] rows.
      vectors: [m, dim] float32, the vectors there.
    """
    row_lengths: Vectors = lengths[rows]
    if row_lengths.size and not row_lengths.all():
        row_lengths = np.sqrt(np.vecdot(vectors, vectors))
        row_lengths[row_lengths == 0] = 1
        lengths[rows] = row_lengths
    return row_lengths


def rank_exactly(
    vectors: Vectors, query: Vectors, positions: Subset, k: int, distance: Distance
) -> tuple[Positions, Vectors]:
    """Scores some candidates exactly and picks the k best; fewer only where there are fewer.

    Args:
      vectors: [size, dim] float32, in one piece; may be mapped from a file.
      query: [dim] float32; for cosine, of length 1.
      positions: [m] positions of the candidates, below size.
      k: The number of candidates to pick, at least 0.
      distance: The distance; cosine divides by the vectors' lengths, and a vector of zeros has the
        score 0.

    Returns:
      [k] int64 positions and [k] float32 scores, larger is better, best first; of equals the
      smaller position first. A score depends on nothing but its vector and the query.
    """
    return best_of(positions, exact_scores(vectors, query, positions, distance), k)


def best_of(positions: Subset, scores: Vectors, k: int) -> tuple[Positions, Vectors]:
    """Returns the k best of some positions by their scores, as `rank_exactly` does.

    Args:
      positions: [m] positions, in any order.
      scores: [m] float32; larger is better.
      k: The number of positions to return, at least 0.

    Returns:
      min(k, m) int64 positions and their float32 scores, best first; of equals the smaller position
      first.
    """
    if 0 < k < scores.size and scores.size > _SORTED_MAX:
        chosen = (~(scores < _threshold(scores, k))).nonzero()[0]
        positions = positions[chosen]
        scores = scores[chosen]
    best = np.lexsort((positions, -scores))[:k]
    return positions[best].astype(np.int64), scores[best]


def exact_scores(
    vectors: Vectors, query: Vectors, positions: Subset, distance: Distance
) -> Vectors:
    """Returns the scores of `rank_exactly`: [m] float32, in the order of `positions`. Of vectors
    that cannot be searched, they may be infinite or NaN.

    Args:
      vectors, query, positions, distance: As for `rank_exactly`.
    """
    block_rows = max(1, _CACHED_BYTES // (4 * vectors.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        if positions.size <= block_rows:
            # To clip positions is faster than to check that they are inside.
            return scores_of_rows(vectors.take(positions, axis=0, mode="clip"), query, distance)
        scores = np.empty(positions.size, np.float32)
        for first in range(0, positions.size, block_rows):
            block = slice(first, first + block_rows)
            rows = vectors.take(positions[block], axis=0, mode="clip")
            scores[block] = scores_of_rows(rows, query, distance)
        return scores


def scores_of_rows(rows: Vectors, queries: Vectors, distance: Distance) -> Vectors:
    """Returns the scores of `rank_exactly` of vectors, [m] float32. Scores beyond float32 are
    infinities or NaN, which the caller has NumPy ignore.

    Args:
      rows: [m, dim] float32, which are overwritten.
      queries: [dim] float32, the query of all rows, or [m, dim] float32, that of each row.
      distance: The distance, see `rank_exactly`.
    """
    scores: Vectors
    if distance == "squared_l2":
        rows -= queries
        scores = np.float32(0) - np.vecdot(rows, rows)
        return scores
    scores = np.vecdot(rows, queries)
    if distance == "cosine":
        lengths = np.sqrt(np.vecdot(rows, rows))
        scores = np.divide(scores, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return scores


class VectorBlock:
    """Vectors that lie side by side, for repeated searches: a product of matrices shows which to
    score exactly.
    """

    def __init__(self, vectors: Vectors, distance: Distance) -> None:
        """Takes [m, dim] float32."""
        self.vectors = vectors
        self._distance = distance
        with np.errstate(over="ignore"):
            squares = np.vecdot(vectors, vectors)
        lengths = np.sqrt(squares)
        self._longest = float(lengths.max(initial=0))
        # These turn products of vectors into keys: factors of cosine, or terms of squared_l2.
        self._factors: Vectors | None = None
        self._terms: Vectors | None = None
        if distance == "cosine":
            self._factors = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        elif distance == "squared_l2":
            self._terms = squares / 2

    def search(
        self, queries: Vectors, counts: Sequence[int], floors: Vectors | None = None
    ) -> list[tuple[Positions, Vectors]]:
        """Finds the nearest of all vectors for each query.

        Args:
          queries: [n, dim] float32; for cosine, of length 1.
          counts: The number of vectors to find for each of the n queries; at least 1.
          floors: [n] scores; vectors that score less than the floor of their query may be left out.
            None: no vector may.

        Returns:
          For each query, the result of `rank_exactly` for all vectors, or for those that reach the
          floor.
        """
        if floors is None:
            floors = np.full(len(queries), -np.inf, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            keys = self._keys(queries)
            key_floors, margins = self._key_floors(queries, floors)
        ranked = []
        for number, k in enumerate(counts):
            contenders = _not_below(keys[number], k, float(key_floors[number]))
            # Too many keys reach the floor, or keys are not finite: the k best are found first.
            if contenders is None:
                contenders = _contenders(keys[number], k, float(margins[number]))
            neighbors = rank_exactly(self.vectors, queries[number], contenders, k, self._distance)
            ranked.append(neighbors)
        return ranked

    def reaching(self, queries: Vectors, floors: Vectors) -> Reaching | None:
        """Finds all vectors that score at least as high as a floor.

        Args:
          queries: [n, dim] float32; for cosine, of length 1.
          floors: [n] float32, the lowest score of the vectors to find for each query.

        Returns:
          The vectors that reach the floor of their query, and perhaps some that score hardly less,
          in the order of the queries and of the vectors. None: A floor or a score may be no number,
          or so many vectors reach a floor that `search` takes less time.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            key_floors, margins = self._key_floors(queries, floors)
            # No sum of products exceeds the lengths of both factors, of which this is a share.
            if not (sum(margins.tolist()) < _MARGINS_MAX and math.isfinite(sum(floors.tolist()))):
                return None
            is_contender = self._keys(queries) >= key_floors[:, np.newaxis]
            # One dimension is searched several times as fast as two.
            cells = is_contender.ravel().nonzero()[0]
            if cells.size > len(queries) * _SORTED_MAX:
                return None
            if len(queries) == 1:
                rows = self.vectors.take(cells, axis=0)
                scores = scores_of_rows(rows, queries[0], self._distance)
                return Reaching(np.zeros(cells.size, np.int64), cells, scores)
            numbers = cells // len(self.vectors)
            indices = cells - numbers * len(self.vectors)
            rows = self.vectors.take(indices, axis=0)
            scores = scores_of_rows(rows, queries.take(numbers, axis=0), self._distance)
            return Reaching(numbers, indices, scores)

    def rounded_scores(self, query: Vectors) -> Vectors:
        """Returns [m] float32: about the score of each vector, in less time than exact scores take.

        Args:
          query: [dim] float32; for cosine, of length 1.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            scores: Vectors = self._keys(query[np.newaxis])[0]
            if self._terms is not None:
                scores = 2 * scores - np.vecdot(query, query)
        return scores

    def _keys(self, queries: Vectors) -> Vectors:
        """Returns keys that order the vectors nearly as their scores do, [n, m] float32."""
        keys = _products(self.vectors, queries)
        if self._factors is not None:
            keys *= self._factors
        elif self._terms is not None:
            keys -= self._terms
        return keys

    def _key_floors(self, queries: Vectors, floors: Vectors) -> tuple[Vectors, Vectors]:
        """Returns the floors of keys, which the keys of all vectors reach whose scores reach the
        floors, and the margins by which keys may be wrong: [n] float32 each, one for each query.
        """
        squares: Vectors = np.vecdot(queries, queries)
        margins: Vectors = np.sqrt(squares) * np.float32(self._longest * _ROUNDING)
        if self._distance == "dot_product":
            return floors - margins, margins
        if self._distance == "cosine":
            margins = np.full(squares.size, _ROUNDING, np.float32)
            return floors - margins, margins
        margins += np.float32(self._longest**2 * _ROUNDING)
        return (floors + squares) / 2 - margins - squares * np.float32(_ROUNDING), margins


class Reaching(NamedTuple):
    """Vectors of a block that reach the floors of queries.

    Attributes:
      numbers: [r] int64, the positions of the queries.
      indices: [r] int64, the positions of the vectors in the block.
      scores: [r] float32, the scores of `rank_exactly`.
    """

    numbers: Positions
    indices: Positions
    scores: Vectors


def _products(vectors: Vectors, queries: Vectors) -> Vectors:
    """Returns the dot products of [n, dim] queries with [m, dim] vectors, [n, m]."""
    if len(queries) == 1:
        product: Vectors = vectors @ queries[0]
        return product[np.newaxis]
    # To multiply few rows by a transposed matrix takes OpenBLAS several times as long as this, and
    # so does a product of more than a million multiplications.
    columns = np.ascontiguousarray(queries.T)
    products: Vectors = np.empty((len(queries), len(vectors)), np.float32)
    block_rows = max(1, _PRODUCTS_MAX // max(1, columns.size))
    for first in range(0, len(vectors), block_rows):
        block = slice(first, first + block_rows)
        products[:, block] = (vectors[block] @ columns).T
    return products


def _not_below(keys: Vectors, k: int, floor: float) -> Positions | None:
    """Returns the indices of the keys that are not below a floor; None: there are too many of them,
    or not all keys are numbers.
    """
    if not math.isfinite(floor) or not math.isfinite(keys.sum()):
        return None
    contenders = (keys >= floor).nonzero()[0]
    if contenders.size > max(_SORTED_MAX, k):
        return None
    return contenders


def _contenders(keys: Vectors, k: int, margin: float) -> Positions:
    """Returns the indices of the k largest keys, and of those that may be as large but
    for rounding.
    """
    if k >= keys.size:
        return np.arange(keys.size)
    lowest = _threshold(keys, k) - margin
    if not math.isfinite(lowest):
        return np.arange(keys.size)
    return (keys >= lowest).nonzero()[0]


def _threshold(keys: Vectors, k: int) -> float:
    """Returns a number that at least k of more than k keys reach, and hardly more than k of many
    keys; NaN is below all numbers.
    """
    rows = keys.size // (4 * k)
    if rows > 1:  # a column's largest stands for all of it
        # At least k keys reach the k-th of these maxima, because each of them is a key.
        keys = np.fmax.reduce(keys[: 4 * k * rows].reshape(rows, -1))
    lowest_first = -keys
    lowest_first.partition(k - 1)
    return -float(lowest_first[k - 1])


def _in_turn(count: int, call: Callable[[int], None]) -> None:
    """Calls a function with every number below `count`."""
    for number in range(count):
        call(number)


def normalized(vectors: Vectors) -> Vectors:
    """Returns [n, dim] float32 scaled to length 1; zeros stay zeros."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    lengths[lengths == 0] = 1
    scaled: Vectors = (vectors / lengths[:, np.newaxis]).astype(np.float32)
    return scaled


def prepared(vectors: Vectors, distance: Distance, first: int = 0) -> Vectors:
    """Returns vectors of an index as ScaNN and faiss get them, of length 1 for cosine.

    Args:
      vectors: [n, dim] float32.
      distance: The distance of the index.
      first: The position of the first vector in the index.

    Raises:
      InvalidIndex: A vector cannot be searched; names its position.
    """
    unsearchable = find_unsearchable(vectors)
    if unsearchable is not None:
        position = first + unsearchable.position
        raise InvalidIndex(
            f"vector {position} holds {unsearchable.value}; {SEARCHABLE} was expected"
        )
    if distance == "cosine":
        return normalized(vectors)
    return vectors


def check_queries(queries: Vectors, dim: int, k: int) -> None:
    """Checks queries against an index.

    Raises:
      InvalidInput: They are not [n, dim] or cannot be searched, or k is below 1.
    """
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise InvalidInput(
            f"query vectors have shape {list(queries.shape)}; [n, {dim}] was expected"
        )
    if k < 1:
        raise InvalidInput(f"k is {k}; at least 1 was expected")
    unsearchable = find_unsearchable(queries)
    if unsearchable is not None:
        raise InvalidInput(
            f"query vector {unsearchable.position} holds {unsearchable.value}; {SEARCHABLE} was "
            "expected"
        )


def _largest(scores: Vectors, positions: Positions, k: int) -> Positions:
    """Returns the indices of the k largest scores. Of those that share the k-th score, it returns
    the ones with the smallest positions.
    """
    if scores.size <= k:
        return np.arange(scores.size)
    threshold = np.partition(scores, scores.size - k)[scores.size - k]
    above = np.flatnonzero(scores > threshold)
    equal = np.flatnonzero(scores == threshold)
    by_position = np.argsort(positions[equal], kind="stable")
    return np.concatenate([above, equal[by_position[: k - above.size]]])

"""What the parts of a search of a written tree cost, by which a service chooses how to search."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.format.indexes import SearchCosts
from runtime.exact import VectorBlock, exact_scores, normalised, rank_exactly
from runtime.scann import ScannIndex

if TYPE_CHECKING:  # faiss is loaded where an index has codes
    from runtime.codes import PackedCodes, VectorCodes

Vectors = NDArray[np.float32]
Positions = NDArray[np.uint32]
Search = Callable[[Vectors], Any]
"""A part of the search for one query, [dim]."""

_CACHED_BYTES = 4 << 20
"""Vectors of a filter that a processor's cache holds: about as many as where exact scores begin to
cost more than a scan.
"""
_UNCACHED_BYTES = 32 << 20
"""Vectors of a filter that it does not hold."""
_POOL = 3200
"""Candidates of the larger pool that is fetched and reordered."""
_SMALLER = 4
"""How many times as large as the smaller one."""
_LEAF_SHARES = (0.02, 0.1)
"""Of all leaves, those of the searches that are timed."""
_NEIGHBORS = 100
_QUERIES = 25
_SEED = 1
_UNIT_MIN_S = 1e-10
"""Of one exact score: faster is noise."""


def measure_costs(
    index: ScannIndex,
    vectors: Vectors,
    codes: VectorCodes | None,
    queries: Vectors,
    parameters: Mapping[str, Any],
) -> SearchCosts:
    """Times the parts of searches, and returns them as ratios to the exact score of one vector.

    Args:
      index: The tree, loaded as a service loads it.
      vectors: [size, dim] float32, mapped from their file.
      codes: Of all vectors; None: the index has none.
      queries: [q, dim] float32, of which some are searched for.
      parameters: Of the tree.
    """
    queries = np.ascontiguousarray(queries[:_QUERIES], np.float32)
    if index.distance == "cosine":
        queries = normalised(queries)
    parts = _Parts(index, vectors, queries)
    unit_s, exact_s = parts.exact()
    seconds = {**exact_s, **parts.tree(parameters["num_leaves"])}
    if codes is not None:
        seconds |= parts.scan(codes, seconds["reordered"])
    costs = {name: part_s / unit_s for name, part_s in seconds.items()}
    return SearchCosts(cached=parts.cached, **costs)


class _Line(NamedTuple):
    """Seconds of a part of a search: of its start, and of each vector that it covers."""

    start_s: float
    each_s: float


class _Parts:
    """The parts of searches of one index, each timed for few vectors and for many.

    Attributes:
      cached: Vectors that the processor's cache holds.
    """

    def __init__(self, index: ScannIndex, vectors: Vectors, queries: Vectors) -> None:
        self._index = index
        self._vectors = vectors
        self._queries = queries
        size = len(vectors)
        vector_bytes = 4 * vectors.shape[1]
        uncached = min(size, _UNCACHED_BYTES // vector_bytes)
        self.cached = min(size, _CACHED_BYTES // vector_bytes)
        self._few = _spread(size, max(1, self.cached // _SMALLER))
        self._some = _spread(size, max(1, self.cached))
        self._many = _spread(size, max(1, uncached))
        large = min(size, _POOL)
        self._pools = max(1, large // _SMALLER), large
        self._small_pool, self._large_pool = (_shuffled(size, count) for count in self._pools)
        self._k = min(_NEIGHBORS, self._few.size)

    def exact(self) -> tuple[float, dict[str, float]]:
        """Times exact scores; returns the seconds of one, and those of what is around them."""
        vectors = self._vectors
        distance = self._index.distance
        few, some, many = (
            VectorBlock(vectors[matches], distance)
            for matches in (self._few, self._some, self._many)
        )
        cached = self._line(
            (self._few.size, self._some.size),
            lambda query: few.search(query[np.newaxis], [self._k]),
            lambda query: some.search(query[np.newaxis], [self._k]),
        )
        uncached = self._line(
            (self._some.size, self._many.size),
            lambda query: some.search(query[np.newaxis], [self._k]),
            lambda query: many.search(query[np.newaxis], [self._k]),
        )
        gathered = self._line(
            (self._few.size, self._some.size),
            lambda _: vectors[self._few],
            lambda _: vectors[self._some],
        )
        reordered = self._line(
            self._pools,
            lambda query: exact_scores(vectors, query, self._small_pool, distance),
            lambda query: exact_scores(vectors, query, self._large_pool, distance),
        )
        seconds = {
            "exact_start": cached.start_s,
            "uncached": uncached.each_s,
            "gathered": gathered.each_s,
            "reordered": reordered.each_s,
        }
        return max(cached.each_s, _UNIT_MIN_S), seconds

    def tree(self, leaves: int) -> dict[str, float]:
        """Times searches of the tree."""
        size = len(self._vectors)
        few, many = (max(1, round(share * leaves)) for share in _LEAF_SHARES)
        small, large = self._pools
        candidates = self._index.candidates
        searched = self._line(
            (size * few // leaves, size * many // leaves),
            lambda query: candidates(query, small, few),
            lambda query: candidates(query, small, many),
        )
        fetched = self._line(
            self._pools,
            lambda query: candidates(query, small, many),
            lambda query: candidates(query, large, many),
        )
        return {
            "tree_start": max(0.0, searched.start_s - fetched.each_s * small),
            "leaf_vector": searched.each_s,
            "fetched": fetched.each_s,
        }

    def scan(self, codes: VectorCodes, reordered_s: float) -> dict[str, float]:
        """Times scans of codes, from which the best are scored exactly."""
        few = codes.pack(self._few)
        many = codes.pack(self._many)
        small, large = self._pools
        counts = self._few.size, self._many.size
        scanned = self._line(
            counts,
            lambda query: self._scan(query, few, self._few),
            lambda query: self._scan(query, many, self._many),
        )
        found = self._line(
            self._pools,
            lambda query: many.nearest(query, small),
            lambda query: many.nearest(query, large),
        )
        gathered = self._line(
            counts, lambda _: codes.pack(self._few), lambda _: codes.pack(self._many)
        )
        pool_s = (found.each_s + reordered_s) * small
        return {
            "scan_start": max(0.0, scanned.start_s - pool_s),
            "scanned": scanned.each_s,
            "found": found.each_s,
            "code_gathered": gathered.each_s,
        }

    def _scan(self, query: Vectors, codes: PackedCodes, positions: Positions) -> None:
        candidates = positions[codes.nearest(query, self._pools[0])]
        rank_exactly(self._vectors, query, candidates, self._k, self._index.distance)

    def _line(self, counts: tuple[int, int], small: Search, large: Search) -> _Line:
        """Times two searches in turns, so that a busy moment meets both, and takes the medians.

        Args:
          counts: The vectors that each of the searches covers.
          small: A search that covers fewer vectors.
          large: The same search of more.
        """
        small(self._queries[0])  # reads the pages
        large(self._queries[0])
        seconds = []
        for query in self._queries:
            began = time.perf_counter()
            small(query)
            between = time.perf_counter()
            large(query)
            seconds.append((between - began, time.perf_counter() - between))
        small_s, large_s = np.median(seconds, axis=0).tolist()
        each_s = 0.0
        if counts[1] > counts[0]:
            each_s = max(0.0, large_s - small_s) / (counts[1] - counts[0])
        return _Line(max(0.0, small_s - each_s * counts[0]), each_s)


def _spread(size: int, count: int) -> Positions:
    """Returns `count` of the positions below `size`, evenly spread and ascending."""
    return np.linspace(0, size - 1, count).astype(np.uint32)


def _shuffled(size: int, count: int) -> Positions:
    """Returns `count` of the positions below `size`, in no order, as a search finds them."""
    random = np.random.default_rng(_SEED)
    return random.choice(size, count, replace=False).astype(np.uint32)

"""Measures the costs of the parts of a search of a written tree, by which a service chooses how to
search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.search_costs import SearchCosts, cached_vectors
from runtime.candidate_index import CandidateIndex
from runtime.exact import VectorBlock, exact_scores, rank_exactly

if TYPE_CHECKING:  # faiss is loaded where an index has codes
    from runtime.codes import PackedCodes, VectorCodes

Vectors = NDArray[np.float32]
Positions = NDArray[np.uint32]
Search = Callable[[Vectors], Any]
"""A part of the search for one query, [dim]."""

_UNCACHED_BYTES = 32 << 20
"""The size of the vectors of a filter that a processor's cache does not hold."""
_POOL = 1600
"""The number of candidates of the larger pool that is fetched and reordered."""
_POOL_RATIO = 4
"""The ratio of the size of the larger pool to that of the smaller one."""
_LEAF_SHARES = (0.02, 0.1)
"""The shares of all leaves that the timed searches cover."""
_NEIGHBORS = 100
COST_QUERIES_MAX = 40
"""The maximum number of queries that are searched for."""
_ROUNDS = 40
"""The number of searches of each kind in a series, in turns, so that a busy moment of the machine
meets all kinds.
"""
_SERIES_MAX = 3
"""The maximum number of series that are timed, as long as the measured costs cannot be true."""
_SEED = 1
_UNIT_MIN_S = 1e-10
"""The minimum time of one exact score in seconds: faster is noise."""


def measure_costs(
    index: CandidateIndex,
    vectors: Vectors,
    codes: VectorCodes | None,
    queries: Vectors,
    leaves: int,
) -> SearchCosts:
    """Times the parts of searches, and returns them as ratios to the exact score of one vector.

    OpenBLAS must use one thread, as it does in a service.

    Args:
      index: The tree, loaded as a service loads it.
      vectors: [size, dim] float32, mapped from their file.
      codes: The codes of all vectors; None if the index has none.
      queries: [q, dim] float32, of which some are searched for.
      leaves: The number of leaves of the tree.

    Returns:
      The costs; typical ones, if the machine is so busy that those measured cannot be true.
    """
    queries = np.ascontiguousarray(queries[:COST_QUERIES_MAX], np.float32)
    parts = SearchParts(index, vectors, leaves)
    searches = parts.searches()
    if codes is not None:
        searches |= parts.scans(codes)
    return parts.costs(_timed(searches, queries) for _ in range(_SERIES_MAX))


class SearchParts:
    """The parts of searches of one index, each for few vectors and for many.

    Attributes:
      cached: Vectors that the processor's cache holds.
    """

    def __init__(self, index: CandidateIndex, vectors: Vectors, leaves: int) -> None:
        """Chooses the vectors and the leaves of each part.

        Args:
          index: The tree.
          vectors: [size, dim] float32.
          leaves: The number of leaves of the tree.
        """
        self._index = index
        self._vectors = vectors
        size, dim = vectors.shape
        self.cached = min(size, cached_vectors(dim))
        uncached = min(size, _UNCACHED_BYTES // (4 * dim))
        self._few = _spread(size, max(1, self.cached // _POOL_RATIO))
        self._some = _spread(size, max(1, self.cached))
        self._many = _spread(size, max(1, uncached))

        self._large = min(size, _POOL)
        self._small = max(1, self._large // _POOL_RATIO)
        self._small_pool = _shuffled(size, self._small)
        self._large_pool = _shuffled(size, self._large)
        self._k = min(_NEIGHBORS, self._few.size)

        self._few_leaves, self._many_leaves = (
            max(1, round(share * leaves)) for share in _LEAF_SHARES
        )
        self._leaf_vectors = size / leaves

    def searches(self) -> dict[str, Search]:
        """Returns exact searches and searches of the tree, by name."""
        vectors = self._vectors
        distance = self._index.distance
        candidates = self._index.candidates
        small_block = VectorBlock(vectors[self._few], distance)
        cached_block = VectorBlock(vectors[self._some], distance)
        large_block = VectorBlock(vectors[self._many], distance)
        return {
            "exact, few": lambda query: small_block.search(query[np.newaxis], [self._k]),
            "exact, some": lambda query: cached_block.search(query[np.newaxis], [self._k]),
            "exact, many": lambda query: large_block.search(query[np.newaxis], [self._k]),
            "gather few": lambda _: vectors[self._few],
            "gather some": lambda _: vectors[self._some],
            "reorder few": lambda query: exact_scores(vectors, query, self._small_pool, distance),
            "reorder many": lambda query: exact_scores(vectors, query, self._large_pool, distance),
            "tree": lambda query: candidates(query, self._small, self._few_leaves),
            "tree, more leaves": lambda query: candidates(query, self._small, self._many_leaves),
            "tree, larger pool": lambda query: candidates(query, self._large, self._many_leaves),
        }

    def scans(self, codes: VectorCodes) -> dict[str, Search]:
        """Returns scans of codes, by name."""
        few_codes = codes.pack(self._few)
        many_codes = codes.pack(self._many)

        def scan(query: Vectors, packed: PackedCodes, positions: Positions) -> None:
            nearest = positions[packed.nearest(query[np.newaxis], self._small)[0]]
            rank_exactly(self._vectors, query, nearest, self._k, self._index.distance)

        return {
            "scan few": lambda query: scan(query, few_codes, self._few),
            "scan many": lambda query: scan(query, many_codes, self._many),
            "find few": lambda query: many_codes.nearest(query[np.newaxis], self._small),
            "find many": lambda query: many_codes.nearest(query[np.newaxis], self._large),
            "pack few": lambda _: codes.pack(self._few),
            "pack many": lambda _: codes.pack(self._many),
        }

    def costs(self, series: Iterable[Mapping[str, Sequence[float]]]) -> SearchCosts:
        """Returns the costs by the shortest times, as soon as they can be true; typical costs, if
        they cannot after all series.

        Args:
          series: The seconds of each search, by its name, several times.
        """
        size, dim = self._vectors.shape
        shortest: dict[str, float] = {}
        for samples in series:
            # Other work on the machine only adds to a time.
            for name, seconds in samples.items():
                shortest[name] = min([shortest.get(name, math.inf), *seconds])
            parts = self.seconds(shortest)
            unit_s = max(parts.pop("unit"), _UNIT_MIN_S)
            ratios = {name: part_s / unit_s for name, part_s in parts.items()}
            costs = SearchCosts(cached=self.cached, **ratios)
            if not costs.implausible_part(size, dim, coded="scanned" in ratios):
                return costs
        return SearchCosts.typical(dim, coded="scan few" in shortest)

    def seconds(self, timed: Mapping[str, float]) -> dict[str, float]:
        """Returns the seconds of each part, and of the unit.

        Args:
          timed: The seconds of each search.
        """
        few_count = self._few.size
        some_added = self._some.size - few_count
        many_added = self._many.size - self._some.size
        pool_added = self._large - self._small
        leaf_vectors = self._leaf_vectors * (self._many_leaves - self._few_leaves)

        def per_vector(smaller: str, larger: str, added: float) -> float:
            """Returns the seconds of each vector that the larger search covers in addition."""
            if not added:
                return 0.0
            # On a busy machine, the larger search may have taken less time.
            return max(0.0, timed[larger] - timed[smaller]) / added

        unit = per_vector("exact, few", "exact, some", some_added)
        reordered = per_vector("reorder few", "reorder many", pool_added)
        leaf_vector = per_vector("tree", "tree, more leaves", leaf_vectors)
        fetched = per_vector("tree, more leaves", "tree, larger pool", pool_added)
        # What the vectors of leaves and the candidates do not explain is the start of the search.
        searched = leaf_vector * self._leaf_vectors * self._few_leaves
        parts = {
            "unit": unit,
            "exact_start": timed["exact, few"] - unit * few_count,
            "uncached": per_vector("exact, some", "exact, many", many_added),
            "gathered": per_vector("gather few", "gather some", some_added),
            "reordered": reordered,
            "tree_start": timed["tree"] - searched - fetched * self._small,
            "leaf_vector": leaf_vector,
            "fetched": fetched,
        }
        if "scan few" in timed:
            scanned = per_vector("scan few", "scan many", many_added + some_added)
            code_found = per_vector("find few", "find many", pool_added)
            # A scan of few codes finds no more candidates than these.
            pool_s = (code_found + reordered) * min(self._small, few_count)
            parts |= {
                "scan_start": timed["scan few"] - scanned * few_count - pool_s,
                "scanned": scanned,
                "found": code_found,
                "code_gathered": per_vector("pack few", "pack many", many_added + some_added),
            }
        return {name: max(0.0, part_s) for name, part_s in parts.items()}


def _timed(searches: Mapping[str, Search], queries: Vectors) -> dict[str, list[float]]:
    """Returns the seconds of processor time that each of the searches takes, several times. They
    leave out the time for which other work on the machine keeps a search from running.
    """
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    for number in range(_ROUNDS):
        query = queries[number % len(queries)]
        for name, search in searches.items():
            search(query)  # brings what it reads into the cache
            began = time.thread_time()
            search(query)
            seconds[name].append(time.thread_time() - began)
    return seconds


def _spread(size: int, count: int) -> Positions:
    """Returns `count` of the positions below `size`, evenly spread and ascending."""
    return np.linspace(0, size - 1, count).astype(np.uint32)


def _shuffled(size: int, count: int) -> Positions:
    """Returns `count` of the positions below `size`, in no order, as a search finds them."""
    random = np.random.default_rng(_SEED)
    return random.choice(size, count, replace=False).astype(np.uint32)

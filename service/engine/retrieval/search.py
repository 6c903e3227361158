"""Search of an index among the candidates that a request allows: k of them wherever k are allowed.

Where few match a filter their vectors are scored exactly, side by side once the filter is requested
again. Where more do, their codes are scanned, and the best of them reordered, as of candidates that
changed since the bundle was loaded. Where a large share
does, the tree finds more than are wanted, and of those that are allowed the best are reordered; as
long as too few are left, such as of matches far from the query, it searches deeper, until searching
the matches alone is cheaper. Neither a tree nor codes know which candidates are denied: where few
are not, these alone are scored.

A candidate's score is that of `rank_exactly`, whatever the filter, the path or the batch.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.tables.id_values import distinct
from bundle.tables.offsets import lengths_of
from runtime.exact import best_of, exact_scores, normalized, rank_exactly
from service.contract.messages import Explanation, Vectors
from service.engine import filters
from service.engine.execution import Execution
from service.engine.filters import Mask, Matches, is_among, not_among
from service.engine.neighbors import (
    AllowedCandidates,
    Neighbors,
    Positions,
    Queries,
    SearchOptions,
    concatenate,
)
from service.engine.retrieval.search_depth import (
    FETCHED_PER_POOL,
    Plan,
    ScanDepth,
    SearchDepth,
    plan_search,
    scores_live_alone,
)
from service.engine.validation import check_finite
from service.versions.version import LiveIndex, LoadedIndex

if TYPE_CHECKING:  # faiss is loaded where an index has codes
    from runtime.code_blocks import PackedBlocks
    from runtime.codes import PackedCodes

CELLS_MAX = 4 << 20
"""Maximum product of queries and candidates in one exact search: bounds the memory of a call, 12
bytes each.
"""
_GATHERED_BYTES_MAX = 16 << 20
"""Maximum size of a copy of matching vectors that is made even if it is not kept, in bytes. Side by
side they are scored together for all queries; a larger copy takes more memory of each batch.
"""
_SHORTAGE_FACTOR = 2
"""Factor by which the allowed candidates may be fewer than expected before a search goes deeper:
beyond it, nearer ones were missed. A smaller factor repeats more searches; a larger one misses
neighbors.
"""
_FETCHED_PER_SPARE = 10
"""Number of fetched candidates of which one may be excluded without a deeper search. So a list
hardly ever depends on what is excluded from it, and most searches are made once.
"""
_VECTORS_PER_SCAN = 8
"""Vectors whose codes are compared at once, which takes half of the time of as many scans."""
_UNMATCHED_MAX = 20
"""Maximum number of conditions that an explanation names."""
_PER_EXCLUDED = 4
"""Candidates fetched for each excluded one that lies before the best, around which more score about
equally.
"""


def nearest(
    index: LoadedIndex,
    queries: Queries,
    options: SearchOptions,
    execution: Execution,
    floors: NDArray[np.float32] | None = None,
) -> Neighbors:
    """Finds the k nearest allowed candidates of each query; fewer only where fewer are allowed.

    Args:
      index: The index.
      queries: The queries. The filter of what they may find is that of the options, compiled.
      options: How to search.
      execution: The batch of the request.
      floors: [n] scores, if each query has one vector: neighbors that score less than the floor of
        their query may be left out. Those that reach it may be more than k, in any order.

    Raises:
      NotFinite: A score is beyond float32.
    """
    began = time.perf_counter()
    execution.begin("search")
    vectors, allowed, offsets = queries
    if offsets is None:
        search = _Search(index, queries, options, execution, floors)
        if floors is not None and not options.explain:
            reaching = search.find_reaching(floors)
            if reaching is not None:
                return reaching
        neighbors_by_query = search.find_neighbors()
    else:
        # Each vector of a query is searched for by itself, with what the query excludes.
        sizes = lengths_of(offsets).tolist()
        pairs = zip(allowed.excluded, sizes, strict=True)
        excluded = [positions for positions, size in pairs for _ in range(size)]
        by_vector = Queries(vectors, allowed._replace(excluded=excluded))
        search = _Search(index, by_vector, options, execution)
        neighbors_by_vector = search.find_neighbors()
        neighbors_by_query = [
            search.merge_vectors(neighbors_by_vector[first:end], first)
            for first, end in pairwise(offsets.tolist())
        ]
    neighbors = concatenate(neighbors_by_query)
    check_finite(neighbors.scores, "a candidate's score")
    if allowed.filter is not None and allowed.filter.key:
        # A filter without a key is not one of a request, but what is left of a changed part.
        for explanation in neighbors.explanations:
            execution.count("filtered_searches", 1, explanation.path)
    if not options.explain:
        return neighbors
    search_ms = 1000 * (time.perf_counter() - began) / len(neighbors_by_query)
    unmatched: tuple[str, ...] = ()
    if options.filter:
        conditions = filters.unmatched(index.corpus, options.filter)
        unmatched = tuple(islice(conditions, _UNMATCHED_MAX))
    completed = [
        _complete_explanation(index, explanation, allowed, query, search_ms)._replace(
            unmatched=unmatched
        )
        for query, explanation in enumerate(neighbors.explanations)
    ]
    return neighbors._replace(explanations=tuple(completed))


class _Scan(NamedTuple):
    """A scan of codes.

    Attributes:
      depth: The depth.
      codes: The codes that are scanned.
      positions: The positions of their candidates; None: those of all candidates.
      live_share: The share of the codes whose candidates have not ended.
    """

    depth: ScanDepth
    codes: PackedCodes | PackedBlocks
    positions: NDArray[np.uint32] | None
    live_share: float

    def nearest(self, queries: Vectors, pool: int) -> list[Positions]:
        """Returns the positions among what is scanned of what is nearest to each query, as many as
        a pool takes.
        """
        return self.codes.nearest(queries, math.ceil(FETCHED_PER_POOL * pool / self.live_share))


class _Search:
    """One search for some vectors, each with the candidates that it may find."""

    def __init__(
        self,
        index: LoadedIndex,
        queries: Queries,
        options: SearchOptions,
        execution: Execution,
        floors: NDArray[np.float32] | None = None,
    ) -> None:
        vectors, allowed, _ = queries
        self._index = index
        self._floors = floors
        self._k = options.k
        self._denied = allowed.denied
        self._denied_mask = allowed.denied_mask
        self._excluded = allowed.excluded
        self._execution = execution
        self._sent = vectors
        self._distance = index.entry.distance
        self._vectors = vectors
        if self._distance == "cosine":
            self._vectors = normalized(vectors)
        self._compiled = allowed.filter
        self._matches: Matches | None = None
        if allowed.filter is not None:
            self._matches = allowed.filter.matches
        self._size = len(index.vectors)
        self._live_share = 1 - self._denied.size / self._size
        # To look for the few that are denied costs less than to plan for them.
        self._is_worn = self._live_share < 1 - 1 / _FETCHED_PER_SPARE
        self._plan = Plan(None, None)
        if not options.exact:
            matching = None
            if self._matches is not None:
                matching = self._matches.count
            self._plan = plan_search(index, options.recall, options.k, matching)
        # Many candidates are denied: to search deeper for the others may cost more than to score
        # them.
        if self._is_worn and self._are_live_scored_alone():
            self._score_live_alone()

    def find_neighbors(self) -> list[Neighbors]:
        """Returns the neighbors of each vector.

        How a vector's neighbors are found depends on the vector, on what it excludes and on the
        filter alone: not on the other vectors, nor on earlier requests.
        """
        index = self._index
        count = len(self._vectors)
        by_vector: list[Neighbors | None] = [None] * count
        unfinished = list(range(count))
        depth, scan = self._plan
        if depth is not None:
            if self._matches is not None:
                self._matches = self._matches.with_set(self._size)

            def search_tree(number: int) -> None:
                fetched = self._fetch(number, depth)
                if fetched is None:
                    return
                query = self._vectors[number]
                best = rank_exactly(index.vectors, query, fetched, self._k, self._distance)
                explanation = Explanation("index", scored=fetched.size)
                by_vector[number] = Neighbors.of_one(*best, explanation)

            self._execution.parallel(count, search_tree)
            # To fetch more for the unfinished vectors would cost too much: a scan or exact scores
            # follow.
            unfinished = [vector for vector, neighbors in enumerate(by_vector) if neighbors is None]
        if unfinished and scan is not None:
            self._scan_codes(unfinished, by_vector, scan)
            unfinished = [vector for vector, neighbors in enumerate(by_vector) if neighbors is None]
        if unfinished:
            for number, neighbors in zip(unfinished, self._score_exactly(unfinished), strict=True):
                by_vector[number] = neighbors
        compiled = self._compiled
        if compiled is None or self._matches is None or not compiled.key:
            return [neighbors for neighbors in by_vector if neighbors is not None]
        # The filter is kept with the mask or the block that this search has made. Matches that the
        # cache holds as they are need not be written again.
        if not compiled.is_cached or self._matches is not compiled.matches:
            cache = index.compiled
            cache.put(index, compiled.key, self._matches, self._matches.bytes)
            self._execution.gauge("filter_cache_bytes", cache.bytes)
        return [neighbors for neighbors in by_vector if neighbors is not None]

    def _are_live_scored_alone(self) -> bool:
        """Returns whether to score those candidates that are not denied, and no others."""
        if self._denied.size == self._size:
            return True
        if self._matches is None:
            if self._plan == Plan(None, None):
                return True
            matching = self._size
        else:
            matching = self._matches.count
        return scores_live_alone(self._index, self._plan, self._live_share, matching)

    def _score_live_alone(self) -> None:
        """Plans to score those candidates that match and are not denied."""
        self._plan = Plan(None, None)
        if self._matches is None:
            if isinstance(self._index, LiveIndex):
                # Their vectors lie side by side already. Few others are denied.
                self._matches = Matches.at(self._index.live, self._index.live_block)
                return
            if self._denied_mask is None:
                live = not_among(self._denied, self._size)
            else:
                live = (~self._denied_mask).nonzero()[0].astype(np.uint32)
        else:
            positions = self._matches.positions
            live = positions[~self._is_denied(positions)]
        self._matches = Matches.at(live)
        # What the filter matches outlives the deny list: these are not kept in its place.
        self._compiled = None
        self._denied = self._denied[:0]
        self._denied_mask = None

    def merge_vectors(self, by_vector: list[Neighbors], first: int) -> Neighbors:
        """Returns the k best found for the vectors from `first` on, each by its best score over all
        of them.
        """
        if len(by_vector) == 1:
            return by_vector[0]
        # A candidate that one vector found may be nearer to another, which did not find it.
        union = distinct(np.concatenate([neighbors.positions for neighbors in by_vector]))
        scores = np.full(union.size, -np.inf, np.float32)
        for query in self._vectors[first : first + len(by_vector)]:
            np.maximum(
                scores, exact_scores(self._index.vectors, query, union, self._distance), out=scores
            )
        best = np.lexsort((union, -scores))[: self._k]
        explanations = [
            explanation for neighbors in by_vector for explanation in neighbors.explanations
        ]
        by_index = any(explanation.path == "index" for explanation in explanations)
        path = explanations[0].path
        if by_index:
            path = "index"
        scored = sum(explanation.scored for explanation in explanations)
        return Neighbors.of_one(union[best], scores[best], Explanation(path, scored=scored))

    def find_reaching(self, floors: NDArray[np.float32]) -> Neighbors | None:
        """Returns the candidates that a tree finds and whose scores reach the floors of the
        vectors, in no order.

        Few do, so that nothing is sorted, and all vectors' candidates are compared at once.

        Args:
          floors: [v] float32, the floor of each vector.

        Returns:
          The candidates; None: the index or the vectors need the search of `find_neighbors`.
        """
        depth = self._plan.depth
        if depth is None or self._matches is not None:
            return None
        index = self._index
        count = len(self._vectors)
        fetched: list[tuple[NDArray[np.uint32], Vectors] | None] = [None] * count

        def search(number: int) -> None:
            positions = self._fetch(number, depth)
            if positions is not None:
                query = self._vectors[number]
                scores = exact_scores(index.vectors, query, positions, self._distance)
                fetched[number] = positions, scores

        self._execution.parallel(count, search)
        by_vector = [candidates for candidates in fetched if candidates is not None]
        if len(by_vector) < count:
            return None
        if count == 1:
            positions, scores = by_vector[0]
            numbers = np.zeros(positions.size, np.int64)
        else:
            positions = np.concatenate([positions for positions, _ in by_vector])
            scores = np.concatenate([scores for _, scores in by_vector])
            numbers = np.arange(count).repeat([scores.size for _, scores in by_vector])
        # `find_neighbors` names what is not finite.
        if not math.isfinite(scores.sum()):
            return None
        is_reached = scores >= floors[numbers]
        offsets = numbers[is_reached].searchsorted(np.arange(count + 1))
        explanations = [Explanation("index", scored=scores.size) for _, scores in by_vector]
        reaching = positions[is_reached].astype(np.int64)
        return Neighbors(reaching, scores[is_reached], offsets, tuple(explanations))

    def _fetch(self, vector: int, depth: SearchDepth) -> NDArray[np.uint32] | None:
        """Has the index fetch candidates, and ever more of them until enough are allowed.

        The first pool is the same whatever is excluded, and it suffices unless more than a few of
        its candidates are: to exclude one removes it from the list and changes nothing else.

        Returns:
          The positions of those to score exactly; None: to score all that match is cheaper.
        """
        tree = self._index.approximate
        assert tree is not None  # noqa: S101 - else the plan is an exact search
        query = self._vectors[vector]
        excluded_count = self._excluded_count(vector)
        matches = self._matches
        share = depth.share
        first_pool = depth.pool
        if self._is_worn:
            # As where a filter matches as many: those that are denied are not among the others.
            excluded_count = int(self._excluded[vector].size)
            share *= self._live_share
            first_pool = min(self._size, math.ceil(first_pool / self._live_share))
        excluded_share = excluded_count / self._size
        pool = first_pool
        while pool == first_pool or depth.pays(pool):
            fetched = tree.candidates(query, pool, depth.leaves(pool))
            matching = fetched if matches is None else matches.among(fetched)
            if self._is_worn:
                matching = matching[~self._is_denied(matching)]

            # Excluded candidates, such as those that a user has seen, often are the nearest; those
            # around them score about equally.
            excluded_fetched = 0
            if excluded_count:
                is_excluded = self._is_excluded(vector, matching)
                excluded_fetched = int(np.count_nonzero(is_excluded))
            extra_count = 0
            if excluded_fetched:
                spare_count = first_pool * share / _FETCHED_PER_SPARE
                tolerated_count = math.ceil(spare_count + matching.size * excluded_share)
                extra_count = _PER_EXCLUDED * max(0, excluded_fetched - tolerated_count)
            # The larger the pool, the more of its best are reordered, in the proportion of the
            # first one.
            reordered = matching[: depth.reorder * pool // first_pool + extra_count]
            if excluded_fetched:
                reordered = reordered[~is_excluded[: reordered.size]]

            # Where fewer matches than expected were fetched, they lie far from the query, and
            # nearer ones were missed.
            first_min = first_pool * share / _SHORTAGE_FACTOR + extra_count
            matching_min = max(pool * share / _SHORTAGE_FACTOR, first_min)
            if reordered.size >= self._k and matching.size >= matching_min:
                return reordered
            # Few steps reach the whole index; each repeats the search of the tree.
            pool *= 4
            if reordered.size < self._k:
                pool = max(pool, first_pool + _PER_EXCLUDED * excluded_count)
        return None

    def _scan_codes(
        self, vectors: list[int], by_vector: list[Neighbors | None], depth: ScanDepth
    ) -> None:
        """Scans the codes of what matches, for some of the vectors.

        Args:
          vectors: The numbers of the vectors.
          by_vector: The neighbors of all vectors, to which those of the scanned ones are written.
          depth: The depth.
        """
        matches = self._matches
        codes: PackedCodes | PackedBlocks
        if matches is not None:
            positions = matches.positions
            codes = matches.codes or depth.codes.pack(positions)
            if matches.codes is None:
                self._matches = replace(matches, listed=positions, codes=codes)
            scan = _Scan(depth, codes, positions, 1.0)
        else:
            # Of candidates behind the bundle's, all codes are packed.
            assert isinstance(self._index, LiveIndex)  # noqa: S101
            assert self._index.codes is not None  # noqa: S101
            scan = _Scan(depth, self._index.codes.packed, None, self._live_share)

        def search(number: int) -> None:
            part = vectors[number * _VECTORS_PER_SCAN : (number + 1) * _VECTORS_PER_SCAN]
            numbers_by_vector = scan.nearest(self._vectors[part], depth.pool)
            for vector, numbers in zip(part, numbers_by_vector, strict=True):
                by_vector[vector] = self._reorder_scanned(vector, scan, numbers)

        self._execution.parallel(ceil_div(len(vectors), _VECTORS_PER_SCAN), search)

    def _reorder_scanned(self, vector: int, scan: _Scan, numbers: Positions) -> Neighbors | None:
        """Reorders the candidates that are nearest by their codes, and more of them until the list
        reaches the recall.

        A few excluded candidates do not change how many are reordered: to exclude one removes it
        from the list and changes nothing else.

        Args:
          vector: The number of the vector.
          scan: The scan.
          numbers: The positions, among what was scanned, of the nearest by their codes.

        Returns:
          The neighbors; None: to score all that match is cheaper.
        """
        query = self._vectors[vector]
        pool = scan.depth.pool
        fetched = self._scanned_candidates(scan, numbers)
        scores = np.empty(0, np.float32)
        while scan.depth.pays(pool):
            if pool > fetched.size:
                (numbers,) = scan.nearest(query[np.newaxis], pool)
                fetched = self._scanned_candidates(scan, numbers)
                scores = scores[:0]
            if fetched.size < pool:
                break
            # The best by their codes are scored already: only what the larger pool adds is read.
            added = fetched[scores.size : pool]
            added_scores = exact_scores(self._index.vectors, query, added, self._distance)
            scores = np.concatenate([scores, added_scores])
            candidates = fetched[:pool]
            allowed_candidates = candidates
            allowed_scores = scores
            if self._excluded_count(vector):
                is_allowed = ~self._is_excluded(vector, candidates)
                allowed_candidates = candidates[is_allowed]
                allowed_scores = scores[is_allowed]
            # As the docstring states, a few excluded candidates do not decide the depth.
            has_many_excluded = allowed_candidates.size < pool - pool // _FETCHED_PER_SPARE
            judged_scores = scores
            if has_many_excluded:
                judged_scores = allowed_scores
            if allowed_candidates.size >= self._k and scan.depth.suffices(judged_scores):
                best = best_of(allowed_candidates, allowed_scores, self._k)
                return Neighbors.of_one(*best, Explanation("index", scored=allowed_candidates.size))
            pool *= 2
        return None

    def _scanned_candidates(self, scan: _Scan, numbers: Positions) -> NDArray[np.integer[Any]]:
        """Returns the positions of candidates, by those among what is scanned."""
        if scan.positions is not None:
            return scan.positions[numbers]
        # First of all: what the vector of an ended candidate was must not change a list.
        return numbers[~self._is_denied(numbers)]

    def _score_exactly(self, vectors: list[int]) -> list[Neighbors]:
        """Scores all candidates that match, for some of the vectors."""
        if self._matches is None and (self._is_worn or isinstance(self._index, LiveIndex)):
            self._score_live_alone()
        matches = self._matches
        index = self._index
        if matches is None:
            return self._score_in_blocks(vectors, None)
        positions = matches.positions
        if matches.block is None:
            block_bytes = positions.size * (4 * index.entry.dim + 16)
            fits = index.compiled.fits(block_bytes)
            if not fits and block_bytes > _GATHERED_BYTES_MAX:
                return self._score_in_blocks(vectors, positions)
            is_cached = self._compiled is not None and self._compiled.is_cached
            if len(vectors) > 1 or (is_cached and fits):
                matches = matches.with_block(index)
                if fits:
                    self._matches = matches
        block = matches.block
        # As many more are fetched as may have to be left out afterwards.
        denied = _count_among(self._denied, positions)
        fetch_counts = [
            self._k + denied + _count_among(self._excluded[vector], positions) for vector in vectors
        ]
        if block is None:
            query = self._vectors[vectors[0]]
            best = rank_exactly(index.vectors, query, positions, fetch_counts[0], self._distance)
            return [self._first_allowed(vectors[0], *best, positions.size)]
        vectors_per_part = max(1, CELLS_MAX // max(1, positions.size))
        parts = [
            slice(first, first + vectors_per_part)
            for first in range(0, len(vectors), vectors_per_part)
        ]
        ranked_by_part: list[list[tuple[Positions, Vectors]]] = [[] for _ in parts]

        def score(number: int) -> None:
            part = parts[number]
            floors = None
            if self._floors is not None:
                floors = self._floors[vectors[part]]
            ranked_by_part[number] = block.search(
                self._vectors[vectors[part]], fetch_counts[part], floors
            )

        self._execution.parallel(len(parts), score)
        ranked = chain.from_iterable(ranked_by_part)
        return [
            self._first_allowed(
                vector, positions[block_rows].astype(np.int64), scores, positions.size
            )
            for vector, (block_rows, scores) in zip(vectors, ranked, strict=True)
        ]

    def _score_in_blocks(
        self, vectors: list[int], positions: NDArray[np.uint32] | None
    ) -> list[Neighbors]:
        """Scores vectors where they lie, all or those at some positions, in blocks of bounded
        memory, for one vector after the other.
        """
        index = self._index
        count = self._size
        if positions is not None:
            count = positions.size
        by_vector: list[Neighbors] = []
        for vector in vectors:
            # By itself: products of several vectors round otherwise, which may leave out another
            # one of candidates that score equally.
            wanted = min(count, self._k + self._excluded_count(vector))
            nearest, _ = index.exact.search(
                self._sent[vector : vector + 1], max(1, wanted), positions, self._execution.parallel
            )
            fetched = nearest[0][nearest[0] >= 0]
            best = rank_exactly(
                index.vectors, self._vectors[vector], fetched, fetched.size, self._distance
            )
            by_vector.append(self._first_allowed(vector, *best, count))
        return by_vector

    def _first_allowed(
        self, vector: int, positions: Positions, scores: Vectors, scored: int
    ) -> Neighbors:
        """Returns the first k that are not excluded."""
        if self._excluded_count(vector):
            is_allowed = ~self._is_excluded(vector, positions)
            positions = positions[is_allowed]
            scores = scores[is_allowed]
        path = "none"
        if positions.size:
            path = "exact"
        explanation = Explanation(path, scored=scored)
        return Neighbors.of_one(positions[: self._k], scores[: self._k], explanation)

    def _excluded_count(self, query: int) -> int:
        return int(self._denied.size + self._excluded[query].size)

    def _is_denied(self, positions: NDArray[Any]) -> Mask:
        if self._denied_mask is None:
            return is_among(positions, self._denied)
        is_denied: Mask = self._denied_mask[positions]
        return is_denied

    def _is_excluded(self, vector: int, positions: NDArray[Any]) -> Mask:
        is_excluded = self._is_denied(positions)
        excluded = self._excluded[vector]
        if excluded.size:
            is_excluded |= is_among(positions, excluded)
        return is_excluded


def _count_among(positions: NDArray[Any], ascending: NDArray[Any]) -> int:
    """Returns how many of some positions are among others; both ascend and are distinct."""
    if not positions.size or not ascending.size:
        return 0
    if positions.size > ascending.size:
        # To look up the fewer ones takes less time.
        positions, ascending = ascending, positions
    return int(np.count_nonzero(is_among(positions, ascending)))


def _complete_explanation(
    index: LoadedIndex,
    explanation: Explanation,
    allowed: AllowedCandidates,
    query: int,
    search_ms: float,
) -> Explanation:
    """Adds the number of matches, which the search itself does not count."""
    size = len(index.vectors)
    excluded = allowed.excluded[query]
    if allowed.filter is None:
        count = size - allowed.denied.size - excluded.size
    else:
        matches = allowed.filter.matches
        count = matches.count
        if allowed.denied.size or excluded.size:
            positions = matches.positions
            count -= _count_among(allowed.denied, positions) + _count_among(excluded, positions)
    return explanation._replace(matches=count, search_ms=search_ms)

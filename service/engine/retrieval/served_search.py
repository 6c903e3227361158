"""Search of an index as requests name it: the candidates of the bundle, here or on shards, and
those that were added or replaced since, which lie behind them and in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import lengths_of
from runtime.exact import normalized
from service.contract.messages import Explanation, Filter, Vectors
from service.engine import filters
from service.engine.execution import Execution
from service.engine.filters import CompiledFilter, Matches, is_among
from service.engine.neighbors import (
    AllowedCandidates,
    Neighbors,
    Positions,
    Queries,
    SearchedPart,
    SearchOptions,
    merge_explanations,
    merge_neighbors,
)
from service.engine.retrieval import search
from service.engine.validation import NotFinite, check_finite
from service.versions.version import LiveIndex, RemoteParts, ServedIndex


@dataclass(frozen=True, kw_only=True)
class IndexSearch:
    """A search for the k nearest candidates of vectors in an index whose partitions shards hold.

    Attributes:
      denied: [m] uint32 positions in the whole index, ascending and distinct: candidates that no
        vector may find.
      excluded: The same: further ones of each vector; (): there are none.
    """

    index: str
    vectors: Vectors
    k: int
    exact: bool = False
    recall: float = 0.0
    filter: Filter | None = None
    denied: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    excluded: tuple[NDArray[np.uint32], ...] = ()
    explain: bool = False


async def vectors_at(index: ServedIndex, positions: Positions, execution: Execution) -> Vectors:
    """Returns the vectors of candidates, [m, dim] float32."""
    if index.added is None:
        return await _exported_vectors_at(index, positions, execution)
    # Changed candidates lie behind those of the bundle, and in this process.
    is_changed = positions >= index.base_size
    vectors: Vectors = np.empty((positions.size, index.entry.dim), np.float32)
    vectors[is_changed] = index.added.vectors[positions[is_changed] - index.base_size]
    if not is_changed.all():
        exported = positions[~is_changed]
        vectors[~is_changed] = await _exported_vectors_at(index, exported, execution)
    return vectors


async def _exported_vectors_at(
    index: ServedIndex, positions: Positions, execution: Execution
) -> Vectors:
    """Returns the vectors of candidates of the bundle, [m, dim] float32."""
    if index.here is not None:
        return np.array(index.here.vectors[positions], np.float32)
    return await _shards(index).vectors(index.name, positions, execution.left_s)


async def nearest(
    index: ServedIndex, queries: Queries, options: SearchOptions, execution: Execution
) -> Neighbors:
    """Finds the k nearest allowed candidates of each query in all parts of an index, without those
    whose vectors cannot be searched.

    Raises:
      NotFinite: A score is beyond float32, although the vectors can be searched.
      ServiceError: Too few shards respond.
    """
    try:
        parts, neighbors = await _search_parts(index, queries, options, execution)
    except NotFinite:
        if index.here is None:  # shards have left out theirs
            raise
        # The queries are searchable. So candidates are not, which exports and changes reject by
        # now, and once accepted.
        unsearchable = index.unsearchable
        execution.leave_out("vector", index.corpus.store.ids(unsearchable.astype(np.int64)))
        queries = queries._replace(allowed=queries.allowed.without(unsearchable))
        parts, neighbors = await _search_parts(index, queries, options, execution)

    sampler = execution.live_recall
    is_as_exported = not options.exact and not options.recall
    if sampler is None or index.here is None or not is_as_exported or queries.offsets is not None:
        return neighbors
    # Sampled are queries as the bundle configures them: with other options, recall is another.
    sampler.countdown -= len(queries.allowed.excluded)
    if sampler.countdown < 0:
        sampler.sample(index.here, queries.vectors, options.k, parts, neighbors)
    return neighbors


async def _search_parts(
    index: ServedIndex, queries: Queries, options: SearchOptions, execution: Execution
) -> tuple[list[SearchedPart], Neighbors]:
    """Finds the nearest candidates in each part of this process, and in all parts together."""
    base_queries = added_queries = queries
    if index.added is not None:
        base_allowed, added_allowed = _divide_allowed(index, queries.allowed)
        base_queries = queries._replace(allowed=base_allowed)
        added_queries = queries._replace(allowed=added_allowed)
    parts = []
    if index.here is None:
        base_neighbors = await _search_shards(index, base_queries, options, execution)
    else:
        base_neighbors = search.nearest(index.here, base_queries, options, execution)
        parts.append(SearchedPart(index.here, base_queries.allowed, base_neighbors))
    if index.added is None:
        if options.explain and index.here is not None:
            base_neighbors = _explained(index, base_neighbors, [base_neighbors])
        return parts, base_neighbors

    added = _search_added(index.added, base_neighbors, added_queries, options, execution)
    parts.append(added)
    # Both count from their own first candidate; merged, they lie behind each other.
    added_neighbors = added.neighbors
    positions = added_neighbors.positions + index.base_size
    pair = [base_neighbors, added_neighbors._replace(positions=positions)]
    neighbors = merge_neighbors(pair, options.k)
    if options.explain:
        neighbors = _explained(index, neighbors, pair)
    return parts, neighbors


def _explained(
    index: ServedIndex,
    neighbors: Neighbors,
    parts: Sequence[Neighbors],
    offsets: NDArray[np.int64] | None = None,
) -> Neighbors:
    """Returns neighbors with how all parts together found them.

    Args:
      index: The index.
      neighbors: The neighbors of all parts, of each query.
      parts: What each part found, with explanations.
      offsets: [n + 1], where the explanations of each query begin; None: each query has one.
    """
    ends = offsets
    if ends is None:
        ends = np.arange(neighbors.offsets.size)
    # Nothing may be left, such as after the last candidate has expired.
    size = max(1, index.corpus.count)
    explanations = [
        merge_explanations(parts, range(*pair), size) for pair in pairwise(ends.tolist())
    ]
    return neighbors._replace(explanations=tuple(explanations))


async def _search_shards(
    index: ServedIndex, queries: Queries, options: SearchOptions, execution: Execution
) -> Neighbors:
    """Has each shard find the nearest candidates of the bundle; see `nearest`."""
    vectors, allowed, offsets = queries
    query_count = len(allowed.excluded)
    excluded = list[NDArray[Any]]()
    if any(positions.size for positions in allowed.excluded):
        sizes = [1] * query_count
        if offsets is not None:
            sizes = lengths_of(offsets).tolist()
        pairs = zip(allowed.excluded, sizes, strict=True)
        excluded = [positions for positions, size in pairs for _ in range(size)]
    wanted = IndexSearch(
        index=index.name,
        vectors=np.ascontiguousarray(vectors, np.float32),
        k=options.k,
        exact=options.exact,
        recall=options.recall,
        filter=options.filter,
        denied=allowed.denied,
        excluded=tuple(excluded),
        explain=options.explain,
    )
    execution.begin("search")
    parts: Sequence[Neighbors]
    parts, share = await _shards(index).search(wanted, execution.left_s)
    if share < 1:
        # Shards that fail leave their candidates out; the response says so by its coverage.
        execution.count("partial_searches", query_count)
        execution.searched_share = min(execution.searched_share, share)
    neighbors = merge_neighbors(parts, options.k, offsets)
    check_finite(neighbors.scores, "a candidate's score")
    if options.explain:
        neighbors = _explained(index, neighbors, parts, offsets)
    return neighbors


def _search_added(
    added: LiveIndex,
    base_neighbors: Neighbors,
    queries: Queries,
    options: SearchOptions,
    execution: Execution,
) -> SearchedPart:
    """Finds at least those candidates behind the bundle's that can be among the k nearest of all.

    Args:
      added: The index of these candidates.
      base_neighbors: The nearest of the bundle's candidates, for each query.
      queries: The queries, with what they may find behind the bundle.
      options: How to search.
      execution: The batch of the request.
    """
    vectors, allowed, offsets = queries
    floors = None
    if offsets is None:
        floors = _floors(base_neighbors, options.k)
        # Candidates that were added lately are few, and most score less than the neighbors that the
        # index of the bundle has found.
        reaching = _find_reaching(added, vectors, allowed, floors, options)
        if reaching is not None:
            return reaching
    if options.filter:
        compiled = filters.compile_filter(added, options.filter, execution.check)
        matching = compiled.matches.positions
        live_matches = Matches.at(matching[is_among(matching, added.live)])
        allowed = allowed._replace(filter=CompiledFilter(b"", live_matches, False))
    neighbors = search.nearest(
        added, Queries(vectors, allowed, offsets), options, execution, floors
    )
    return SearchedPart(added, allowed, neighbors)


def _floors(base_neighbors: Neighbors, k: int) -> NDArray[np.float32]:
    """Returns the lowest score of each query's k neighbors in the bundle: what scores less is not
    among the k nearest of all parts.
    """
    ends = base_neighbors.offsets[1:]
    if base_neighbors.scores.size == k * ends.size:
        return base_neighbors.scores[k - 1 :: k]
    floors = np.full(ends.size, -np.inf, np.float32)
    has_all = lengths_of(base_neighbors.offsets) == k
    floors[has_all] = base_neighbors.scores[ends[has_all] - 1]
    return floors


def _find_reaching(
    added: LiveIndex,
    vectors: Vectors,
    allowed: AllowedCandidates,
    floors: NDArray[np.float32],
    options: SearchOptions,
) -> SearchedPart | None:
    """Finds the added candidates whose scores reach the floors of the queries, in no order.

    Most queries have few such candidates. To collect these takes a fraction of the time that a
    search for the nearest does.

    Args:
      added: The index of the candidates.
      vectors: [n, dim] float32, one of each query.
      allowed: What the queries may find.
      floors: [n] float32.
      options: How to search.

    Returns:
      What was found; None: `search.nearest` is due, since candidates are found by their codes, such
      candidates are many, not all queries have a floor, or not all candidates match the filter.
    """
    is_scanned = added.codes is not None and not options.exact
    is_large = len(vectors) * len(added.vectors) > search.CELLS_MAX
    if options.filter or options.explain or is_scanned or is_large:
        return None
    if added.entry.distance == "cosine":
        vectors = normalized(vectors)
    reaching = added.block.reaching(vectors, floors)
    if reaching is None:
        return None
    numbers, positions, scores = reaching
    if allowed.denied.size or any(excluded.size for excluded in allowed.excluded):
        # Few candidates reach the floors: to look these up costs less than to leave out before what
        # ended or is denied.
        is_allowed = ~is_among(positions, allowed.denied)
        for number, excluded in enumerate(allowed.excluded):
            is_allowed &= (numbers != number) | ~is_among(positions, excluded)
        numbers = numbers[is_allowed]
        positions = positions[is_allowed]
        scores = scores[is_allowed]
    explanation = Explanation("exact", scored=added.live.size)
    if len(vectors) == 1:
        return SearchedPart(added, allowed, Neighbors.of_one(positions, scores, explanation))
    offsets = numbers.searchsorted(np.arange(len(vectors) + 1))
    neighbors = Neighbors(positions, scores, offsets, (explanation,) * len(vectors))
    return SearchedPart(added, allowed, neighbors)


def _divide_allowed(
    index: ServedIndex, allowed: AllowedCandidates
) -> tuple[AllowedCandidates, AllowedCandidates]:
    """Returns what queries may find of the bundle's candidates, and of those behind it, counted
    from there. Only the first has the filter, which is compiled for each by itself.
    """
    denied = index.denied
    base_denied, added_denied = denied.by_part
    base_mask, added_mask = denied.masks()
    if allowed.denied is not denied.positions:  # such as ids that a request excludes
        base_denied, added_denied = index.divided(allowed.denied)
        base_mask = added_mask = None
    base_excluded = added_excluded = allowed.excluded
    if any(positions.size for positions in allowed.excluded):
        divided = [index.divided(positions) for positions in allowed.excluded]
        base_excluded, added_excluded = zip(*divided, strict=True)
    return (
        AllowedCandidates(base_denied, base_excluded, allowed.filter, base_mask),
        AllowedCandidates(added_denied, added_excluded, None, added_mask),
    )


def _shards(index: ServedIndex) -> RemoteParts:
    assert index.shards is not None  # noqa: S101 - else the index is here
    return index.shards

"""Search of an index whose candidates change while it is served: that of the bundle, and one of the
candidates that were added or replaced since, whose positions lie behind those of the bundle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import lengths_of
from runtime.exact import normalized
from service.engine.calls import Explanation, Vectors
from service.engine.execution import Execution
from service.engine.retrieval import filters, search
from service.engine.retrieval.filters import CompiledFilter, Matches, is_among
from service.engine.retrieval.merging import merge_explanations, merge_neighbors
from service.engine.retrieval.search import (
    CELLS_MAX,
    AllowedCandidates,
    Neighbors,
    Queries,
    SearchedPart,
    SearchOptions,
)
from service.versions.version import LiveIndex, ServedIndex


def nearest(
    index: ServedIndex, queries: Queries, options: SearchOptions, execution: Execution
) -> tuple[Neighbors, list[SearchedPart]]:
    """Finds the k nearest allowed candidates of each query; as `search.nearest`.

    Returns:
      The neighbors, and what was found in the bundle and behind it.
    """
    assert index.here is not None  # noqa: S101 - shards hold none of it
    base_allowed, added_allowed = divide_allowed(index, queries.allowed)
    base_queries = Queries(queries.vectors, base_allowed, queries.offsets)
    base_neighbors = search.nearest(index.here, base_queries, options, execution)
    added_queries = Queries(queries.vectors, added_allowed, queries.offsets)
    added = _search_added(index, base_neighbors, added_queries, options, execution)
    neighbors = _merged(index, base_neighbors, added.neighbors, options)
    return neighbors, [SearchedPart(index.here, base_allowed, base_neighbors), added]


def add_changed(
    base_neighbors: Neighbors,
    index: ServedIndex,
    queries: Queries,
    options: SearchOptions,
    execution: Execution,
) -> Neighbors:
    """Returns the k nearest of the bundle's candidates, and of those that were added or replaced
    since.

    Args:
      base_neighbors: The nearest of the bundle's candidates, for each query.
      index: The index.
      queries: The queries.
      options: How to search.
      execution: The batch of the request.
    """
    _, added_allowed = divide_allowed(index, queries.allowed)
    added_queries = Queries(queries.vectors, added_allowed, queries.offsets)
    added = _search_added(index, base_neighbors, added_queries, options, execution)
    return _merged(index, base_neighbors, added.neighbors, options)


def _search_added(
    index: ServedIndex,
    base_neighbors: Neighbors,
    queries: Queries,
    options: SearchOptions,
    execution: Execution,
) -> SearchedPart:
    """Finds at least those candidates behind the bundle's that can be among the k nearest of all.

    Args:
      index: The index.
      base_neighbors: The nearest of the bundle's candidates, for each query.
      queries: The queries, with what they may find behind the bundle.
      options: How to search.
      execution: The batch of the request.
    """
    added = index.added
    assert added is not None  # noqa: S101 - candidates were added
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
        live_matches = Matches(matching[is_among(matching, added.live)])
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
    is_large = len(vectors) * len(added.vectors) > CELLS_MAX
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


def _merged(
    index: ServedIndex, base_neighbors: Neighbors, added: Neighbors, options: SearchOptions
) -> Neighbors:
    """Returns the k nearest of the bundle's candidates and of those behind it; as of
    `add_changed`.
    """
    # Both count from their own first candidate; merged, they lie behind each other.
    parts = [base_neighbors, added._replace(positions=added.positions + index.base_size)]
    neighbors = merge_neighbors(parts, options.k)
    if not options.explain:
        return neighbors
    size = index.corpus.entry.size
    queries = [range(query, query + 1) for query in range(neighbors.offsets.size - 1)]
    explanations = [merge_explanations(parts, query, size) for query in queries]
    return neighbors._replace(explanations=tuple(explanations))


def divide_allowed(
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

"""Search of an index whose candidates change while it is served: that of the bundle, those of
segments, and an exact one of the candidates that were added or replaced since. Their positions lie
behind each other.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from service.versions.version import LiveIndex, LoadedIndex, ServedIndex

Positions = NDArray[np.int64]


def nearest(
    index: ServedIndex, queries: Queries, options: SearchOptions, execution: Execution
) -> tuple[Neighbors, list[SearchedPart]]:
    """Finds the k nearest allowed candidates of each query; as `search.nearest`.

    Returns:
      The neighbors, and what was found in each part.
    """
    assert index.here is not None  # noqa: S101 - shards hold none of it
    base_allowed, *changed_allowed = _allowed_by_part(index, queries.allowed)
    base_queries = Queries(queries.vectors, base_allowed, queries.offsets)
    base_neighbors = search.nearest(index.here, base_queries, options, execution)
    changed = _search_parts(index, base_neighbors, queries, changed_allowed, options, execution)
    neighbors = _merge_parts(index, base_neighbors, changed, options)
    return neighbors, [SearchedPart(index.here, base_allowed, base_neighbors), *changed]


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
    _, *changed_allowed = _allowed_by_part(index, queries.allowed)
    changed = _search_parts(index, base_neighbors, queries, changed_allowed, options, execution)
    return _merge_parts(index, base_neighbors, changed, options)


def _search_parts(
    index: ServedIndex,
    base_neighbors: Neighbors,
    queries: Queries,
    changed_allowed: list[AllowedCandidates],
    options: SearchOptions,
    execution: Execution,
) -> list[SearchedPart]:
    """Searches the parts behind the candidates of the bundle, each of which finds at least those
    candidates that can be among the k nearest of all parts.
    """
    floors = None
    if queries.offsets is None:
        floors = _floors(base_neighbors, options.k)
    parts = []
    for part, allowed in zip(index.changed_parts, changed_allowed, strict=True):
        searched = None
        # Candidates that were added lately are few, and most score less than the neighbors that the
        # index of the bundle has found.
        if part.approximate is None and floors is not None:
            searched = _find_reaching(part, queries.vectors, allowed, floors, options)
        if searched is None:
            searched = _search_part(part, queries, allowed, floors, options, execution)
        parts.append(searched)
    return parts


def _search_part(
    part: LoadedIndex,
    queries: Queries,
    allowed: AllowedCandidates,
    floors: NDArray[np.float32] | None,
    options: SearchOptions,
    execution: Execution,
) -> SearchedPart:
    """Searches a part as `search.nearest` does."""
    compiled = _compile_filter(part, options, execution)
    if compiled is not None:
        allowed = allowed._replace(filter=compiled)
    # A part without a tree would plan a search that it cannot make.
    if part.approximate is None and not options.exact:
        options = options._replace(exact=True)
    part_queries = Queries(queries.vectors, allowed, queries.offsets)
    neighbors = search.nearest(part, part_queries, options, execution, floors)
    return SearchedPart(part, allowed, neighbors)


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
    part: LoadedIndex,
    vectors: Vectors,
    allowed: AllowedCandidates,
    floors: NDArray[np.float32],
    options: SearchOptions,
) -> SearchedPart | None:
    """Finds the candidates of an exactly searched part whose scores reach the floors of the
    queries, in no order.

    Most queries have few such candidates. To collect these takes a fraction of the time that a
    search for the nearest does.

    Args:
      part: The index of the candidates.
      vectors: [n, dim] float32, one of each query.
      allowed: What the queries may find.
      floors: [n] float32.
      options: How to search.

    Returns:
      What was found; None: `search.nearest` is due, since such candidates are many, not all queries
      have a floor, or not all candidates match the filter.
    """
    if options.filter or options.explain or len(vectors) * len(part.vectors) > CELLS_MAX:
        return None
    if part.entry.distance == "cosine":
        vectors = normalized(vectors)
    reaching = part.block.reaching(vectors, floors)
    if reaching is None:
        return None
    numbers, positions, scores = reaching
    scored = len(part.vectors)
    if isinstance(part, LiveIndex):
        positions = part.live[positions].astype(np.int64)
        scored = part.live.size
    # Most often, no candidates are denied but those that are not in the block.
    has_denied = allowed.denied.size > len(part.vectors) - scored
    if has_denied or any(excluded.size for excluded in allowed.excluded):
        # Few candidates reach the floors: to look these up costs less than to mark all that are
        # denied.
        is_allowed = ~is_among(positions, allowed.denied)
        for number, excluded in enumerate(allowed.excluded):
            is_allowed &= (numbers != number) | ~is_among(positions, excluded)
        numbers = numbers[is_allowed]
        positions = positions[is_allowed]
        scores = scores[is_allowed]
    explanation = Explanation("exact", scored=scored)
    if len(vectors) == 1:
        return SearchedPart(part, allowed, Neighbors.of_one(positions, scores, explanation))
    offsets = numbers.searchsorted(np.arange(len(vectors) + 1))
    neighbors = Neighbors(positions, scores, offsets, (explanation,) * len(vectors))
    return SearchedPart(part, allowed, neighbors)


def _merge_parts(
    index: ServedIndex,
    base_neighbors: Neighbors,
    changed: Sequence[SearchedPart],
    options: SearchOptions,
) -> Neighbors:
    """Returns the k nearest of what was found in the parts; as of `add_changed`."""
    parts = [base_neighbors]
    # Each part counts from its own first candidate; merged, they lie behind each other.
    for part, first in zip(changed, index.part_ends.tolist(), strict=False):
        local, scores, offsets, of_queries = part.neighbors
        parts.append(Neighbors(local + first, scores, offsets, of_queries))
    neighbors = merge_neighbors(parts, options.k)
    if not options.explain:
        return neighbors
    size = index.corpus.entry.size
    queries = [range(query, query + 1) for query in range(neighbors.offsets.size - 1)]
    explanations = [merge_explanations(parts, query, size) for query in queries]
    return neighbors._replace(explanations=tuple(explanations))


def vectors_at(index: ServedIndex, positions: Positions) -> Vectors:
    """Returns the vectors of candidates, [m, dim] float32."""
    assert index.here is not None  # noqa: S101 - shards hold none of it
    base = index.here.vectors
    is_changed = positions >= len(base)
    vectors: Vectors = np.empty((positions.size, index.entry.dim), np.float32)
    vectors[~is_changed] = base[positions[~is_changed]]
    vectors[is_changed] = changed_vectors_at(index, positions[is_changed] - len(base))
    return vectors


def changed_vectors_at(index: ServedIndex, positions: Positions) -> Vectors:
    """Returns the vectors of candidates that were added or replaced, [m, dim] float32.

    Args:
      index: The index.
      positions: [m] int64, counted from the first behind those of the bundle.
    """
    vectors: Vectors = np.empty((positions.size, index.entry.dim), np.float32)
    first = 0
    for part in index.changed_parts:
        end = first + len(part.vectors)
        is_in_part = (positions >= first) & (positions < end)
        vectors[is_in_part] = part.vectors[positions[is_in_part] - first]
        first = end
    return vectors


def allowed_in_base(index: ServedIndex, allowed: AllowedCandidates) -> AllowedCandidates:
    """Returns what queries may find of the bundle's candidates."""
    return _allowed_by_part(index, allowed)[0]


def _allowed_by_part(index: ServedIndex, allowed: AllowedCandidates) -> list[AllowedCandidates]:
    """Returns what queries may find of the bundle's candidates, and in each changed part, counted
    from its first one. Only the first has the filter, which each part compiles for itself.
    """
    denied = index.denied
    denied_parts = denied.by_part
    masks = denied.masks()
    if allowed.denied is not denied.positions:  # such as ids that a request excludes
        denied_parts = index.by_part(allowed.denied)
        masks = [None] * len(denied_parts)
    excluded_parts = [allowed.excluded] * len(denied_parts)
    if any(positions.size for positions in allowed.excluded):
        of_queries = [index.by_part(positions) for positions in allowed.excluded]
        excluded_parts = list(zip(*of_queries, strict=True))
    parts = [
        AllowedCandidates(denied_in_part, excluded, None, mask)
        for denied_in_part, excluded, mask in zip(denied_parts, excluded_parts, masks, strict=True)
    ]
    parts[0] = parts[0]._replace(filter=allowed.filter)
    return parts


def _compile_filter(
    part: LoadedIndex, options: SearchOptions, execution: Execution
) -> CompiledFilter | None:
    """Returns which candidates of a part match the filter of a request; None: all."""
    compiled = None
    if options.filter:
        compiled = filters.compile_filter(part, options.filter, execution.check)
    if not isinstance(part, LiveIndex):
        return compiled
    # Those that were replaced since are as many as the others, and are not even scored.
    if compiled is None:
        return CompiledFilter(b"", Matches(part.live, block=part.block), False)
    matching = compiled.matches.positions
    return CompiledFilter(b"", Matches(matching[is_among(matching, part.live)]), False)

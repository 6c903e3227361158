"""Search of an index whose candidates change while it is served: that of the bundle, those of
segments, and an exact one of the candidates that were added or replaced since. Their positions lie
behind each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from service.engine.calls import Offsets, Selecting, Vectors
from service.engine.execution import Execution
from service.engine.retrieval import filters, search
from service.engine.retrieval.filters import Compiled, Matches, is_among
from service.engine.retrieval.merging import explained, merged
from service.engine.retrieval.search import Allowed, Found, SearchedPart
from service.versions.version import AddedIndex, LoadedIndex, ServedIndex

Positions = NDArray[np.int64]


def nearest(
    index: ServedIndex,
    vectors: Vectors,
    k: int,
    allowed: Allowed,
    request: Selecting,
    exact: bool,
    offsets: Offsets | None,
    execution: Execution,
) -> tuple[Found, list[SearchedPart]]:
    """Finds the k nearest allowed candidates of each query; as `search.nearest`.

    Returns:
      The neighbors, and what was found in each part.
    """
    here = index.here
    assert here is not None  # noqa: S101 - shards hold none of it
    base_size = len(here.vectors)
    options = (request, exact, offsets, execution)
    of_base = _searched(here, vectors, k, allowed_before(allowed, base_size), *options)
    changed = _searched_changed(index, of_base.neighbors, base_size, vectors, k, allowed, *options)
    neighbors = _merged(index, base_size, of_base.neighbors, changed, k, request)
    return neighbors, [of_base, *changed]


def with_changed(
    of_base: Found,
    index: ServedIndex,
    base_size: int,
    vectors: Vectors,
    k: int,
    allowed: Allowed,
    request: Selecting,
    exact: bool,
    offsets: Offsets | None,
    execution: Execution,
) -> Found:
    """Returns the k nearest of the bundle's candidates, and of those that were added or replaced
    since.

    Args:
      of_base: The nearest of the bundle's candidates, for each query.
      index: The index.
      base_size: The number of the bundle's candidates.
      vectors, k, allowed, request, exact, offsets, execution: As of `nearest`.
    """
    options = (request, exact, offsets, execution)
    changed = _searched_changed(index, of_base, base_size, vectors, k, allowed, *options)
    return _merged(index, base_size, of_base, changed, k, request)


def _searched_changed(
    index: ServedIndex,
    of_base: Found,
    base_size: int,
    vectors: Vectors,
    k: int,
    allowed: Allowed,
    request: Selecting,
    exact: bool,
    offsets: Offsets | None,
    execution: Execution,
) -> list[SearchedPart]:
    """Searches the parts behind the candidates of the bundle; as of `with_changed`."""
    parts = []
    first = base_size
    floors = None
    if offsets is None:
        floors = _floors(of_base, k)
    for part in _changed_parts(index):
        end = first + len(part.vectors)
        compiled = _filter(part, request, execution)
        part_allowed = _allowed_between(allowed, first, end)._replace(filter=compiled)
        parts.append(
            _searched(part, vectors, k, part_allowed, request, exact, offsets, execution, floors)
        )
        first = end
    return parts


def _searched(
    part: LoadedIndex,
    vectors: Vectors,
    k: int,
    allowed: Allowed,
    request: Selecting,
    exact: bool,
    offsets: Offsets | None,
    execution: Execution,
    floors: Sequence[float] | None = None,
) -> SearchedPart:
    """Searches one part; `allowed`: counted from its first position; `floors`: as of
    `search.nearest`.
    """
    neighbors = search.nearest(
        part,
        vectors,
        k,
        allowed,
        execution,
        exact=exact or part.approximate is None,
        recall=request.recall,
        offsets=offsets,
        explain=request.explain,
        floors=floors,
    )
    return SearchedPart(part, allowed, neighbors)


def _floors(of_base: Found, k: int) -> list[float]:
    """Returns the lowest score of each query's k neighbors in the bundle: what scores less is not
    among the k nearest of all parts.
    """
    ends = of_base.offsets.tolist()
    floors = []
    for first, end in pairwise(ends):
        floor = -math.inf
        if end - first == k:
            floor = float(of_base.scores[end - 1])
        floors.append(floor)
    return floors


def _merged(
    index: ServedIndex,
    base_size: int,
    of_base: Found,
    changed: Sequence[SearchedPart],
    k: int,
    request: Selecting,
) -> Found:
    """Returns the k nearest of what was found in the parts; as of `with_changed`."""
    parts = [of_base]
    first = base_size
    for part in changed:
        neighbors = part.neighbors
        parts.append(neighbors._replace(positions=neighbors.positions + first))
        first += len(part.loaded.vectors)
    queries = [range(query, query + 1) for query in range(of_base.offsets.size - 1)]
    neighbors = search.joined([merged(parts, query, k) for query in queries])
    if not request.explain:
        return neighbors
    size = index.corpus.entry.size
    explanations = [explained(parts, query, size) for query in queries]
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
    for part in _changed_parts(index):
        end = first + len(part.vectors)
        is_in_part = (positions >= first) & (positions < end)
        vectors[is_in_part] = part.vectors[positions[is_in_part] - first]
        first = end
    return vectors


def allowed_before(allowed: Allowed, size: int) -> Allowed:
    """Returns what is allowed of the positions before `size`."""
    return _allowed_between(allowed, 0, size)


def _changed_parts(index: ServedIndex) -> Iterator[LoadedIndex]:
    """Yields the indexes of the candidates behind those of the bundle, in the order of their
    positions.
    """
    yield from index.segments
    if index.added is not None:
        yield index.added


def _filter(part: LoadedIndex, request: Selecting, execution: Execution) -> Compiled | None:
    """Returns which candidates of a part match the filter of a request; None: all."""
    compiled = None
    if request.filter:
        compiled = filters.compiled(part, request.filter, execution.check)
    if not isinstance(part, AddedIndex):
        return compiled
    # Those that were replaced since are as many as the others, and are not even scored.
    if compiled is None:
        return Compiled(b"", Matches(part.live, block=part.block), False)
    matching = compiled.matches.positions
    return Compiled(b"", Matches(matching[is_among(matching, part.live)]), False)


def _allowed_between(allowed: Allowed, first: int, end: int) -> Allowed:
    """Returns what is allowed of the positions from `first` to `end`, counted from there."""
    return allowed._replace(
        denied=_between(allowed.denied, first, end),
        excluded=[_between(positions, first, end) for positions in allowed.excluded],
    )


def _between(positions: NDArray[np.uint32], first: int, end: int) -> NDArray[np.uint32]:
    start, stop = positions.searchsorted([first, end])
    inside = positions[start:stop]
    if not first:
        return inside
    return inside - np.uint32(first)

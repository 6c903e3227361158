"""Search of an index whose candidates change while it is served: that of the bundle, and an exact
one of the candidates that were added or replaced since, whose positions lie behind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.engine.calls import Offsets, Selecting, Vectors
from service.engine.execution import Execution
from service.engine.retrieval import filters, search
from service.engine.retrieval.merging import explained, merged
from service.engine.retrieval.search import Allowed, Found
from service.versions.version import LoadedIndex, ServedIndex

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
) -> Found:
    """Finds the k nearest allowed candidates of each query; as `search.nearest`."""
    here, _ = _parts(index)
    base_size = len(here.vectors)
    of_here = search.nearest(
        here,
        vectors,
        k,
        allowed_before(allowed, base_size),
        execution,
        exact=exact,
        recall=request.recall,
        offsets=offsets,
        explain=request.explain,
    )
    return with_added(of_here, index, base_size, vectors, k, allowed, request, offsets, execution)


def with_added(
    of_base: Found,
    index: ServedIndex,
    base_size: int,
    vectors: Vectors,
    k: int,
    allowed: Allowed,
    request: Selecting,
    offsets: Offsets | None,
    execution: Execution,
) -> Found:
    """Returns the k nearest of what was found of the bundle's candidates, and of those that were
    added or replaced since.

    Args:
      of_base: What was found of the bundle's candidates, for each query.
      index: The index.
      base_size: The number of the bundle's candidates.
      vectors: As of `search.nearest`, and likewise the further arguments.
    """
    added = index.added
    assert added is not None  # noqa: S101 - candidates were added
    added_filter = None
    if request.filter:
        added_filter = filters.compiled(added, request.filter, execution.check)
    of_added = search.nearest(
        added,
        vectors,
        k,
        _allowed_behind(allowed, base_size)._replace(filter=added_filter),
        execution,
        exact=True,
        offsets=offsets,
        explain=request.explain,
    )
    parts = (of_base, of_added._replace(positions=of_added.positions + base_size))
    queries = [range(query, query + 1) for query in range(len(allowed.excluded))]
    neighbors = search.joined([merged(parts, query, k) for query in queries])
    if not request.explain:
        return neighbors
    size = index.corpus.entry.size
    explanations = [explained(parts, query, size) for query in queries]
    return neighbors._replace(explanations=tuple(explanations))


def vectors_at(index: ServedIndex, positions: Positions) -> Vectors:
    """Returns the vectors of candidates, [m, dim] float32."""
    here, added = _parts(index)
    base_size = len(here.vectors)
    is_added = positions >= base_size
    vectors = here.vectors[np.where(is_added, 0, positions)]
    vectors[is_added] = added.vectors[positions[is_added] - base_size]
    return vectors


def _parts(index: ServedIndex) -> tuple[LoadedIndex, LoadedIndex]:
    here = index.here
    added = index.added
    assert here is not None and added is not None  # noqa: S101, PT018 - candidates changed here
    return here, added


def allowed_before(allowed: Allowed, size: int) -> Allowed:
    """Returns what is allowed of the positions before `size`."""
    return allowed._replace(
        denied=_before(allowed.denied, size),
        excluded=[_before(positions, size) for positions in allowed.excluded],
    )


def _allowed_behind(allowed: Allowed, size: int) -> Allowed:
    """Returns what is allowed of the positions from `size` on, counted from there."""
    return allowed._replace(
        denied=_behind(allowed.denied, size),
        excluded=[_behind(positions, size) for positions in allowed.excluded],
    )


def _before(positions: NDArray[np.uint32], size: int) -> NDArray[np.uint32]:
    return positions[: positions.searchsorted(size)]


def _behind(positions: NDArray[np.uint32], size: int) -> NDArray[np.uint32]:
    return positions[positions.searchsorted(size) :] - np.uint32(size)

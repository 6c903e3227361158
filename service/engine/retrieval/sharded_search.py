"""Indexes whose partitions shards hold: each shard's nearest, merged; and vectors, which may be
here. Candidates that were added or replaced since the export are searched here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import lengths_of
from service.engine.calls import Filter, Vectors
from service.engine.execution import Execution
from service.engine.retrieval import changed_search
from service.engine.retrieval.merging import merge_explanations, merge_neighbors
from service.engine.retrieval.search import Neighbors, Queries, SearchOptions
from service.engine.validation import check_finite
from service.versions.version import RemoteParts, ServedIndex

Positions = NDArray[np.int64]


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
    """Finds the k nearest allowed candidates of each query; as `search.nearest`."""
    base_allowed = queries.allowed
    if index.added is not None:
        base_allowed, _ = changed_search.divide_allowed(index, queries.allowed)
    query_count = len(base_allowed.excluded)
    offsets = queries.offsets
    excluded = list[NDArray[Any]]()
    if any(positions.size for positions in base_allowed.excluded):
        sizes = [1] * query_count
        if offsets is not None:
            sizes = lengths_of(offsets).tolist()
        pairs = zip(base_allowed.excluded, sizes, strict=True)
        excluded = [positions for positions, size in pairs for _ in range(size)]
    wanted = IndexSearch(
        index=index.name,
        vectors=np.ascontiguousarray(queries.vectors, np.float32),
        k=options.k,
        exact=options.exact,
        recall=options.recall,
        filter=options.filter,
        denied=base_allowed.denied,
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
        size = index.corpus.entry.size
        ends = range(query_count + 1)
        if offsets is not None:
            ends = offsets.tolist()
        explanations = [merge_explanations(parts, range(*pair), size) for pair in pairwise(ends)]
        neighbors = neighbors._replace(explanations=tuple(explanations))
    if index.added is None:
        return neighbors
    contiguous_queries = queries._replace(vectors=wanted.vectors)
    return changed_search.add_changed(neighbors, index, contiguous_queries, options, execution)


def _shards(index: ServedIndex) -> RemoteParts:
    assert index.shards is not None  # noqa: S101 - else the index is here
    return index.shards

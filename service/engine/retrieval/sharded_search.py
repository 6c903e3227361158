"""Indexes whose partitions shards hold: each shard's nearest, merged; and vectors, which may be
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engine.calls import Filter, Offsets, Selecting, Vectors
from service.engine.execution import Execution
from service.engine.limits import check_finite
from service.engine.retrieval import changed_search
from service.engine.retrieval.merging import explained, merged
from service.engine.retrieval.search import Allowed, Found, joined
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
    if index.is_changed:
        return changed_search.vectors_at(index, positions)
    if index.here is not None:
        return np.array(index.here.vectors[positions], np.float32)
    return await _shards(index).vectors(index.name, positions, execution.left_s)


async def nearest(
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
    offsets = np.arange(len(allowed.excluded) + 1) if offsets is None else offsets
    excluded = list[NDArray[Any]]()
    if any(each.size for each in allowed.excluded):
        sizes = np.diff(offsets).tolist()
        pairs = zip(allowed.excluded, sizes, strict=True)
        excluded = [positions for positions, size in pairs for _ in range(size)]
    wanted = IndexSearch(
        index=index.name,
        vectors=np.ascontiguousarray(vectors, np.float32),
        k=k,
        exact=exact,
        recall=request.recall,
        filter=request.filter,
        denied=allowed.denied,
        excluded=tuple(excluded),
        explain=request.explain,
    )
    execution.begin("search")
    parts: Sequence[Found]
    parts, share = await _shards(index).search(wanted, execution.left_s)
    if share < 1:
        execution.count("partial_searches", len(allowed.excluded))
        execution.searched_share = min(execution.searched_share, share)
    queries = [range(first, end) for first, end in pairwise(offsets.tolist())]
    found = joined([merged(parts, query, k) for query in queries])
    check_finite(found.scores, "a candidate's score")
    if not request.explain:
        return found
    size = index.corpus.entry.size
    explanations = [explained(parts, query, size) for query in queries]
    return found._replace(explanations=tuple(explanations))


def _shards(index: ServedIndex) -> RemoteParts:
    assert index.shards is not None  # noqa: S101 - else the index is here
    return index.shards

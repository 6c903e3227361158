"""Indexes whose partitions shards hold: each shard's nearest, merged; and vectors, which may be here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of
from service.engine import validation
from service.engine.context import Execution
from service.engine.requests import Explanation, Offsets, PartFound, Selecting, Vectors
from service.engine.search import Found
from service.models.version import RemoteParts, ServedIndex

Positions = NDArray[np.int64]


def vectors_at(index: ServedIndex, positions: Positions, execution: Execution) -> Vectors:
    """Returns the vectors of candidates, [m, dim] float32."""
    if index.here is not None:
        return np.array(index.here.vectors[positions], np.float32)
    return _shards(index).vectors(index.name, positions, execution.left_s)


def nearest(
    index: ServedIndex,
    vectors: Vectors,
    k: int,
    excluded: Sequence[Positions],
    request: Selecting,
    exact: bool,
    offsets: Offsets | None,
    execution: Execution,
) -> Found:
    """Finds the k nearest allowed candidates of each query; as `search.nearest`."""
    n = len(excluded)
    offsets = np.arange(n + 1) if offsets is None else offsets
    with execution.phase("search"):
        per_vector = [each for each, size in zip(excluded, np.diff(offsets), strict=True) for _ in range(size)]
        if all(each is per_vector[0] or not (each.size or per_vector[0].size) for each in per_vector):
            per_vector = per_vector[:1] if per_vector[0].size else []
        parts: Sequence[PartFound] = _shards(index).search(
            execution.left_s,
            index=index.name,
            vectors=np.ascontiguousarray(vectors, np.float32),
            k=k,
            exact=exact,
            recall=request.recall,
            filter=request.filter,
            excluded=tuple(per_vector),
            explain=request.explain,
        )
        rows = [_merged(parts, range(first, last), k) for first, last in pairwise(offsets.tolist())]
    positions, scores = (np.concatenate([row[part] for row in rows]) for part in (0, 1))
    validation.check_finite(scores, "a candidate's score")
    ends = offsets_of([row[0].size for row in rows])
    explanations = []
    if request.explain:
        size = index.corpus.entry.size
        explanations = [_explained(parts, range(first, last), size) for first, last in pairwise(offsets.tolist())]
    return Found(positions, scores, ends, tuple(explanations))


def _shards(index: ServedIndex) -> RemoteParts:
    assert index.shards is not None  # noqa: S101 - else the index is here
    return index.shards


def _merged(parts: Sequence[PartFound], queries: range, k: int) -> tuple[Positions, NDArray[np.float32]]:
    """Returns the k best of what the shards found for some vectors, each candidate by its best score."""
    slices = [(part, slice(*part.offsets[query : query + 2].tolist())) for part in parts for query in queries]
    positions = np.concatenate([part.positions[each] for part, each in slices])
    scores = np.concatenate([part.scores[each] for part, each in slices])
    order = np.lexsort((positions, -scores))
    if len(queries) > 1:
        _, first = np.unique(positions[order], return_index=True)
        order = order[np.sort(first)]
    return positions[order[:k]], scores[order[:k]]


def _explained(parts: Sequence[PartFound], queries: range, size: int) -> Explanation:
    """Returns how all shards together found the neighbors of one query."""
    each = [[part.explanations[query] for query in queries] for part in parts]
    every = [one for part in each for one in part]
    paths = [one.path for one in every if one.path != "none"]
    path = "index" if "index" in paths else (paths or ["none"])[0]
    matches = sum(part[0].matches for part in each)
    scored, search_ms = sum(one.scored for one in every), max(one.search_ms for one in every)
    return Explanation(path, matches, matches / size, scored, search_ms)

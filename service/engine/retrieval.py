"""Features, vectors or ids -> query vectors -> neighbors; k of them whenever k allowed candidates exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.engine import candidates, choice, contexts, embedding, lookup
from service.engine.candidates import Positions
from service.engine.finite import check_finite
from service.engine.limits import check_queries, wanted
from service.engine.requests import Exclusion, Offsets, Retrieval, Retrieved, Vectors
from service.engine.steps import Steps
from service.errors import InvalidArgument, Unimplemented
from service.generations.generation import Generation, LoadedCorpus, LoadedIndex
from service.settings import ServiceSettings

K_DEFAULT = 10
_CELLS_MAX = 4 << 20
"""Largest queries x candidates fetched in one search: bounds the memory of a call, 12 bytes each."""
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Found:
    """Positions in the index of n queries' neighbors, best first; query i owns offsets[i]:offsets[i + 1]."""

    positions: Positions
    scores: NDArray[np.float32]
    offsets: Offsets


def retrieve(generation: Generation, request: Retrieval, settings: ServiceSettings, steps: Steps) -> Retrieved:
    """Answers a Retrieval with one generation.

    Raises:
      InvalidArgument, TooLarge, NotFound, Unimplemented: as `service/errors.py` tells.
      FeatureError: a column does not fit its feature.
    """
    if request.filter is not None:
        raise Unimplemented("filters are not answered yet; leave 'filter' out, or use 'exclude'")
    k = wanted(request.k, K_DEFAULT, settings.k_max)
    _, index = choice.index(generation, request.index)
    candidates.check_attributes(index.corpus, request.attributes)
    excluded_ids = request.exclude.ids if request.exclude else None
    lookup.check_size(settings, (request.features or {}).values(), request.ids, excluded_ids, request.context_ids)
    vectors, own = _queries(generation, index, request, settings, steps)
    n = vectors.shape[0]
    excluded = _excluded(index.corpus, request.exclude, own, n)
    found = nearest(index, vectors, k, excluded, steps, exact=request.exact)
    steps.computed(n)
    with steps.phase("lookup"):
        neighbors = candidates.told(index.corpus, found.positions, found.scores, found.offsets, request.attributes)
    return Retrieved(generation.model, generation.version, neighbors, index.corpus.page.size)


def nearest(
    index: LoadedIndex,
    vectors: Vectors,
    k: int,
    excluded: Sequence[Positions] | None,
    steps: Steps,
    *,
    exact: bool = False,
) -> Found:
    """Finds the k nearest allowed candidates of each query; fewer only where fewer are allowed.

    Args:
      vectors: [n, dim] float32 queries.
      excluded: n arrays of distinct positions that are not allowed; None: all are.
    Raises:
      NotFinite: a score is beyond float32.
    """
    n, size = vectors.shape[0], index.corpus.page.size
    if excluded is None and n * min(size, k) <= _CELLS_MAX:
        with steps.phase("search"):
            return _allowed(index, vectors, k, min(size, k), None, steps, exact=exact)
    excluded = [_NONE] * n if excluded is None else excluded
    blocks: list[Found] = []
    first = 0
    while first < n:
        # As many queries at once as fit beside their own over-fetch, so that one long exclusion list costs one search.
        last, fetch = first + 1, min(size, k + excluded[first].size)
        while last < n and (last + 1 - first) * max(fetch, min(size, k + excluded[last].size)) <= _CELLS_MAX:
            fetch = max(fetch, min(size, k + excluded[last].size))
            last += 1
        with steps.phase("search"):
            blocks.append(_allowed(index, vectors[first:last], k, fetch, excluded[first:last], steps, exact=exact))
        first = last
    if len(blocks) == 1:
        return blocks[0]
    counts = np.concatenate([np.diff(block.offsets) for block in blocks])
    return Found(
        np.concatenate([block.positions for block in blocks]),
        np.concatenate([block.scores for block in blocks]),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
    )


def _allowed(
    index: LoadedIndex,
    vectors: Vectors,
    k: int,
    fetch: int,
    excluded: Sequence[Positions] | None,
    steps: Steps,
    *,
    exact: bool,
) -> Found:
    """Over-fetches by what is excluded, then drops it; a query that is left short of k is searched for exactly."""
    if exact:
        positions, scores = index.exact.search(vectors, fetch, each=steps.each)
    else:
        positions, scores = index.approximate.search(vectors, fetch)
    whole = positions[:, -1].min() >= 0  # what is missing is missing at the end
    if whole and (excluded is None or not any(each.size for each in excluded)):
        offsets = np.arange(len(vectors) + 1, dtype=np.int64) * positions.shape[1]
        return _found(positions.reshape(-1), scores.reshape(-1), offsets)
    excluded = [_NONE] * len(vectors) if excluded is None else excluded
    keep = _kept(positions, k, excluded)
    promised = np.minimum(k, index.corpus.page.size - np.array([each.size for each in excluded], np.int64))
    short = np.flatnonzero(keep.sum(axis=1) < promised)
    if short.size and not exact:
        wide = np.full((positions.shape[0], max(positions.shape[1], fetch)), -1, np.int64)
        wide_scores = np.zeros(wide.shape, np.float32)
        wide[:, : positions.shape[1]], wide_scores[:, : positions.shape[1]] = positions, scores
        again, again_scores = index.exact.search(vectors[short], fetch, each=steps.each)
        wide[short], wide_scores[short] = -1, 0
        wide[short, : again.shape[1]], wide_scores[short, : again.shape[1]] = again, again_scores
        positions, scores = wide, wide_scores
        keep = _kept(positions, k, excluded)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep.sum(axis=1))])
    return _found(positions[keep], scores[keep], offsets)


def _found(positions: Positions, scores: NDArray[np.float32], offsets: Offsets) -> Found:
    check_finite(scores, "a candidate's score")
    return Found(positions, scores, offsets)


def _kept(positions: Positions, k: int, excluded: Sequence[Positions]) -> NDArray[np.bool_]:
    keep: NDArray[np.bool_] = positions >= 0
    for query, each in enumerate(excluded):
        if each.size:
            keep[query] &= ~np.isin(positions[query], each)
    keep &= np.cumsum(keep, axis=1) <= k
    return keep


def _excluded(corpus: LoadedCorpus, exclude: Exclusion | None, own: Positions | None, n: int) -> list[Positions] | None:
    excluded = candidates.excluded_positions(corpus, exclude, n)
    if own is None:
        return excluded
    if excluded is None:
        return list(own[:, np.newaxis])
    return [np.union1d(each, position) for each, position in zip(excluded, own, strict=True)]


def _queries(
    generation: Generation, index: LoadedIndex, request: Retrieval, settings: ServiceSettings, steps: Steps
) -> tuple[Vectors, Positions | None]:
    """The query vectors, and of a query by id the candidate's own position."""
    by_features = request.features is not None or request.context_ids is not None
    if by_features + (request.vectors is not None) + (request.ids is not None) != 1:
        raise _told_otherwise(request)
    if by_features:
        tower = generation.towers[index.page.query_tower]
        sent = request.features or {}
        lookup.check_names(sent, tower.inputs, "feature", f"query tower {index.page.query_tower!r}")
        n = contexts.count(generation, sent, request.context_ids)
        check_queries(n, settings)
        features = contexts.filled(generation, tower.inputs, sent, request.context_ids, n, steps)
        return embedding.result(generation, tower, features, n, steps), None
    if request.ids is not None:
        check_queries(int(request.ids.size), settings)
        positions = candidates.known_positions(index.corpus, request.ids)
        return np.array(index.vectors[positions], np.float32), positions
    return _sent_vectors(index, request.vectors, settings), None


def _told_otherwise(request: Retrieval) -> InvalidArgument:
    told_by = [name for name in ("features", "vectors", "ids") if getattr(request, name) is not None]
    if request.context_ids is not None and not request.features:
        told_by.append("context ids")
    return InvalidArgument(
        "queries are told by exactly one of features (or context ids), vectors and ids; got "
        f"{', '.join(told_by) or 'none of them'}"
    )


def _sent_vectors(index: LoadedIndex, vectors: Vectors | None, settings: ServiceSettings) -> Vectors:
    dim = index.page.dim
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes an infinity, refused below
        array = np.ascontiguousarray(vectors, np.float32)
    if array.ndim > 2 or (array.ndim == 2 and array.shape[1] != dim) or array.size % dim:
        raise InvalidArgument(f"vectors of shape {list(array.shape)}; [n, {dim}] float32 is expected")
    array = array.reshape(-1, dim)
    check_queries(array.shape[0], settings)
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise InvalidArgument(f"vector {int(np.flatnonzero(~finite)[0])} holds NaN or an infinity")
    return array

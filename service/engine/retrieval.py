"""Features, vectors or ids -> query vectors -> neighbors; k of them wherever k allowed candidates exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.config import ServiceSettings
from service.engine import contexts, embedding, validation
from service.engine.context import Execution
from service.engine.requests import Exclusion, Neighbors, Offsets, Retrieval, Retrieved, Vectors
from service.errors import InvalidArgument, Unimplemented
from service.models.version import LoadedIndex, LoadedStore, ModelVersion

K_DEFAULT = 10
_CELLS_MAX = 4 << 20
"""Largest queries x candidates fetched in one search: bounds the memory of a call, 12 bytes each."""
_NONE = np.empty(0, np.int64)

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """Positions of n queries' neighbors in the index, best first; query i owns offsets[i]:offsets[i + 1]."""

    positions: Positions
    scores: NDArray[np.float32]
    offsets: Offsets


def retrieve(
    model_version: ModelVersion, request: Retrieval, settings: ServiceSettings, execution: Execution
) -> Retrieved:
    """Answers a Retrieval with one model version.

    Raises:
      InvalidArgument, TooLarge, NotFound, Unimplemented: see service/errors.py.
      FeatureError: a column does not fit its feature.
    """
    if request.filter is not None:
        raise Unimplemented("filters are not supported yet; leave 'filter' out, or use 'exclude'")
    k = validation.check_k(request.k, K_DEFAULT, settings.max_k)
    _, index = validation.choose_index(model_version, request.index)
    validation.check_attributes(index.corpus, request.attributes)
    excluded_ids = request.exclude.ids if request.exclude else None
    columns = (request.features or {}).values()
    validation.check_values(settings, columns, request.ids, excluded_ids, request.context_ids)
    vectors, own = _queries(model_version, index, request, settings, execution)
    n = vectors.shape[0]
    excluded = excluded_positions(index.corpus, request.exclude, n)
    if own is not None:
        excluded = [np.union1d(each, own[query]) for query, each in enumerate(excluded or [_NONE] * n)]
    found = nearest(index, vectors, k, excluded, execution, exact=request.exact)
    execution.computed(n)
    with execution.phase("lookup"):
        answer = neighbors(index.corpus, found.positions, found.scores, found.offsets, request.attributes)
    return Retrieved(model_version.model, model_version.version, answer, index.corpus.entry.size)


def neighbors(
    corpus: LoadedStore,
    positions: Positions,
    scores: NDArray[np.float32],
    offsets: Offsets,
    attributes: tuple[str, ...],
) -> Neighbors:
    """Returns candidates as clients see them: ids, scores and attributes."""
    values: dict[str, list[Any]] = corpus.store.attributes(positions, list(attributes)) if attributes else {}
    return Neighbors(corpus.store.ids(positions), scores, offsets, values)


def excluded_positions(corpus: LoadedStore, exclude: Exclusion | None, n: int) -> list[Positions] | None:
    """Returns the distinct positions that each of n queries excludes; None: none does. Unknown ids exclude nothing."""
    if exclude is None:
        return None
    if exclude.offsets is not None:
        validation.check_offsets(exclude.offsets, n, int(exclude.ids.size), "exclude")
    positions = corpus.store.positions(exclude.ids, "excluded candidate")
    if exclude.offsets is None:
        return [np.unique(positions[positions >= 0])] * n
    return [np.unique(each[each >= 0]) for each in np.split(positions, exclude.offsets[1:-1])]


def nearest(
    index: LoadedIndex,
    vectors: Vectors,
    k: int,
    excluded: Sequence[Positions] | None,
    execution: Execution,
    *,
    exact: bool = False,
) -> Found:
    """Finds the k nearest allowed candidates of each query; fewer only where fewer are allowed.

    Args:
      vectors: [n, dim] float32 queries.
      excluded: n arrays of distinct positions; None: none is excluded.
    Raises:
      NotFinite: a score is beyond float32.
    """
    n, size = vectors.shape[0], index.corpus.entry.size
    if excluded is None and n * min(size, k) <= _CELLS_MAX:
        with execution.phase("search"):
            return _search(index, vectors, k, min(size, k), None, execution, exact=exact)
    excluded = [_NONE] * n if excluded is None else excluded
    blocks: list[Found] = []
    first = 0
    while first < n:
        # As many queries at once as fit with the longest of their exclusions, so that one long list costs one search.
        last, fetch = first + 1, min(size, k + excluded[first].size)
        while last < n and (last + 1 - first) * max(fetch, min(size, k + excluded[last].size)) <= _CELLS_MAX:
            fetch = max(fetch, min(size, k + excluded[last].size))
            last += 1
        with execution.phase("search"):
            some = excluded[first:last]
            blocks.append(_search(index, vectors[first:last], k, fetch, some, execution, exact=exact))
        first = last
    if len(blocks) == 1:
        return blocks[0]
    return Found(
        np.concatenate([block.positions for block in blocks]),
        np.concatenate([block.scores for block in blocks]),
        _ends(np.concatenate([np.diff(block.offsets) for block in blocks])),
    )


def _search(
    index: LoadedIndex,
    vectors: Vectors,
    k: int,
    fetch: int,
    excluded: Sequence[Positions] | None,
    execution: Execution,
    *,
    exact: bool,
) -> Found:
    """Fetches as many more as are excluded, then drops those; a query that is left short of k is searched exactly."""
    if exact:
        positions, scores = index.exact.search(vectors, fetch, each=execution.parallel)
    else:
        positions, scores = index.approximate.search(vectors, fetch)
    complete = positions[:, -1].min() >= 0  # what is missing is missing at the end
    if complete and (excluded is None or not any(each.size for each in excluded)):
        offsets = np.arange(len(vectors) + 1, dtype=np.int64) * positions.shape[1]
        return _found(positions.reshape(-1), scores.reshape(-1), offsets)
    excluded = [_NONE] * len(vectors) if excluded is None else excluded
    keep = _allowed(positions, k, excluded)
    available = np.minimum(k, index.corpus.entry.size - np.array([each.size for each in excluded], np.int64))
    short = np.flatnonzero(keep.sum(axis=1) < available)
    if short.size and not exact:
        wide = np.full((positions.shape[0], max(positions.shape[1], fetch)), -1, np.int64)
        wide_scores = np.zeros(wide.shape, np.float32)
        wide[:, : positions.shape[1]], wide_scores[:, : positions.shape[1]] = positions, scores
        again, again_scores = index.exact.search(vectors[short], fetch, each=execution.parallel)
        wide[short], wide_scores[short] = -1, 0
        wide[short, : again.shape[1]], wide_scores[short, : again.shape[1]] = again, again_scores
        positions, scores = wide, wide_scores
        keep = _allowed(positions, k, excluded)
    return _found(positions[keep], scores[keep], _ends(keep.sum(axis=1)))


def _found(positions: Positions, scores: NDArray[np.float32], offsets: Offsets) -> Found:
    validation.check_finite(scores, "a candidate's score")
    return Found(positions, scores, offsets)


def _allowed(positions: Positions, k: int, excluded: Sequence[Positions]) -> NDArray[np.bool_]:
    """Returns which of the fetched are a query's first k that are allowed."""
    keep: NDArray[np.bool_] = positions >= 0
    for query, each in enumerate(excluded):
        if each.size:
            keep[query] &= ~np.isin(positions[query], each)
    keep &= np.cumsum(keep, axis=1) <= k
    return keep


def _ends(counts: NDArray[np.int64]) -> Offsets:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _queries(
    model_version: ModelVersion,
    index: LoadedIndex,
    request: Retrieval,
    settings: ServiceSettings,
    execution: Execution,
) -> tuple[Vectors, Positions | None]:
    """Returns the query vectors and, of queries by id, the candidates' own positions."""
    by_features = request.features is not None or request.context_ids is not None
    if by_features + (request.vectors is not None) + (request.ids is not None) != 1:
        raise _ambiguous(request)
    if by_features:
        name, sent = index.entry.query_tower, request.features or {}
        tower = model_version.towers[name]
        validation.check_names(sent, tower.inputs, "feature", f"query tower {name!r}")
        n = contexts.count(model_version, sent, request.context_ids)
        validation.check_queries(n, settings)
        features = contexts.complete(model_version, tower.inputs, sent, request.context_ids, n, execution)
        return embedding.result(model_version, tower, features, n, execution), None
    if request.ids is not None:
        validation.check_queries(int(request.ids.size), settings)
        positions = validation.known_positions(index.corpus, request.ids)
        return np.array(index.vectors[positions], np.float32), positions
    return _sent_vectors(index, request.vectors, settings), None


def _ambiguous(request: Retrieval) -> InvalidArgument:
    given = [name for name in ("features", "vectors", "ids") if getattr(request, name) is not None]
    if request.context_ids is not None and not request.features:
        given.append("context ids")
    return InvalidArgument(
        "queries are given by exactly one of features (or context ids), vectors and ids; got "
        f"{', '.join(given) or 'none of them'}"
    )


def _sent_vectors(index: LoadedIndex, vectors: Vectors | None, settings: ServiceSettings) -> Vectors:
    dim = index.entry.dim
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes an infinity, rejected below
        array = np.ascontiguousarray(vectors, np.float32)
    if array.ndim > 2 or (array.ndim == 2 and array.shape[1] != dim) or array.size % dim:
        raise InvalidArgument(f"vectors of shape {list(array.shape)}; [n, {dim}] float32 is expected")
    array = array.reshape(-1, dim)
    validation.check_queries(array.shape[0], settings)
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise InvalidArgument(f"vector {int(np.flatnonzero(~finite)[0])} holds NaN or an infinity")
    return array

"""Features, vectors or ids -> query vectors -> neighbors; k of them wherever k allowed candidates exist."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.config import ServiceSettings
from service.engine import embedding, lookup, validation
from service.engine.context import Execution
from service.engine.requests import K_DEFAULT, Exclusion, Neighbors, Offsets, Retrieval, Retrieved, Vectors
from service.errors import InvalidArgument, Unimplemented
from service.models.version import LoadedIndex, LoadedStore, ModelVersion

_CELLS_MAX = 4 << 20
"""Largest queries x candidates fetched in one search: bounds the memory of a call, 12 bytes each."""
_NONE = np.empty(0, np.int64)

Positions = NDArray[np.int64]


class Found(NamedTuple):
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
    excluded = excluded_positions(index.corpus, request.exclude, len(vectors))
    if own is not None:
        excluded = [np.union1d(*each) for each in zip(excluded, own, strict=True)]
    found = nearest(index, vectors, k, excluded, execution, exact=request.exact)
    execution.computed(len(vectors))
    with execution.phase("lookup"):
        answer = neighbors(index.corpus, found, request.attributes)
    return Retrieved(model_version.model, model_version.version, answer, index.corpus.entry.size)


def neighbors(corpus: LoadedStore, found: Found, attributes: tuple[str, ...]) -> Neighbors:
    """Returns candidates as clients see them: ids, scores and attributes."""
    positions, scores, offsets = found
    values = corpus.store.attributes(positions, list(attributes)) if attributes else {}
    return Neighbors(corpus.store.ids(positions), scores, offsets, values)


def excluded_positions(corpus: LoadedStore, exclude: Exclusion | None, n: int) -> list[Positions]:
    """Returns the distinct positions that each of n queries excludes. Unknown ids exclude nothing."""
    if exclude is None:
        return [_NONE] * n
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
    excluded: Sequence[Positions],
    execution: Execution,
    *,
    exact: bool = False,
) -> Found:
    """Finds the k nearest allowed candidates of each query; fewer only where fewer are allowed.

    Args:
      vectors: [n, dim] float32 queries.
      excluded: n arrays of distinct positions.
    Raises:
      NotFinite: a score is beyond float32.
    """
    n, size = len(vectors), index.corpus.entry.size
    fetch = [min(size, k + each.size) for each in excluded]
    together = n if n * max(fetch) <= _CELLS_MAX else 1
    rows: list[tuple[Positions, NDArray[np.float32]]] = []
    for first in range(0, n, together):
        block = slice(first, first + together)
        with execution.phase("search"):
            rows += _search(index, vectors[block], k, max(fetch[block]), excluded[block], execution, exact=exact)
    positions, scores = np.concatenate([row[0] for row in rows]), np.concatenate([row[1] for row in rows])
    validation.check_finite(scores, "a candidate's score")
    offsets = np.fromiter(accumulate([row[0].size for row in rows], initial=0), np.int64, n + 1)
    return Found(positions, scores, offsets)


def _search(
    index: LoadedIndex,
    vectors: Vectors,
    k: int,
    fetch: int,
    excluded: Sequence[Positions],
    execution: Execution,
    *,
    exact: bool,
) -> list[tuple[Positions, NDArray[np.float32]]]:
    """Fetches as many more as are excluded, then drops those; a query that is left short of k is searched exactly."""
    if exact:
        found = index.exact.search(vectors, fetch, each=execution.parallel)
    else:
        found = index.approximate.search(vectors, fetch)
    rows = [_allowed(*row, k) for row in zip(*found, excluded, strict=True)]
    size = index.corpus.entry.size
    short = [query for query, (row, _) in enumerate(rows) if row.size < min(k, size - excluded[query].size)]
    if short and not exact:
        found = index.exact.search(vectors[short], fetch, each=execution.parallel)
        for query, positions, scores in zip(short, *found, strict=True):
            rows[query] = _allowed(positions, scores, excluded[query], k)
    return rows


def _allowed(
    positions: Positions, scores: NDArray[np.float32], excluded: Positions, k: int
) -> tuple[Positions, NDArray[np.float32]]:
    """Returns a query's first k that are allowed, of those that were found."""
    if excluded.size or positions[-1] < 0:  # what is missing is missing at the end
        keep = np.flatnonzero((positions >= 0) & np.isin(positions, excluded, invert=True))
        positions, scores = positions[keep], scores[keep]
    return positions[:k], scores[:k]


def _queries(
    model_version: ModelVersion, index: LoadedIndex, request: Retrieval, settings: ServiceSettings, execution: Execution
) -> tuple[Vectors, Positions | None]:
    """Returns the query vectors and, of queries by id, the candidates' own positions."""
    given = [name for name in ("features", "vectors", "ids") if getattr(request, name) is not None]
    if request.context_ids is not None and request.features is None:
        given.append("context ids")
    if len(given) != 1:
        raise InvalidArgument(
            "queries are given by exactly one of features (or context ids), vectors and ids; got "
            f"{', '.join(given) or 'none of them'}"
        )
    if request.ids is not None:
        validation.check_queries(int(request.ids.size), settings)
        positions = lookup.known_positions(index.corpus, request.ids)
        return np.array(index.vectors[positions], np.float32), positions
    if request.vectors is not None:
        return _sent_vectors(index.entry.dim, request.vectors, settings), None
    name, sent = index.entry.query_tower, request.features or {}
    tower = model_version.towers[name]
    validation.check_names(sent, tower.inputs, "feature", f"query tower {name!r}")
    n = lookup.count_queries(model_version, sent, request.context_ids, settings)
    features = lookup.complete(model_version, tower.inputs, sent, request.context_ids, n, execution)
    return embedding.result(model_version, tower, features, n, execution), None


def _sent_vectors(dim: int, vectors: Vectors, settings: ServiceSettings) -> Vectors:
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

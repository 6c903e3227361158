"""Features, vectors or ids -> query vectors -> neighbors; k of them wherever k allowed candidates
exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format.formula import Formula
from bundle.tables.id_values import distinct
from runtime.exact import normalized
from runtime.vectors import SEARCHABLE, find_unsearchable
from service.config import ServiceSettings
from service.engine import lookup, towers
from service.engine.calls import (
    K_DEFAULT,
    Explanation,
    IdLists,
    Ids,
    Offsets,
    RetrievalRequest,
    RetrievalResult,
    SelectionRequest,
    Vectors,
    check_offsets,
)
from service.engine.execution import Execution
from service.engine.ranking import formulas
from service.engine.retrieval import (
    by_example,
    changed_search,
    filters,
    reordering,
    search,
    sharded_search,
)
from service.engine.retrieval.by_example import Examples
from service.engine.retrieval.search import (
    AllowedCandidates,
    Neighbors,
    Queries,
    SearchedPart,
    SearchOptions,
)
from service.engine.validation import (
    NUMBER_BYTES,
    NotFinite,
    at_most,
    check_attributes,
    check_bytes,
    check_k,
    check_names,
    check_queries,
    check_values,
    choose_index,
)
from service.errors import FieldViolation, InvalidArgument
from service.versions.version import LoadedIndex, LoadedStore, ModelVersion, ServedIndex

Positions = NDArray[Any]

_NONE: Positions = np.empty(0, np.uint32)
_NEGATIVE_WEIGHT = 0.5
"""Distance by which a query moves away from negative examples, as a share of its length or
distance. A larger weight avoids them more, and finds fewer candidates that the query is about.
"""


async def retrieve(
    model_version: ModelVersion,
    request: RetrievalRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> RetrievalResult:
    """Retrieves candidates for n queries with one model version.

    Raises:
      InvalidArgument, TooLarge, NotFound: See service/errors.py.
      FeatureError: A column does not fit its feature.
    """
    k = check_k(request.k, K_DEFAULT, settings.max_k)
    name, index = choose_index(model_version, request.index)
    columns = (request.context or {}).values()
    check_selection(index.corpus, request, settings, [request.ids], *columns)
    reordering.check(request, index.corpus, k)
    formula = None
    if request.formula:
        names = {"score", *reordering.numeric_attributes(index.corpus)}
        formula = formulas.parsed(request.formula, names, "a name", f"index {name!r}")
    vectors, examples, n = await _queries(model_version, index, request, k, settings, execution)
    offsets = request.query_offsets
    query_candidates = list[Positions]()
    not_found = None
    if examples is not None:
        offsets = examples.offsets
        query_candidates = examples.by_query()
        not_found = examples.not_found
    # A query by example never finds itself.
    vectors, query_candidates = await avoid_negatives(
        index, vectors, request, query_candidates, n, offsets, execution
    )
    queries = Queries(
        vectors, allowed_candidates(index, request, n, execution, query_candidates), offsets
    )
    # Some ids of the request may not exist, and their queries have nothing to search for.
    find = _neighbors
    if not_found is not None:
        find = _neighbors_of_existing
    neighbors = await find(index, queries, request, formula, k, settings, execution)
    execution.begin("lookup")
    share = execution.searched_share
    retrieved = retrieval_result(model_version, index.corpus, neighbors, request, k, share)
    if not_found is None:
        return retrieved
    execution.count("not_found_ids", not_found.ids.size, model_version.model, execution.call)
    return replace(retrieved, not_found=not_found)


async def _neighbors(
    index: ServedIndex,
    queries: Queries,
    request: RetrievalRequest,
    formula: Formula | None,
    k: int,
    settings: ServiceSettings,
    execution: Execution,
) -> Neighbors:
    """Finds the k neighbors of each query that a retrieval returns, best first."""
    reorders = formula is not None or bool(request.crowding) or request.diversity > 0
    needs_pool = reorders or request.offset is not None
    if needs_pool:
        neighbors = await retrieve_pools(index, queries, request, k, settings, execution)
    else:
        neighbors = await _find(index, queries, request, k, execution)
    execution.count_examples(len(queries.vectors))
    if needs_pool or request.min_score is not None:
        neighbors = await reordering.reorder(index, neighbors, request, formula, k, execution)
    return neighbors


async def _neighbors_of_existing(
    index: ServedIndex,
    queries: Queries,
    request: RetrievalRequest,
    formula: Formula | None,
    k: int,
    settings: ServiceSettings,
    execution: Execution,
) -> Neighbors:
    """Does what `_neighbors` does, for queries some of which have no vector and find nothing."""
    searchable, has_vector = by_example.select_searchable(queries)
    neighbors = by_example.NO_NEIGHBORS
    if has_vector.any():
        neighbors = await _neighbors(index, searchable, request, formula, k, settings, execution)
    return by_example.spread(neighbors, has_vector)


async def retrieve_pools(
    index: ServedIndex,
    queries: Queries,
    request: SelectionRequest,
    k: int,
    settings: ServiceSettings,
    execution: Execution,
) -> Neighbors:
    """Finds what is ranked or reordered: `candidates` for each query, and more where crowding needs
    them; for pages no more, so that each page is of the same pool.

    Raises:
      TooLarge: The pools have more than max_candidates.
    """
    n = len(queries.allowed.excluded)
    fetched = min(request.retrieved_count, index.corpus.entry.size)
    at_most(settings, "max_candidates", execution.largest(n) * fetched, "request")
    neighbors = await _find(index, queries, request, fetched, execution)
    if not request.crowding or request.offset is not None:
        return neighbors

    async def find(query: int, count: int) -> Neighbors:
        return await _find(index, queries.only(query), request, count, execution)

    return await reordering.widen_pools(neighbors, find, index.corpus, request.crowding, fetched, k)


async def _find(
    index: ServedIndex,
    queries: Queries,
    request: SelectionRequest,
    count: int,
    execution: Execution,
) -> Neighbors:
    """Finds the `count` nearest allowed candidates of each query, without those whose vectors
    cannot be searched.
    """
    # What was sent is checked already, unless it was moved away from negative examples.
    is_checked = request.holds_vectors and request.negative_ids is None
    if not is_checked and find_unsearchable(queries.vectors) is not None:
        raise NotFinite("a candidate's score")
    exact = isinstance(request, RetrievalRequest) and request.exact
    options = SearchOptions(count, exact, request.recall, request.explain, request.filter)
    if index.here is None:
        return await sharded_search.nearest(index, queries, options, execution)
    try:
        neighbors, parts = _find_here(index, index.here, queries, options, execution)
    except NotFinite:
        # The queries are searchable. So candidates are not, which exports and changes reject by
        # now, and once accepted.
        unsearchable = index.unsearchable
        execution.leave_out("vector", index.corpus.store.ids(unsearchable.astype(np.int64)))
        allowed = search.without(queries.allowed, unsearchable)
        queries = queries._replace(allowed=allowed)
        neighbors, parts = _find_here(index, index.here, queries, options, execution)
    sampler = execution.live_recall
    if sampler is not None and not (exact or request.recall or queries.offsets is not None):
        # Sampled are queries as the bundle configures them: with other options, recall is another.
        sampler.countdown -= len(queries.allowed.excluded)
        if sampler.countdown < 0:
            parts = parts or [SearchedPart(index.here, queries.allowed, neighbors)]
            sampler.sample(index.here, queries.vectors, count, parts, neighbors)
    return neighbors


def _find_here(
    index: ServedIndex,
    here: LoadedIndex,
    queries: Queries,
    options: SearchOptions,
    execution: Execution,
) -> tuple[Neighbors, Sequence[SearchedPart]]:
    """Finds the nearest candidates in an index of this process; what was found in each part is
    empty if there are no others.
    """
    if index.added is not None:
        return changed_search.nearest(index, queries, options, execution)
    return search.nearest(here, queries, options, execution), ()


def check_selection(
    corpus: LoadedStore,
    request: SelectionRequest,
    settings: ServiceSettings,
    ids: Sequence[Ids | None],
    *columns: Column,
) -> None:
    """Rejects attributes that are not stored, a recall that is none, and more values than the
    limit.

    Args:
      corpus: The candidates.
      request: The request.
      settings: The limits.
      ids: The ids of the queries.
      columns: The columns of the queries.
    """
    check_attributes(corpus, request.attributes, "attributes")
    id_arrays = [*ids, request.context_ids]
    if request.exclude_ids is not None:
        id_arrays.append(request.exclude_ids.ids)
    if request.negative_ids is not None:
        # Their vectors are read.
        at_most(settings, "max_candidates", request.negative_ids.ids.size, "negative_ids")
        id_arrays.append(request.negative_ids.ids)
    if request.filter is not None:
        id_arrays += request.filter.tokens
    check_values(settings, columns, *id_arrays)
    if not 0 <= request.recall <= 1:
        raise InvalidArgument.of_field("recall", request.recall, "0 (as exported) to 1")


def check_response(
    corpus: LoadedStore,
    request: SelectionRequest,
    n: int,
    k: int,
    settings: ServiceSettings,
    execution: Execution,
) -> None:
    """Rejects a request whose response would have too many neighbors.

    Args:
      corpus: The candidates.
      request: Names the attributes that are returned with each neighbor.
      n: The number of queries.
      k: The number of neighbors of each.
      settings: The limit.
      execution: The batch of the request.

    Raises:
      TooLarge: The neighbors exceed `max_response_bytes`.
    """
    neighbor_bytes = 2 * NUMBER_BYTES + corpus.store.text_bytes("id")
    for name in request.attributes:
        neighbor_bytes += corpus.store.text_bytes(f"attribute:{name}")
    count = execution.largest(n) * min(k, corpus.entry.size)
    check_bytes(
        count * neighbor_bytes,
        f"{count} neighbors with {len(request.attributes)} attributes",
        settings,
        "lower k, request fewer attributes, or send fewer queries at a time",
    )


async def avoid_negatives(
    index: ServedIndex,
    vectors: Vectors,
    request: SelectionRequest,
    query_candidates: list[Positions],
    n: int,
    offsets: Offsets | None,
    execution: Execution,
) -> tuple[Vectors, list[Positions]]:
    """Moves queries away from their negative examples, which are no neighbors either.

    By dot product and cosine, a query loses a share of its length in the mean direction of its
    examples; by l2, it moves on by a share of its distance from their mean.

    Args:
      index: The index.
      vectors: [v, dim] float32, the vectors of the queries.
      request: The request.
      query_candidates: The candidates that each query is; empty: queries are none.
      n: The number of queries.
      offsets: The offsets of the vectors, as in `search.Queries`.
      execution: The batch of the request.

    Returns:
      The vectors to search for, and the candidates that each query must not find.

    Source: Rocchio, "Relevance feedback in information retrieval", 1971.
    """
    if request.negative_ids is None:
        return vectors, query_candidates
    negatives = positions_by_query(
        index.corpus, request.negative_ids, n, "negative_ids", "negative_offsets"
    )
    unwanted = negatives
    if query_candidates:
        unwanted = [np.concatenate(pair) for pair in zip(query_candidates, negatives, strict=True)]
    # Queries to which the same list was sent share its array. One read: shards are called.
    # By identity, since equal lists would have to be compared first.
    lists = {id(positions): positions for positions in negatives if positions.size}
    if not lists:
        return vectors, unwanted
    negative_vectors = await sharded_search.vectors_at(
        index, np.concatenate([*lists.values()]), execution
    )
    is_l2 = index.entry.distance == "squared_l2"
    if not is_l2:
        negative_vectors = normalized(negative_vectors)
    ends = np.cumsum([positions.size for positions in lists.values()])
    vectors_by_list = np.split(negative_vectors, ends[:-1])
    means = {
        key: list_vectors.mean(axis=0)
        for key, list_vectors in zip(lists, vectors_by_list, strict=True)
    }

    moved = np.array(vectors, np.float32)
    vector_ends = offsets
    if vector_ends is None:
        vector_ends = np.arange(n + 1)
    for positions, (first, last) in zip(negatives, pairwise(vector_ends.tolist()), strict=True):
        mean = means.get(id(positions))
        if mean is None:
            continue
        query_vectors = moved[first:last]
        if is_l2:
            query_vectors += _NEGATIVE_WEIGHT * (query_vectors - mean)
        else:
            lengths = np.linalg.norm(query_vectors, axis=1, keepdims=True)
            query_vectors -= _NEGATIVE_WEIGHT * lengths * mean
    return moved, unwanted


def allowed_candidates(
    index: ServedIndex,
    request: SelectionRequest,
    n: int,
    execution: Execution,
    query_candidates: Sequence[Positions] = (),
) -> AllowedCandidates:
    """Returns the candidates that each of n queries may find: those that match, less the excluded
    and the denied.

    Args:
      index: The index.
      request: The request.
      n: The number of queries.
      execution: The batch of the request.
      query_candidates: The candidates that each query is; (): queries are none.

    Raises:
      InvalidArgument: The filter does not suit the attributes, or the exclusions not the queries.
      UnknownCandidate: An excluded id is none.
    """
    wanted = request.filter or None
    if wanted is None and request.exclude_ids is None and not query_candidates:
        return AllowedCandidates(index.corpus.unavailable, [_NONE] * n)
    execution.begin("search")
    compiled = None
    if wanted is not None and index.here is not None:
        compiled = filters.compile_filter(index.here, wanted, execution.check)
        outcome = "cached" if compiled.is_cached else "compiled"
        execution.count("filters", 1, outcome)
    elif wanted is not None:
        # Shards compile it. What is wrong with a request is found here, so that whatever a shard
        # rejects is not the client's fault.
        filters.check(index.corpus, wanted)
    denied, excluded = excluded_positions(index.corpus, request.exclude_ids, n, query_candidates)
    return AllowedCandidates(denied, excluded, compiled)


def retrieval_result(
    model_version: ModelVersion,
    corpus: LoadedStore,
    neighbors: Neighbors,
    request: SelectionRequest,
    k: int,
    searched_share: float = 1.0,
) -> RetrievalResult:
    """Returns candidates as clients see them: ids, scores and attributes."""
    positions, scores, offsets, _ = neighbors
    attributes: dict[str, list[Any]] = {}
    if request.attributes:
        attributes = corpus.store.attributes(positions, list(request.attributes))
    explanations: tuple[Explanation, ...] = ()
    if request.explain:
        explanations = search.explain_shortfalls(neighbors, request, k)
    return RetrievalResult(
        model_version.model,
        model_version.version,
        corpus.store.ids(positions),
        scores,
        offsets,
        attributes,
        explanations,
        round(searched_share * corpus.entry.size),
    )


def excluded_positions(
    corpus: LoadedStore, exclude: IdLists | None, n: int, query_candidates: Sequence[Positions]
) -> tuple[Positions, list[Positions]]:
    """Returns the positions that none of n queries may find, and further ones of each.

    Args:
      corpus: The candidates, some of which are denied, or were deleted while they are served.
      exclude: Ids of candidates, unknown ones among them, for all queries or for each.
      n: The number of queries.
      query_candidates: The candidates that each query is; (): queries are none.
    """
    denied = corpus.unavailable
    lists = list(query_candidates)
    if exclude is not None:
        positions = positions_by_query(corpus, exclude, n, "exclude_ids", "exclude_offsets")
        if n > 1 and exclude.offsets is None:
            # One list of all queries joins the deny list, instead of being copied for each query.
            further = _not_denied(positions[0], denied)
            denied = np.insert(denied, np.searchsorted(denied, further), further)
        elif lists:
            lists = [np.concatenate(pair) for pair in zip(lists, positions, strict=True)]
        else:
            lists = positions
    if not lists:
        return denied, [_NONE] * n
    return denied, [_not_denied(positions, denied) for positions in lists]


def positions_by_query(
    corpus: LoadedStore, lists: IdLists, n: int, field: str, offsets_field: str
) -> list[Positions]:
    """Returns the positions of each query's ids; unknown ids have none.

    Args:
      corpus: The candidates.
      lists: The ids.
      n: The number of queries.
      field: The field of the request that holds the ids.
      offsets_field: The field that holds the offsets of each query.
    """
    if lists.offsets is not None:
        check_offsets(lists.offsets, n, int(lists.ids.size), offsets_field)
    positions = corpus.store.positions(lists.ids, field)
    if n == 1 or lists.offsets is None:
        return [positions[positions >= 0]] * n
    return [
        query_positions[query_positions >= 0]
        for query_positions in np.split(positions, lists.offsets[1:-1])
    ]


def _not_denied(positions: Positions, denied: Positions) -> Positions:
    """Returns those positions that are not denied, ascending and distinct, [m] uint32."""
    ascending = distinct(positions.astype(np.uint32))
    return ascending[~filters.is_among(ascending, denied)]


def _count_queries(request: RetrievalRequest, offsets: Offsets | None, vectors: int) -> int:
    """Returns how many queries the vectors, or ids, are of."""
    if offsets is None:
        return vectors
    if request.vectors is None and request.ids is None:
        message = "query_offsets are accepted only with vectors or ids"
        violation = FieldViolation("query_offsets", "neither", "vectors or ids beside them")
        raise InvalidArgument(message, violation)
    n = max(1, offsets.size - 1)
    check_offsets(offsets, n, vectors, "query_offsets")
    empty = np.flatnonzero(offsets[1:] == offsets[:-1])
    if empty.size:
        field = "ids"
        if request.vectors is not None:
            field = "vectors"
        value = f"none for query {empty[0]}"
        raise InvalidArgument.of_field(field, value, "at least one", "has")
    return n


async def _queries(
    model_version: ModelVersion,
    index: ServedIndex,
    request: RetrievalRequest,
    k: int,
    settings: ServiceSettings,
    execution: Execution,
) -> tuple[Vectors, Examples | None, int]:
    """Returns the query vectors; of queries by id, the candidates that they are; and the number of
    queries. The size of the response is checked before anything is computed.
    """
    query_fields = [
        name for name in ("context", "vectors", "ids") if getattr(request, name) is not None
    ]
    if request.context_ids is not None and request.context is None:
        query_fields.append("context_ids")
    if len(query_fields) != 1:
        value = ", ".join(query_fields) or "no query"
        expected = "exactly one of context (or context ids), vectors, and ids"
        raise InvalidArgument.of_field("request", value, expected, "has")

    if request.ids is not None:
        count = int(request.ids.size)
        check_queries(execution.largest(count, request.query_offsets), settings)
        n = _count_queries(request, request.query_offsets, count)
        check_response(index.corpus, request, n, k, settings, execution)
        examples = by_example.examples_of(request, request.ids, index.corpus)
        return await sharded_search.vectors_at(index, examples.positions, execution), examples, n
    if request.vectors is not None:
        vectors = _sent_vectors(index.entry.dim, request.vectors)
        check_queries(execution.largest(len(vectors), request.query_offsets), settings)
        check_sent_vectors(vectors)
        n = _count_queries(request, request.query_offsets, len(vectors))
        check_response(index.corpus, request, n, k, settings, execution)
        return vectors, None, n

    name = index.entry.query_tower
    context = request.context or {}
    tower = model_version.towers[name]
    check_names(context, tower.inputs, "context", "a feature", f"query tower {name!r}")
    n = lookup.count_queries(model_version, context, request.context_ids, settings, execution)
    _count_queries(request, request.query_offsets, n)
    check_response(index.corpus, request, n, k, settings, execution)
    features = lookup.complete(
        model_version, tower.inputs, context, request.context_ids, n, execution
    )
    return await towers.result(model_version, tower, features, n, execution), None, n


def _sent_vectors(dim: int, vectors: Vectors) -> Vectors:
    """Returns the vectors of a request, [n, dim] float32."""
    array = vectors
    if array.dtype != np.float32:
        # What float32 cannot hold becomes an infinity, which is rejected below.
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    array = np.ascontiguousarray(array)
    has_rows = array.ndim < 2 or (array.ndim == 2 and array.shape[1] == dim)
    if not has_rows or array.size % dim:
        raise InvalidArgument.of_field(
            "vectors", list(array.shape), f"[n, {dim}] float32", "has shape"
        )
    return array.reshape(-1, dim)


def check_sent_vectors(vectors: Vectors) -> None:
    """Rejects [n, dim] vectors of a request that cannot be searched."""
    unsearchable = find_unsearchable(vectors)
    if unsearchable is not None:
        value = f"{unsearchable.value} in vector {unsearchable.position}"
        raise InvalidArgument.of_field("vectors", value, SEARCHABLE, "holds")

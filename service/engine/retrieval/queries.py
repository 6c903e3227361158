"""What the queries of a request search for in an index: their vectors, and the candidates that they
may find.

A query is a vector, several, or the id of a candidate, whose own vector is searched for and which
the query never finds. Ids that do not exist are left out, if the request skips them; a query that
has no other ids finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.tables.id_values import distinct
from bundle.tables.offsets import lengths_of, offsets_of
from runtime.exact import normalized
from service.contract.forms import IdLists
from service.contract.messages import (
    Explanation,
    NotFoundRule,
    Offsets,
    RetrievalRequest,
    SelectionRequest,
    Vectors,
    check_offsets,
)
from service.engine import filters, lookup
from service.engine.execution import Execution
from service.engine.neighbors import AllowedCandidates, Neighbors, Queries
from service.engine.retrieval import served_search
from service.engine.retrieval.plan import Selection
from service.versions.version import LoadedStore, ServedIndex

Positions = NDArray[Any]

_NONE: Positions = np.empty(0, np.uint32)
_NEGATIVE_WEIGHT = 0.5
"""Distance by which a query moves away from negative examples, as a share of its length or
distance. A larger weight avoids them more, and finds fewer candidates that the query is about.
"""
_NO_NEIGHBORS = Neighbors(np.empty(0, np.int64), np.empty(0, np.float32), np.zeros(1, np.int64))
_NO_ID = Explanation("none", shortfall="none of the ids of the query exists")


class QueryVectors(NamedTuple):
    """The vectors of n queries, and the candidates that they must not find whatever the request
    excludes.

    Attributes:
      vectors: [v, dim] float32.
      offsets: [n + 1], which vectors belong to each query, of which some may have none; None: one
        vector each.
      unwanted: The positions of the candidates that each query is, or that are negative examples;
        (): there are none.
      not_found: The ids of each query that do not exist; None: the request does not skip those.
    """

    vectors: Vectors
    offsets: Offsets | None = None
    unwanted: Sequence[Positions] = ()
    not_found: IdLists | None = None


async def of_request(selection: Selection) -> QueryVectors:
    """Returns the vectors that a request has sent, or those of the ids that it has.

    Raises:
      NoSuchCandidate: An id is not in the corpus, and the request does not skip it.
    """
    request = selection.request
    index = selection.first_index
    assert isinstance(request, RetrievalRequest)  # noqa: S101 - recommendations are for contexts
    assert index is not None  # noqa: S101 - the only source
    offsets = request.query_offsets
    if selection.vectors is not None:
        return QueryVectors(selection.vectors, offsets)
    ids = request.ids
    assert ids is not None  # noqa: S101 - without vectors, they are the queries
    positions = lookup.candidate_positions(index.corpus, ids, request.not_found, "ids", offsets)
    not_found = None
    if request.not_found is NotFoundRule.SKIP:
        ends = offsets
        if ends is None:
            ends = np.arange(ids.size + 1)
        existing = np.flatnonzero(positions >= 0)
        not_found = lookup.not_found_ids(ids, existing, ends)
        if existing.size < ids.size:
            positions = positions[existing]
            offsets = existing.searchsorted(ends)
    vectors = await served_search.vectors_at(index, positions, selection.execution)
    if offsets is None:
        return QueryVectors(
            vectors, None, np.split(positions, np.arange(1, positions.size)), not_found
        )
    return QueryVectors(vectors, offsets, np.split(positions, offsets[1:-1]), not_found)


async def avoid_negatives(
    index: ServedIndex,
    request: SelectionRequest,
    queries: QueryVectors,
    n: int,
    execution: Execution,
) -> QueryVectors:
    """Moves n queries away from their negative examples, which are no neighbors either.

    By dot product and cosine, a query loses a share of its length in the mean direction of its
    examples; by l2, it moves on by a share of its distance from their mean.

    Source: Rocchio, "Relevance feedback in information retrieval", 1971.
    """
    if request.negative_ids is None:
        return queries
    negatives = positions_by_query(
        index.corpus, request.negative_ids, n, "negative_ids", "negative_offsets"
    )
    unwanted = negatives
    if queries.unwanted:
        unwanted = [np.concatenate(pair) for pair in zip(queries.unwanted, negatives, strict=True)]
    # Queries to which the same list was sent share its array. One read: shards are called.
    # By identity, since equal lists would have to be compared first.
    lists = {id(positions): positions for positions in negatives if positions.size}
    if not lists:
        return queries._replace(unwanted=unwanted)
    negative_vectors = await served_search.vectors_at(
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

    moved = np.array(queries.vectors, np.float32)
    vector_ends = queries.offsets
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
    return queries._replace(vectors=moved, unwanted=unwanted)


def allowed_candidates(
    index: ServedIndex,
    request: SelectionRequest,
    n: int,
    execution: Execution,
    unwanted: Sequence[Positions] = (),
) -> AllowedCandidates:
    """Returns the candidates that each of n queries may find: those that match, less the excluded
    and the denied.

    Args:
      index: The index.
      request: The request.
      n: The number of queries.
      execution: The batch of the request.
      unwanted: Further positions that each query must not find; (): there are none.

    Raises:
      InvalidArgument: The filter does not suit the attributes, or the exclusions not the queries.
      UnknownCandidate: An excluded id is none.
    """
    wanted = request.filter or None
    if wanted is None and request.exclude_ids is None and not unwanted:
        return AllowedCandidates(index.corpus.unavailable, [_NONE] * n)
    execution.begin("search")
    compiled = None
    if wanted is not None and index.here is not None:
        compiled = filters.compile_filter(index.here, wanted, execution.check)
        outcome = "compiled"
        if compiled.is_cached:
            outcome = "cached"
        execution.count("filters", 1, outcome)
    elif wanted is not None:
        # Shards compile it. What is wrong with a request is found here, so that whatever a shard
        # rejects is not the client's fault.
        filters.check_filter(index.corpus, wanted)
    denied, excluded = excluded_positions(index.corpus, request.exclude_ids, n, unwanted)
    return AllowedCandidates(denied, excluded, compiled)


def excluded_positions(
    corpus: LoadedStore, exclude: IdLists | None, n: int, unwanted: Sequence[Positions]
) -> tuple[Positions, list[Positions]]:
    """Returns the positions that none of n queries may find, and further ones of each.

    Args:
      corpus: The candidates, some of which are denied, or were deleted while they are served.
      exclude: Ids of candidates, unknown ones among them, for all queries or for each.
      n: The number of queries.
      unwanted: Further positions that each query must not find; (): there are none.
    """
    denied = corpus.unavailable
    lists = list(unwanted)
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


def select_searchable(queries: Queries) -> tuple[Queries, NDArray[np.bool_]]:
    """Returns those of n queries that have a vector, and which these are, [n] bool."""
    offsets = queries.offsets
    if offsets is None:
        return queries, np.ones(len(queries.vectors), bool)
    counts = lengths_of(offsets)
    has_vector = counts > 0
    numbers = np.flatnonzero(has_vector).tolist()
    # Queries without a vector are not searched: a mean or a maximum over nothing has no value.
    allowed = queries.allowed
    allowed = allowed._replace(excluded=[allowed.excluded[number] for number in numbers])
    if queries.vectors.shape[0] == len(numbers):
        return Queries(queries.vectors, allowed), has_vector
    return Queries(queries.vectors, allowed, offsets_of(counts[has_vector])), has_vector


def spread(neighbors: Neighbors | None, has_vector: NDArray[np.bool_]) -> Neighbors:
    """Returns the neighbors of all queries; those without a vector have none.

    Args:
      neighbors: The neighbors of the queries with a vector; None: no query has one.
      has_vector: [n] which queries these are.
    """
    if neighbors is None:
        neighbors = _NO_NEIGHBORS
    if has_vector.all():
        return neighbors
    counts = np.zeros(has_vector.size, np.int64)
    counts[has_vector] = lengths_of(neighbors.offsets)
    numbers = np.flatnonzero(has_vector).tolist()
    explanations: list[Explanation] = []
    if len(neighbors.explanations) == len(numbers):  # else those of shards were not requested
        explanations = [_NO_ID] * has_vector.size
        for number, explanation in zip(numbers, neighbors.explanations, strict=True):
            explanations[number] = explanation
    return neighbors._replace(offsets=offsets_of(counts), explanations=tuple(explanations))

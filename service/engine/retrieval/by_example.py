"""Queries by example: the ids of candidates, whose own vectors are searched for. Ids that do not
exist are left out, if the request skips them; a query that has no other ids finds nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import lengths_of, offsets_of
from service.engine import lookup
from service.engine.calls import Explanation, IdLists, Ids, NotFoundRule, Offsets, RetrievalRequest
from service.engine.retrieval.search import Neighbors, Queries
from service.versions.version import LoadedStore

Positions = NDArray[Any]

NO_NEIGHBORS = Neighbors(np.empty(0, np.int64), np.empty(0, np.float32), np.zeros(1, np.int64))
"""What no query finds."""
_NO_ID = Explanation("none", shortfall="none of the ids of the query exists")


class Examples(NamedTuple):
    """The candidates that n queries are.

    Attributes:
      positions: [m] int64 in the corpus, of the candidates that exist.
      offsets: [n + 1]: query i is positions[offsets[i]:offsets[i + 1]], which may be none; None:
        each query is one candidate.
      not_found: The ids of each query that do not exist; None: the request does not skip those.
    """

    positions: NDArray[np.int64]
    offsets: Offsets | None
    not_found: IdLists | None = None

    def by_query(self) -> list[Positions]:
        """Returns the positions of each query."""
        offsets = self.offsets
        if offsets is None:
            return np.split(self.positions, np.arange(1, self.positions.size))
        return np.split(self.positions, offsets[1:-1])


def examples_of(request: RetrievalRequest, ids: Ids, corpus: LoadedStore) -> Examples:
    """Returns the candidates that the queries of a request are.

    Args:
      request: The request, whose `query_offsets` were checked.
      ids: The ids of the request.
      corpus: The candidates.

    Raises:
      NoSuchCandidate: An id is not in the corpus, and the request does not skip it.
    """
    positions = lookup.candidate_positions(
        corpus, ids, request.not_found, "ids", request.query_offsets
    )
    if request.not_found is NotFoundRule.ERROR:
        return Examples(positions, request.query_offsets)
    offsets = request.query_offsets
    if offsets is None:
        offsets = np.arange(ids.size + 1)
    existing = np.flatnonzero(positions >= 0)
    not_found = lookup.not_found_ids(ids, existing, offsets)
    # Then nothing has to be divided anew.
    if existing.size == ids.size:
        return Examples(positions, request.query_offsets, not_found)
    return Examples(positions[existing], existing.searchsorted(offsets), not_found)


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


def spread(neighbors: Neighbors, has_vector: NDArray[np.bool_]) -> Neighbors:
    """Returns the neighbors of all queries; those without a vector have none.

    Args:
      neighbors: The neighbors of the queries with a vector.
      has_vector: [n] which queries these are.
    """
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

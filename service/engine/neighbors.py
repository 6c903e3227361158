"""Queries of an index, which candidates they may find, and the neighbors that parts of the index
have found, as one list.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.tables.id_values import distinct
from bundle.tables.offsets import Offsets, lengths_of, offsets_of
from service.contract.messages import Explanation, Filter, Vectors
from service.engine.filters import CompiledFilter, Mask
from service.versions.version import LoadedIndex

Positions = NDArray[np.int64]


class AllowedCandidates(NamedTuple):
    """Which candidates the queries of a request may find.

    Attributes:
      denied: The candidates that no query may find, ascending and distinct. They are one array,
        since a long deny list is not copied for every query.
      excluded: The further candidates that each query may not find, ascending and distinct.
      filter: The filter with its matches; None: all candidates match.
      denied_mask: [size] bool, which candidates of the index are denied; None: it is not known.
    """

    denied: NDArray[np.uint32]
    excluded: Sequence[NDArray[np.uint32]]
    filter: CompiledFilter | None = None
    denied_mask: Mask | None = None

    def without(self, positions: NDArray[np.uint32]) -> AllowedCandidates:
        """Returns what the queries may find but for some candidates."""
        denied = distinct(np.concatenate([self.denied, positions]))
        return self._replace(denied=denied, denied_mask=None)


class Queries(NamedTuple):
    """The vectors of n queries, and the candidates that each may find.

    Attributes:
      vectors: [v, dim] float32.
      allowed: What each of the n queries may find.
      offsets: [n + 1], which vectors belong to each query; its neighbors are merged by their best
        scores. None: one vector each.
    """

    vectors: Vectors
    allowed: AllowedCandidates
    offsets: Offsets | None = None

    def only(self, query: int) -> Queries:
        """Returns one of the queries."""
        first = query
        end = query + 1
        if self.offsets is not None:
            first, end = self.offsets[query : query + 2].tolist()
        excluded = self.allowed.excluded[query : query + 1]
        offsets = np.array([0, end - first], np.int64)
        return Queries(self.vectors[first:end], self.allowed._replace(excluded=excluded), offsets)


class SearchOptions(NamedTuple):
    """How the candidates nearest to queries are searched.

    Attributes:
      k: The number of neighbors wanted of each query.
      exact: Whether all candidates are scored exactly.
      recall: The minimum recall, by the measured curve of the index; 0: as exported.
      explain: Whether to return how the neighbors were found.
      filter: The filter of the request, which each part of an index compiles for itself; None: all
        candidates match.
    """

    k: int
    exact: bool = False
    recall: float = 0.0
    explain: bool = False
    filter: Filter | None = None


class Neighbors(NamedTuple):
    """Positions of n queries' neighbors in the index, best first; query i owns offsets[i]:offsets[i
    + 1].

    Attributes:
      explanations: How the neighbors of each query were found. Unless this was requested, they hold
        the path and the number of scores alone, and there are none of shards.
    """

    positions: Positions
    scores: NDArray[np.float32]
    offsets: Offsets
    explanations: tuple[Explanation, ...] = ()

    @classmethod
    def of_one(
        cls, positions: Positions, scores: NDArray[np.float32], *explanations: Explanation
    ) -> Neighbors:
        """Returns the neighbors of one query."""
        return cls(positions, scores, np.array([0, positions.size], np.int64), explanations)

    def only(self, selected: NDArray[np.int64]) -> Neighbors:
        """Returns some of the neighbors, by their ascending positions among all."""
        return self._replace(
            positions=self.positions[selected],
            scores=self.scores[selected],
            offsets=selected.searchsorted(self.offsets),
        )


class SearchedPart(NamedTuple):
    """A part of an index, and what was found in it; positions are counted from its first candidate.

    Attributes:
      loaded: The index of the part.
      allowed: What the queries may find in it.
      neighbors: The nearest candidates of each query, at least those that can be among the nearest
        of all parts.
    """

    loaded: LoadedIndex
    allowed: AllowedCandidates
    neighbors: Neighbors


def concatenate(parts: Sequence[Neighbors]) -> Neighbors:
    """Returns the neighbors of the queries of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    return Neighbors(
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.scores for part in parts]),
        offsets_of(np.concatenate([lengths_of(part.offsets) for part in parts])),
        tuple(chain.from_iterable([part.explanations for part in parts])),
    )


def merge_neighbors(
    parts: Sequence[Neighbors], k: int, offsets: Offsets | None = None
) -> Neighbors:
    """Returns the k best of what the parts found for each of n queries, each candidate by its best
    score; of equals the smaller position first.

    Args:
      parts: What each part found for each vector, in any order.
      k: The number of neighbors wanted of each query.
      offsets: [n + 1], which vectors belong to each query; None: one each.
    """
    positions = np.concatenate([part.positions for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    vector_count = parts[0].offsets.size - 1
    if vector_count == 1:  # most requests have one, and it is sorted in half of the time
        order = np.lexsort((positions, -scores))[:k]
        return Neighbors.of_one(positions[order], scores[order])

    query_count = vector_count
    query_of_vector = np.arange(vector_count)
    if offsets is not None:
        query_count = offsets.size - 1
        query_of_vector = np.arange(query_count).repeat(lengths_of(offsets))
    queries = np.concatenate([query_of_vector.repeat(lengths_of(part.offsets)) for part in parts])
    order = _best_first(queries, positions, scores)
    if query_count < vector_count:
        # The first of equal candidates of a query is the one with the best score.
        # Positions fit into 32 bits, so that one integer stands for a query and a candidate.
        candidates = (queries << 32) + positions
        _, firsts = np.unique(candidates[order], return_index=True)
        order = order[np.sort(firsts)]
    ends = offsets_of(np.bincount(queries[order], minlength=query_count))
    counts = lengths_of(ends)
    if counts.min() >= k:  # most often
        order = order[(ends[:-1, np.newaxis] + np.arange(k)).ravel()]
        return Neighbors(positions[order], scores[order], np.arange(query_count + 1) * k)
    ranks = np.arange(order.size) - ends[queries[order]]
    order = order[ranks < k]
    return Neighbors(positions[order], scores[order], offsets_of(np.minimum(counts, k)))


def _best_first(
    queries: NDArray[np.int64], positions: NDArray[np.int64], scores: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Returns the order of neighbors by their query, the best first, of equals the smaller position
    first.
    """
    # A key of integers is sorted in a fraction of the time that three keys take.
    # The bits of a float32, with those of negative ones turned around, ascend as the numbers do.
    negated = (np.float32(0) - scores).view(np.int32)
    ascending = negated ^ ((negated >> 31) & np.int32(0x7FFFFFFF))
    keys = (queries << 32) + ascending
    order = keys.argsort(kind="stable")
    keys = keys[order]
    # Equal scores are rare, and need the positions as a third key.
    if (keys[1:] == keys[:-1]).any():
        return np.lexsort((positions, -scores, queries))
    return order


def merge_explanations(parts: Sequence[Neighbors], queries: range, size: int) -> Explanation:
    """Returns how all parts together found the neighbors of one query.

    Args:
      parts: What each part found, with explanations.
      queries: The numbers of the vectors of the query, which all have the same matches.
      size: The number of candidates of the index.
    """
    explanations = [part.explanations[query] for part in parts for query in queries]
    paths = {explanation.path for explanation in explanations}
    path = next((path for path in ("index", "exact") if path in paths), "none")
    matches = sum(part.explanations[queries[0]].matches for part in parts)
    scored = sum(explanation.scored for explanation in explanations)
    search_ms = max(explanation.search_ms for explanation in explanations)
    # A value that one part does not have may be in another.
    unmatched = [
        condition
        for condition in explanations[0].unmatched
        if all(condition in explanation.unmatched for explanation in explanations)
    ]
    return Explanation(path, matches, matches / size, scored, search_ms, unmatched=tuple(unmatched))

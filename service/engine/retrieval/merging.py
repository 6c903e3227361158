"""Neighbors that several parts of an index found, as one list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import Offsets, lengths_of, offsets_of
from service.engine.calls import Explanation
from service.engine.retrieval.search import Neighbors


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
    return Explanation(path, matches, matches / size, scored, search_ms)

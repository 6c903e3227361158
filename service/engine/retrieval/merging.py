"""Neighbors that several parts of an index found, as one list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.engine.calls import Explanation
from service.engine.retrieval.search import Found


def merged(parts: Sequence[Found], queries: range, k: int) -> Found:
    """Returns the k best of what the parts found for some vectors, each candidate by its best
    score; of equals the smaller position first.
    """
    slices = [
        (part, slice(*part.offsets[query : query + 2].tolist()))
        for part in parts
        for query in queries
    ]
    positions = np.concatenate([part.positions[each] for part, each in slices])
    scores = np.concatenate([part.scores[each] for part, each in slices])
    order = np.lexsort((positions, -scores))
    if len(queries) > 1:
        _, first = np.unique(positions[order], return_index=True)
        order = order[np.sort(first)]
    return Found.of_one(positions[order[:k]], scores[order[:k]])


def explained(parts: Sequence[Found], queries: range, size: int) -> Explanation:
    """Returns how all parts together found the neighbors of one query, by its vectors."""
    every = [part.explanations[query] for part in parts for query in queries]
    paths = {each.path for each in every}
    path = next((path for path in ("index", "exact") if path in paths), "none")
    # All vectors of a query have the same matches.
    matches = sum(part.explanations[queries[0]].matches for part in parts)
    scored = sum(each.scored for each in every)
    search_ms = max(each.search_ms for each in every)
    return Explanation(path, matches, matches / size, scored, search_ms)

"""A pool: the candidates of n queries on their way to a result; and its last step, the k best of
each query that a minimum score, crowding, quotas of sources and diversity leave.

Each step takes a pool and returns one with fewer candidates, in another order, or with other
scores.

The maximum of a source is one more limit of crowding: its candidates are those with one value. For
a minimum, room is kept: once the positions that are free are as many as the candidates that sources
still need, only their candidates are picked. What a source cannot fill goes to the best others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of
from service.contract.messages import Explanation, Offsets
from service.engine.computation import Computation
from service.engine.neighbors import Neighbors, Positions, concatenate
from service.engine.ranking.formulas import Scores
from service.engine.retrieval import served_search
from service.engine.retrieval.plan import Selection
from service.versions.version import LoadedStore

PoolPositions = NDArray[np.int64]
"""Positions among the candidates of a pool."""
ORDER_OF_RETRIEVAL = "the order of retrieval"
"""The name of the order that candidates have before a stage or a ranking has scored them."""
Codes = NDArray[np.int64]
"""[m, a] numbers of the values that m candidates have of a attributes; -1: no value."""
_GROWTH = 4
"""Factor by which a search grows where crowding leaves too few candidates. A larger one fetches
more than is needed; a smaller one searches more often.
"""


class Pool(NamedTuple):
    """The candidates of n queries; query i owns offsets[i]:offsets[i + 1].

    Attributes:
      positions: [m] int64 in the corpus.
      offsets: [n + 1].
      sources: [m] int32, the number of the source of each.
      retrieval_scores: [m] float32.
      scores: [m] float32 that order the candidates: those of the ranking, of a stage, or of the
        retrieval.
      order: The name of that order in messages.
      explanations: How the neighbors of each query were found in the first index.
      is_ranked: [m], which candidates the ranking has scored; the others follow these in their
        order. None: all that have the same kind of score.
      dropped: [n], the number of candidates that a stage has dropped; (): there was none.
      has_vectors: Whether the vectors of all candidates can be read.
      reasons: What was left out, and why; a sentence each.
    """

    positions: Positions
    offsets: Offsets
    sources: NDArray[np.int32]
    retrieval_scores: Scores
    scores: Scores
    explanations: tuple[Explanation, ...] = ()
    order: str = ORDER_OF_RETRIEVAL
    is_ranked: NDArray[np.bool_] | None = None
    dropped: Sequence[int] = ()
    has_vectors: bool = True
    reasons: tuple[str, ...] = ()

    def only(self, candidates: PoolPositions) -> Pool:
        """Returns some of the candidates, by their ascending positions in the pool."""
        return self.select(candidates, candidates.searchsorted(self.offsets))

    def select(self, candidates: PoolPositions, offsets: Offsets) -> Pool:
        """Returns some of the candidates in another order.

        Args:
          candidates: [c] positions in the pool, those of one query after those of another.
          offsets: [n + 1], which of these belong to each query.
        """
        is_ranked = self.is_ranked
        if is_ranked is not None:
            is_ranked = is_ranked[candidates]
        return self._replace(
            positions=self.positions[candidates],
            offsets=offsets,
            sources=self.sources[candidates],
            retrieval_scores=self.retrieval_scores[candidates],
            scores=self.scores[candidates],
            is_ranked=is_ranked,
        )

    def because(self, *reasons: str) -> Pool:
        """Returns the pool with further reasons; an empty one is none."""
        added = [reason for reason in reasons if reason]
        if not added:
            return self
        return self._replace(reasons=(*self.reasons, *added))


async def widen_pools(
    neighbors: Neighbors,
    find: Callable[[int, int], Computation[Neighbors]],
    corpus: LoadedStore,
    crowding: Mapping[str, int],
    fetched: int,
    k: int,
) -> Neighbors:
    """Adds to a query's candidates, where crowding leaves fewer than k of them, the next nearest
    that it leaves.

    Args:
      neighbors: The neighbors of n queries: `fetched` of each, or all that match.
      find: Searches for one of the queries; takes its number and the number of neighbors.
      corpus: The candidates.
      crowding: The maximum number of neighbors with the same value, by attribute.
      fetched: The number of neighbors that were searched for.
      k: The number of neighbors that are returned.
    """
    ends = neighbors.offsets.tolist()
    maxima = list(crowding.values())
    neighbors_max = _neighbors_max(corpus, crowding)
    parts: list[Neighbors] = []
    for query, (first, last) in enumerate(pairwise(ends)):
        positions = neighbors.positions[first:last]
        scores = neighbors.scores[first:last]
        explanation = neighbors.explanations[query : query + 1]
        count = fetched
        while True:
            free = pick_uncrowded(_codes(corpus, positions, crowding), maxima, k)
            if len(free) >= min(k, neighbors_max):
                break
            # Nothing else matches, however many are fetched.
            if positions.size < count or count >= corpus.entry.size:
                break
            count = min(_GROWTH * count, corpus.entry.size)
            more = await find(query, count)
            positions = more.positions
            scores = more.scores
            explanation = more.explanations
        is_kept = np.zeros(positions.size, np.bool_)
        is_kept[free] = True
        # The pool itself stays whole: a formula or diversity may prefer others of it.
        is_kept[:fetched] = True
        parts.append(Neighbors.of_one(positions[is_kept], scores[is_kept], *explanation))
    return concatenate(parts)


async def pick_best(selection: Selection, pool: Pool) -> tuple[PoolPositions, Offsets]:
    """Picks the k best of each query, best first; of a page, those from its offset on. Of
    candidates that are not ranked, minimum score and diversity know nothing.

    Returns:
      [m'] positions in the pool, and the [n + 1] offsets of each query's.
    """
    request = selection.request
    execution = selection.execution
    crowding = request.crowding or {}
    codes = _codes(selection.corpus, pool.positions, crowding)
    maxima = list(crowding.values())
    entries = [source.entry for source in selection.sources]
    limited = [number for number, entry in enumerate(entries) if entry.max_count]
    if limited:
        is_limited = pool.sources[:, np.newaxis] == np.array(limited, np.int32)
        codes = np.hstack([codes, is_limited.astype(np.int64) - 1])
        maxima += [entries[number].max_count for number in limited]
    has_minima = any(entry.min_count for entry in entries)

    scores = pool.scores
    by_score = np.ones(scores.size, np.bool_)
    diversity = request.diversity
    if pool.is_ranked is not None:
        by_score = pool.is_ranked
        diversity = 0.0
    min_score = np.float32(-np.inf)
    if request.min_score is not None:
        with np.errstate(over="ignore"):  # beyond float32 it is above, or below, every score
            min_score = np.float32(request.min_score)
    vectors = None
    index = selection.first_index
    if diversity and index is not None:
        vectors = await served_search.vectors_at(index, pool.positions, execution)

    ends = pool.offsets.tolist()
    chosen = [np.empty(0, np.int64)] * selection.n
    end = selection.end

    def pick(query: int) -> None:
        query_range = slice(ends[query], ends[query + 1])
        order = np.lexsort(
            (np.where(by_score[query_range], -scores[query_range], 0), ~by_score[query_range])
        )
        selected = order + ends[query]
        selected = selected[(scores[selected] >= min_score) | ~by_score[selected]]
        minima = None
        if has_minima:
            counts = np.bincount(pool.sources[selected], minlength=len(entries)).tolist()
            pairs = zip(entries, counts, strict=True)
            needed = [min(entry.min_count, count, end) for entry, count in pairs]
            minima = Minima(pool.sources[selected], needed)
        if vectors is not None:
            picked = pick_diverse(
                scores[selected], vectors[selected], end, diversity, codes[selected], maxima, minima
            )
            selected = selected[picked]
        elif maxima or minima is not None:
            selected = selected[pick_uncrowded(codes[selected], maxima, end, minima)]
        chosen[query] = selected[end - selection.k : end]

    execution.begin("compute")
    execution.parallel(selection.n, pick)
    return np.concatenate(chosen), offsets_of([selected.size for selected in chosen])


class Minima:
    """How many candidates sources still need, while the list of one query is picked."""

    def __init__(self, sources: NDArray[np.int32], needed: list[int]) -> None:
        """Begins a list.

        Args:
          sources: [c] int32, the source of each candidate of the query.
          needed: The minimum of each source, which has that many candidates at least.
        """
        self._sources = sources
        self._numbers: list[int] = sources.tolist()
        self._needed = needed

    def permits(self, candidate: int, free: int) -> bool:
        """Returns whether a candidate may be picked for a free place; if so, counts it."""
        # Candidates that no minimum needs must leave the last free positions to the others.
        if not self._needed[self._numbers[candidate]] and free <= sum(self._needed):
            return False
        self.count(candidate)
        return True

    def permitted_gains(self, gains: NDArray[Any], free: int) -> NDArray[Any]:
        """Returns the gains of candidates, -inf for those that must leave their place to others."""
        if free > sum(self._needed):
            return gains
        # As many positions are free as sources still need: only their candidates may take them.
        is_needed = np.array(self._needed)[self._sources] > 0
        permitted = np.where(is_needed, gains, -np.inf)
        if permitted.max(initial=-np.inf) > -np.inf:
            return permitted
        self.give_up()
        return gains

    def count(self, candidate: int) -> None:
        """Notes that a candidate was picked."""
        number = self._numbers[candidate]
        self._needed[number] = max(0, self._needed[number] - 1)

    def give_up(self) -> None:
        """Keeps no more room: no candidate can fill it."""
        self._needed = [0] * len(self._needed)


def _codes(corpus: LoadedStore, positions: NDArray[np.int64], crowding: Mapping[str, int]) -> Codes:
    """Returns the codes of the values that candidates have of the attributes of crowding."""
    codes = np.empty((positions.size, len(crowding)), np.int64)
    for column, name in enumerate(crowding):
        codes[:, column] = corpus.store.codes(positions, name)
    return codes


def _neighbors_max(corpus: LoadedStore, crowding: Mapping[str, int]) -> int:
    """Returns how many neighbors crowding leaves at most, whatever the query."""
    sizes = [corpus.entry.size]
    for name, maximum in crowding.items():
        # Without this bound, a search for more than crowding can ever leave would fetch the corpus.
        values, nulls = corpus.store.cardinality(name)
        sizes.append(values * maximum + nulls)
    return min(sizes)


def pick_uncrowded(
    codes: Codes, maxima: Sequence[int], k: int, minima: Minima | None = None
) -> list[int]:
    """Picks the first k candidates that crowding leaves; returns their positions.

    Args:
      codes: [m, a] values of each attribute, of candidates, best first; -1 is not limited.
      maxima: [a] maximum numbers of candidates with the same value of an attribute.
      k: The maximum number of candidates that are picked.
      minima: Keeps room for sources with a minimum; None: there are none.
    """
    counters = [Counter[int]() for _ in maxima]
    picked = list[int]()
    passed_over = list[int]()
    rows = codes.tolist()

    def pick(candidate: int) -> None:
        values = rows[candidate]
        limits = zip(counters, values, maxima, strict=True)
        if any(value >= 0 and counts[value] >= maximum for counts, value, maximum in limits):
            return
        if minima is not None and not minima.permits(candidate, k - len(picked)):
            passed_over.append(candidate)
            return
        picked.append(candidate)
        for counts, value in zip(counters, values, strict=True):
            counts[value] += 1

    for candidate in range(len(rows)):
        if len(picked) == k:
            break
        pick(candidate)
    if minima is None or len(picked) == k:
        return picked

    # Sources have too few candidates for their minimum.
    minima.give_up()
    for candidate in tuple(passed_over):
        if len(picked) == k:
            break
        pick(candidate)
    return sorted(picked)


def pick_diverse(
    scores: Scores,
    vectors: NDArray[np.float32],
    k: int,
    diversity: float,
    codes: Codes,
    maxima: Sequence[int],
    minima: Minima | None = None,
) -> list[int]:
    """Picks candidates by maximal marginal relevance; returns at most k positions, in the order in
    which they are picked.

    The next is the one with the largest (1 - diversity) * relevance - diversity * s: relevance is
    the score, scaled to [0, 1]; s is the largest cosine to one that is picked already.

    Args:
      scores: [m] scores of candidates, best first.
      vectors: [m, dim] float32, the vectors of the same.
      k: The maximum number of candidates that are picked.
      diversity: The weight of the difference between candidates, 0 to 1.
      codes, maxima, minima: Arguments of `pick_uncrowded`; without attributes, nothing is crowded.

    Source: Carbonell and Goldstein, "The use of MMR, diversity-based reranking ...", SIGIR 1998.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    relevance = scores.astype(np.float64) - scores.min(initial=np.inf)
    range_of_scores = relevance.max(initial=0.0) or 1.0
    relevance = (relevance * ((1 - diversity) / range_of_scores)).astype(np.float32)
    # Nothing is picked yet: the smallest cosine to it leaves the order to the scores.
    similarity = np.full(scores.size, -1, np.float32)
    counters = [Counter[int]() for _ in maxima]
    picked = list[int]()
    while len(picked) < min(k, scores.size):
        gains = relevance - np.float32(diversity) * similarity
        if minima is not None:
            gains = minima.permitted_gains(gains, k - len(picked))
        candidate = int(gains.argmax())
        if relevance[candidate] == -np.inf:  # none is left
            break
        picked.append(candidate)
        if minima is not None:
            minima.count(candidate)
        relevance[candidate] = -np.inf
        np.maximum(similarity, directions @ directions[candidate], out=similarity)
        for counts, column, maximum in zip(counters, codes.T, maxima, strict=True):
            code = column[candidate]
            counts[code] += 1
            if code >= 0 and counts[code] == maximum:
                relevance[column == code] = -np.inf
    return picked

"""Reordering of the candidates that were retrieved: a formula, a minimum score, crowding and
diversity; then the k best.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.formula import Formula
from bundle.tables.offsets import offsets_of
from service.engine.calls import Offsets, SelectionRequest
from service.engine.computation import Computation
from service.engine.execution import Execution
from service.engine.ranking import formulas
from service.engine.retrieval import sharded_search
from service.engine.retrieval.quotas import Minima, Quotas
from service.engine.retrieval.search import Neighbors, join_queries
from service.engine.validation import check_attributes
from service.errors import FieldViolation, InvalidArgument
from service.versions.version import LoadedStore, ServedIndex

Scores = NDArray[np.float32]
PoolPositions = NDArray[np.int64]
"""Positions among the candidates of a pool."""
Codes = NDArray[np.int64]
"""[m, a] numbers of the values that m candidates have of a attributes; -1: no value."""
_FORMULA_TYPES = ("int64", "double", "bool")
"""Types of attributes that a formula may take."""
_CROWDING_TYPES = ("string", "int64", "bool")
"""Types of attributes that crowding may limit: two doubles are hardly ever equal."""
_GROWTH = 4
"""Factor by which a search grows where crowding leaves too few candidates. A larger one fetches
more than is needed; a smaller one searches more often.
"""


def check(request: SelectionRequest, corpus: LoadedStore, k: int) -> None:
    """Rejects a request whose options are out of range.

    Raises:
      InvalidArgument: The pool_size, crowding, diversity or min_score is out of range; names its
        value and what was expected.
    """
    if request.pool_size and request.pool_size < k:
        message = f"pool_size is {request.pool_size}, fewer than k, which is {k}"
        violation = FieldViolation("pool_size", str(request.pool_size), "at least k")
        raise InvalidArgument(message, violation)
    if request.offset is not None:
        _check_page(request, request.offset, k)
    if not 0 <= request.diversity <= 1:
        raise InvalidArgument.of_field("diversity", request.diversity, "0 to 1")
    if request.min_score is not None and not math.isfinite(request.min_score):
        raise InvalidArgument.of_field("min_score", request.min_score, "a finite number")
    if request.crowding:
        _check_crowding(request.crowding, corpus)


def _check_crowding(crowding: Mapping[str, int], corpus: LoadedStore) -> None:
    check_attributes(corpus, crowding, "crowding")
    for name, maximum in crowding.items():
        kind = corpus.entry.attributes[name]
        if kind not in _CROWDING_TYPES:
            value = f"an attribute of type {kind}"
            expected = f"one of type {', '.join(_CROWDING_TYPES)}"
            raise InvalidArgument.of_field(f"crowding.{name}", value, expected)
        if maximum < 1:
            raise InvalidArgument.of_field(f"crowding.{name}", maximum, "at least 1")


def _check_page(request: SelectionRequest, offset: int, k: int) -> None:
    if offset < 0:
        raise InvalidArgument.of_field("offset", offset, "at least 0")
    if not request.pool_size:
        expected = "the size of the pool, the same for each page"
        message = f"offset was sent without pool_size; send {expected}"
        raise InvalidArgument(message, FieldViolation("pool_size", "empty", expected))
    if offset + k > request.pool_size:
        expected = "offset + k of at most pool_size"
        message = (
            f"offset is {offset} and k is {k}, more than the {request.pool_size} candidates of "
            f"the pool; {expected} was expected"
        )
        raise InvalidArgument(message, FieldViolation("offset", str(offset), expected))


def numeric_attributes(corpus: LoadedStore) -> list[str]:
    """Returns the attributes that a formula may take."""
    return [name for name, kind in corpus.entry.attributes.items() if kind in _FORMULA_TYPES]


async def reorder(
    index: ServedIndex,
    neighbors: Neighbors,
    request: SelectionRequest,
    formula: Formula | None,
    k: int,
    execution: Execution,
) -> Neighbors:
    """Returns the k neighbors of each query in a retrieval, best first, with the scores that are
    returned.
    """
    scores = neighbors.scores
    corpus = index.corpus
    if formula is not None:
        attributes = corpus.store.numbers(
            neighbors.positions, [name for name in formula.names if name != "score"]
        )
        scores = formulas.pool_scores(
            formula,
            {"score": scores, **attributes},
            id_of(corpus, neighbors),
            is_requested=True,
        )
        is_finite = np.isfinite(scores)
        if not is_finite.all():
            execution.leave_out("score", corpus.store.ids(neighbors.positions[~is_finite]))
            neighbors = neighbors.only(is_finite.nonzero()[0])
            scores = scores[is_finite]
    chosen, offsets = await pick_best(corpus, index, neighbors, scores, k, request, execution)
    return neighbors._replace(
        positions=neighbors.positions[chosen], scores=scores[chosen], offsets=offsets
    )


def id_of(corpus: LoadedStore, neighbors: Neighbors) -> Callable[[int], Any]:
    """Returns a function that gives the id of a neighbor by its position among all."""
    return lambda position: corpus.store.ids(neighbors.positions[position : position + 1])[0]


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
    return join_queries(parts)


async def pick_best(
    corpus: LoadedStore,
    index: ServedIndex | None,
    neighbors: Neighbors,
    scores: Scores,
    k: int,
    request: SelectionRequest,
    execution: Execution,
    ranked: NDArray[np.bool_] | None = None,
    quotas: Quotas | None = None,
) -> tuple[PoolPositions, Offsets]:
    """Picks the k best of each query that min_score, crowding, quotas and diversity leave, best
    first; of a page, those from its offset on.

    Args:
      corpus: The candidates.
      index: The index whose vectors diversity compares; None: the request has no diversity.
      neighbors: The m candidates.
      scores: [m] float32, the scores that are returned.
      k: The number of candidates of each query that are picked.
      request: The options.
      execution: The batch of the request.
      ranked: [m], which candidates are ranked; the others follow in their order, as min_score and
        diversity know nothing of them. None: all are.
      quotas: The number of candidates of each source that are picked; None: any number.

    Returns:
      [m'] positions among the candidates, and the [n + 1] offsets of each query's.
    """
    ends = neighbors.offsets.tolist()
    crowding = request.crowding or {}
    codes = _codes(corpus, neighbors.positions, crowding)
    maxima = list(crowding.values())
    if quotas is not None:
        # The maximum of a source is crowding by an attribute that its candidates share.
        codes = np.hstack([codes, quotas.codes])
        maxima += quotas.maxima
    by_score = np.ones(scores.size, np.bool_)
    if ranked is not None:
        by_score = ranked
    min_score = np.float32(-np.inf)
    if request.min_score is not None:
        with np.errstate(over="ignore"):  # beyond float32 it is above, or below, every score
            min_score = np.float32(request.min_score)
    chosen = [np.empty(0, np.int64)] * (len(ends) - 1)
    first = request.offset or 0
    last = first + k

    diversity = 0.0
    if ranked is None:
        diversity = request.diversity
    vectors = None
    if diversity and index is not None:
        vectors = await sharded_search.vectors_at(index, neighbors.positions, execution)

    def pick(query: int) -> None:
        query_range = slice(ends[query], ends[query + 1])
        order = np.lexsort(
            (np.where(by_score[query_range], -scores[query_range], 0), ~by_score[query_range])
        )
        selected = order + ends[query]
        selected = selected[(scores[selected] >= min_score) | ~by_score[selected]]
        minima = None
        if quotas is not None:
            minima = quotas.minima(selected, last)
        if vectors is not None:
            picked = pick_diverse(
                scores[selected],
                vectors[selected],
                last,
                diversity,
                codes[selected],
                maxima,
                minima,
            )
            selected = selected[picked]
        elif maxima or minima is not None:
            selected = selected[pick_uncrowded(codes[selected], maxima, last, minima)]
        chosen[query] = selected[first:last]

    execution.begin("compute")
    execution.parallel(len(chosen), pick)
    return np.concatenate(chosen), offsets_of([selected.size for selected in chosen])


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

"""What becomes of the candidates that were found: a formula, a least score, crowding and diversity;
then the k best.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.formula import Formula
from bundle.tables.offsets import offsets_of
from service.engine.calls import Crowding, Offsets, Selecting
from service.engine.context import Execution
from service.engine.ranking import formulas
from service.engine.retrieval import sharded_search
from service.engine.retrieval.search import Found
from service.engine.selection import check_attributes
from service.errors import InvalidArgument
from service.versions.version import LoadedStore, ServedIndex

Scores = NDArray[np.float32]
Places = NDArray[np.int64]
_NUMBERS = ("int64", "double", "bool")
_DISTINCT = ("string", "int64", "bool")
_GROWTH = 4


def check(request: Selecting, corpus: LoadedStore, k: int) -> None:
    """Rejects a request whose options are out of range.

    Raises:
      InvalidArgument: candidates, crowding, diversity or min_score; names its value and what was
        expected.
    """
    if request.candidates and request.candidates < k:
        raise InvalidArgument(f"candidates is {request.candidates}, fewer than k, which is {k}")
    if not 0 <= request.diversity <= 1:
        raise InvalidArgument(f"diversity is {request.diversity}; 0 to 1 was expected")
    if request.min_score is not None and not math.isfinite(request.min_score):
        raise InvalidArgument(f"min_score is {request.min_score}; a finite number was expected")
    if request.crowding is None:
        return
    name = request.crowding.attribute
    check_attributes(corpus, [name])
    if (kind := corpus.entry.attributes[name]) not in _DISTINCT:
        raise InvalidArgument(
            f"crowding.attribute is {name!r}, whose values are {kind}; one of "
            f"{', '.join(_DISTINCT)} was expected"
        )
    if request.crowding.max < 1:
        raise InvalidArgument(f"crowding.max is {request.crowding.max}; at least 1 was expected")


def numeric_attributes(corpus: LoadedStore) -> list[str]:
    """Returns the attributes that a formula may take."""
    return [name for name, kind in corpus.entry.attributes.items() if kind in _NUMBERS]


def reordered(
    index: ServedIndex,
    found: Found,
    request: Selecting,
    formula: Formula | None,
    k: int,
    execution: Execution,
) -> Found:
    """Returns the k neighbors of each query in a retrieval, best first, with the scores that are
    returned.
    """
    scores = found.scores
    corpus = index.corpus
    if formula is not None:
        attributes = corpus.store.numbers(
            found.positions, [name for name in formula.names if name != "score"]
        )
        scores = formulas.evaluated(formula, {"score": scores, **attributes}, id_of(corpus, found))
    chosen, offsets = best(index, found, scores, k, request, execution)
    return found._replace(positions=found.positions[chosen], scores=scores[chosen], offsets=offsets)


def id_of(corpus: LoadedStore, found: Found) -> Callable[[int], Any]:
    """Returns what gives the id of a candidate by its place among those found."""
    return lambda place: corpus.store.ids(found.positions[place : place + 1])[0]


def widened(
    found: Found,
    find: Callable[[int, int], Found],
    corpus: LoadedStore,
    crowding: Crowding,
    fetched: int,
    k: int,
) -> Found:
    """Adds to a query's candidates, where crowding leaves fewer than k of them, the next nearest
    that it leaves.

    Args:
      found: `fetched` for each of n queries, or all that match.
      find: searches for one of the queries; takes its number and how many are wanted.
    """
    ends = found.offsets.tolist()
    explanations = list(found.explanations)
    parts: list[tuple[Places, Scores]] = []
    for query, (first, last) in enumerate(pairwise(ends)):
        positions = found.positions[first:last]
        scores = found.scores[first:last]
        count = fetched
        while True:
            free = uncrowded(corpus.store.codes(positions, crowding.attribute), crowding.max)
            left = np.count_nonzero(free)
            if left >= k or positions.size < count or count >= corpus.entry.size:
                break
            values, nulls = corpus.store.cardinality(crowding.attribute)
            if left >= values * crowding.max + nulls:  # no other may be returned
                break
            count *= _GROWTH
            more = find(query, count)
            positions = more.positions
            scores = more.scores
            explanations[query : query + 1] = more.explanations
        kept = free & (np.cumsum(free) <= k)
        kept[:fetched] = True
        parts.append((positions[kept], scores[kept]))
    positions, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Found(positions, scores, offsets_of([own.size for own, _ in parts]), tuple(explanations))


def best(
    index: ServedIndex,
    found: Found,
    scores: Scores,
    k: int,
    request: Selecting,
    execution: Execution,
    ranked: NDArray[np.bool_] | None = None,
) -> tuple[Places, Offsets]:
    """Picks the k best of each query that min_score, crowding and diversity leave, best first.

    Args:
      scores: [m] that are returned, of what was found.
      ranked: [m]; the others follow in the order in which they were found, as min_score and
        diversity know nothing of them. None: all are.
    Returns:
      [m'] places among what was found, and the [n + 1] offsets of each query's.
    """
    ends = found.offsets.tolist()
    crowding = request.crowding
    codes = (
        None if crowding is None else index.corpus.store.codes(found.positions, crowding.attribute)
    )
    most = 0 if crowding is None else crowding.max
    by_score = np.ones(scores.size, np.bool_) if ranked is None else ranked
    with np.errstate(over="ignore"):  # beyond float32 it is above, or below, every score
        least = np.float32(-np.inf if request.min_score is None else request.min_score)
    chosen = [np.empty(0, np.int64)] * (len(ends) - 1)

    def pick(query: int) -> None:
        own = slice(ends[query], ends[query + 1])
        order = np.lexsort((np.where(by_score[own], -scores[own], 0), ~by_score[own]))
        places = order + ends[query]
        places = places[(scores[places] >= least) | ~by_score[places]]
        kinds = None if codes is None else codes[places]
        if request.diversity and ranked is None:
            vectors = sharded_search.vectors_at(index, found.positions[places], execution)
            places = places[diverse(scores[places], vectors, k, request.diversity, kinds, most)]
        elif kinds is not None:
            places = places[uncrowded(kinds, most)]
        chosen[query] = places[:k]

    with execution.phase("compute"):
        execution.parallel(len(chosen), pick)
    return np.concatenate(chosen), offsets_of([places.size for places in chosen])


def uncrowded(codes: Places, most: int) -> NDArray[np.bool_]:
    """Marks, of candidates best first, those before which fewer than `most` have their code; -1 is
    not limited.
    """
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    free = np.empty(codes.size, np.bool_)
    free[order] = (np.arange(codes.size) - np.searchsorted(ordered, ordered) < most) | (ordered < 0)
    return free


def diverse(
    scores: Scores,
    vectors: NDArray[np.float32],
    k: int,
    diversity: float,
    codes: Places | None,
    most: int,
) -> list[int]:
    """Picks candidates by maximal marginal relevance; returns at most k places, in the order in
    which they are picked.

    The next is the one with the largest (1 - diversity) * relevance - diversity * s: relevance is
    the score, scaled to [0, 1]; s is the largest cosine to one that is picked already.

    Args:
      scores: [m] of candidates, best first. vectors: [m, dim] of the same.
      codes, most: at most so many of one code are picked, -1 is not limited. None: nor is any
        other.
    Source: Carbonell and Goldstein, "The use of MMR, diversity-based reranking ...", SIGIR 1998.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    relevance = scores.astype(np.float64) - scores.min(initial=np.inf)
    relevance = (relevance * ((1 - diversity) / (relevance.max(initial=0.0) or 1.0))).astype(
        np.float32
    )
    similarity = np.full(scores.size, -1, np.float32)
    taken = Counter[int]()
    picked = list[int]()
    while len(picked) < min(k, scores.size):
        place = int((relevance - np.float32(diversity) * similarity).argmax())
        if relevance[place] == -np.inf:  # none is left
            break
        picked.append(place)
        relevance[place] = -np.inf
        np.maximum(similarity, directions @ directions[place], out=similarity)
        if codes is not None and codes[place] >= 0:
            taken[codes[place]] += 1
            if taken[codes[place]] == most:
                relevance[codes == codes[place]] = -np.inf
    return picked

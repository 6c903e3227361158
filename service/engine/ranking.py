"""Answers a Ranking: what is asked, of which candidates, and the best of their scores."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from service.engine import choice, contexts, formulas, lookup
from service.engine.candidates import known_positions
from service.engine.limits import at_most, check_queries, wanted
from service.engine.requests import Offsets, Ranked, Ranking
from service.engine.scoring import Candidates, Scores, score
from service.engine.steps import Steps
from service.errors import InvalidArgument
from service.generations.generation import Generation
from service.generations.loaded_towers import LoadedTower, Work
from service.settings import ServiceSettings

_KNOWN_MAX = 256
"""Makes of requests that are remembered, of each generation."""


@dataclass(frozen=True, eq=False)
class _Asked:
    """What requests of one make ask for: the same tower, formula and heads, and features of the same names sent.

    Attributes:
      missing: inputs of candidates that are not sent.
    """

    tower: LoadedTower
    order: formulas.Ordering
    work: Work
    missing: frozenset[str]


_KNOWN: WeakKeyDictionary[Generation, dict[tuple[object, ...], _Asked]] = WeakKeyDictionary()
"""Found out once: of a request of many features, it is as dear as their lookup."""


def rank(generation: Generation, request: Ranking, settings: ServiceSettings, steps: Steps) -> Ranked:
    """Answers a Ranking with one generation.

    Raises:
      InvalidArgument, TooLarge, NotFound: as `service/errors.py` tells.
      FeatureError: a column does not fit its feature.
    """
    asked = _asked(generation, request)
    k = wanted(request.k, 0, settings.k_max) if request.k else 0
    sent = [*request.context.values(), *request.candidates.values()]
    lookup.check_size(settings, sent, request.candidate_ids, request.context_ids)
    work = asked.work
    candidates = _candidates(generation, request, asked, settings)
    offsets = candidates.offsets
    n = int(offsets.size) - 1
    steps.computed(n, int(offsets[-1]))
    context = contexts.filled(generation, work.inputs["context"], request.context, request.context_ids, n, steps)
    answers = score(generation, asked.tower, work, context, candidates, steps)
    ids = request.candidate_ids
    scores = asked.order.scores(answers, None if ids is None else ids.__getitem__)
    heads = {head: answers[head] for head in request.heads}
    if k:
        starts = offsets[:-1]
        chosen, offsets = best(scores, offsets, k)
        positions = (chosen - starts.repeat(np.diff(offsets))).astype(np.int32)
        ids = None if ids is None else ids[chosen]
        scores, heads = scores[chosen], {head: values[chosen] for head, values in heads.items()}
    else:
        positions = np.arange(scores.size, dtype=np.int32)
        if n > 1:
            positions -= offsets[:-1].astype(np.int32).repeat(np.diff(offsets))
    return Ranked(generation.model, generation.version, ids, positions, scores, heads, offsets)


def _asked(generation: Generation, request: Ranking) -> _Asked:
    """Returns what a request asks for; refuses names that its tower does not know."""
    make = (request.tower, request.formula, request.heads, *request.context, None, *request.candidates)
    known = _KNOWN.get(generation)
    if known is None:
        known = _KNOWN[generation] = {}
    found = known.get(make)
    if found is None:
        name, tower = choice.ranking_tower(generation, request.tower)
        lookup.check_names(request.context, tower.by_role["context"], "context feature", f"tower {name!r}")
        lookup.check_names(request.candidates, tower.by_role["candidate"], "candidate feature", f"tower {name!r}")
        lookup.check_names(request.heads, tower.heads, "head", f"tower {name!r}")
        order = formulas.ordering(tower, request.formula)
        work = tower.work(frozenset([*request.heads, *order.outputs]))
        found = _Asked(tower, order, work, frozenset(work.inputs["candidate"]) - request.candidates.keys())
        if len(known) >= _KNOWN_MAX:
            known.clear()
        known[make] = found
    return found


def best(scores: Scores, offsets: Offsets, k: int) -> tuple[NDArray[np.int64], Offsets]:
    """Picks the k best of each context, best first, equals in the order sent.

    Returns:
      [m'] int64 indices into `scores` and [n + 1] int64 offsets of what was picked.
    """
    counts = np.diff(offsets)
    contexts = np.repeat(np.arange(counts.size), counts)
    order = np.lexsort((-scores, contexts))
    place = np.arange(scores.size) - np.repeat(offsets[:-1], counts)
    return order[place < k], np.concatenate([np.zeros(1, np.int64), np.cumsum(np.minimum(counts, k))])


def _candidates(generation: Generation, request: Ranking, asked: _Asked, settings: ServiceSettings) -> Candidates:
    """Finds out how many candidates there are, whose they are, and where the features come from that were not sent."""
    ids = request.candidate_ids
    if ids is None and not request.candidates:
        raise InvalidArgument("candidates are told by candidate_ids, by their features, or by both; got neither")
    m = int(ids.size) if ids is not None else lookup.count_examples(generation.manifest, request.candidates)
    at_most(m, settings.candidates_max, "candidates in one request", "candidates_max")
    if request.offsets is None:
        offsets = np.array([0, m], np.int64)
    else:
        offsets = request.offsets
        n = max(0, int(offsets.size) - 1)
        check_queries(n, settings)
        lookup.check_offsets(offsets, n, m, "candidates")
    if ids is None or not asked.missing:
        return Candidates(offsets, request.candidates)
    corpus = choice.corpus_of(generation, asked.missing)
    if corpus is None:
        return Candidates(offsets, request.candidates)
    return Candidates(offsets, request.candidates, corpus, known_positions(corpus, ids))

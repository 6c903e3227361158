"""Contexts and candidates -> scores: a context's features are looked up once and broadcast over its candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bundle.columns import repeated
from bundle.features import Column
from service.engine import choice, contexts, formulas, lookup, towers
from service.engine.candidates import known_positions
from service.engine.limits import at_most, check_queries, wanted
from service.engine.requests import Offsets, Ranked, Ranking
from service.engine.steps import Steps
from service.errors import InvalidArgument
from service.generations.generation import Generation, LoadedCorpus
from service.generations.loaded_towers import LoadedTower, Work
from service.settings import ServiceSettings

Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Candidates:
    """m candidates; context i owns offsets[i]:offsets[i + 1]. Features as sent, the rest from the store by position."""

    offsets: Offsets
    sent: Mapping[str, Column]
    corpus: LoadedCorpus | None = None
    positions: NDArray[np.int64] | None = None


def rank(generation: Generation, request: Ranking, settings: ServiceSettings, steps: Steps) -> Ranked:
    """Answers a Ranking with one generation.

    Raises:
      InvalidArgument, TooLarge, NotFound: as `service/errors.py` tells.
      FeatureError: a column does not fit its feature.
    """
    name, tower = choice.ranking_tower(generation, request.tower)
    lookup.check_names(request.context, tower.by_role["context"], "context feature", f"tower {name!r}")
    lookup.check_names(request.candidates, tower.by_role["candidate"], "candidate feature", f"tower {name!r}")
    lookup.check_names(request.heads, tower.heads, "head", f"tower {name!r}")
    order = formulas.ordering(tower, request.formula)
    k = wanted(request.k, 0, settings.k_max) if request.k else 0
    sent = [*request.context.values(), *request.candidates.values()]
    lookup.check_size(settings, sent, request.candidate_ids, request.context_ids)
    work = tower.work(frozenset([*request.heads, *order.outputs]))
    candidates = _candidates(generation, request, work, settings)
    n = int(candidates.offsets.size) - 1
    steps.computed(n, int(candidates.offsets[-1]))
    context = contexts.filled(generation, work.inputs["context"], request.context, request.context_ids, n, steps)
    answers = score(generation, tower, work, context, candidates, steps)
    ids = request.candidate_ids
    scores = order.scores(answers, None if ids is None else ids.__getitem__)
    chosen, offsets = best(scores, candidates.offsets, k)
    return Ranked(
        model=generation.model,
        version=generation.version,
        ids=None if ids is None else ids[chosen],
        positions=(chosen - np.repeat(candidates.offsets[:-1], np.diff(offsets))).astype(np.int32),
        scores=scores[chosen],
        heads={head: answers[head][chosen] for head in request.heads},
        offsets=offsets,
    )


def best(scores: Scores, offsets: Offsets, k: int) -> tuple[NDArray[np.int64], Offsets]:
    """Picks the k best of each context, best first, equals in the order sent; k = 0 keeps all as sent.

    Returns:
      [m'] int64 indices into `scores` and [n + 1] int64 offsets of what was picked.
    """
    if k == 0:
        return np.arange(scores.size), offsets
    counts = np.diff(offsets)
    contexts = np.repeat(np.arange(counts.size), counts)
    order = np.lexsort((-scores, contexts))
    place = np.arange(scores.size) - np.repeat(offsets[:-1], counts)
    return order[place < k], np.concatenate([np.zeros(1, np.int64), np.cumsum(np.minimum(counts, k))])


def _candidates(generation: Generation, request: Ranking, work: Work, settings: ServiceSettings) -> Candidates:
    """Finds out how many candidates there are, whose they are, and where the features come from that were not sent."""
    ids = request.candidate_ids
    if ids is None and not request.candidates:
        raise InvalidArgument("candidates are told by candidate_ids, by their features, or by both; got neither")
    m = int(ids.size) if ids is not None else lookup.count_examples(generation.manifest, request.candidates)
    at_most(m, settings.candidates_max, "candidates in one request", "candidates_max")
    offsets = np.array([0, m], np.int64) if request.offsets is None else request.offsets
    n = max(0, int(offsets.size) - 1)
    check_queries(n, settings)
    lookup.check_offsets(offsets, n, m, "candidates")
    missing = set(work.inputs["candidate"]) - set(request.candidates)
    if ids is None or not missing:
        return Candidates(offsets, request.candidates)
    corpus = choice.corpus_of(generation, missing)
    if corpus is None:
        return Candidates(offsets, request.candidates)
    return Candidates(offsets, request.candidates, corpus, known_positions(corpus, ids))


def score(
    generation: Generation,
    tower: LoadedTower,
    work: Work,
    context: Mapping[str, Column],
    candidates: Candidates,
    steps: Steps,
) -> dict[str, Scores]:
    """Runs what some outputs of a ranking tower need over contexts and candidates; by name, [m] float32 each."""
    counts = np.diff(candidates.offsets)
    m = int(candidates.offsets[-1])
    values = towers.Values(work, counts, m)
    lookup.write(generation, values.once, context, int(counts.size), steps)
    if m == 0:
        return {name: np.empty(0, np.float32) for name in work.outputs}
    columns = dict(candidates.sent)
    if candidates.corpus is not None and candidates.positions is not None:
        stored = set(candidates.corpus.page.features)
        wanted_names = [name for name in work.inputs["candidate"] if name in stored and name not in columns]
        with steps.phase("lookup"):
            columns.update(candidates.corpus.store.features(candidates.positions, wanted_names))
    columns.update({name: repeated(name, context[name], counts) for name in work.crossed if name in context})
    lookup.write(generation, values.each, columns, m, steps)
    outputs = towers.run(tower, work, values, generation.model, steps)
    return {name: array.reshape(m) for name, array in outputs.items()}

"""Retrieve, then rank what was retrieved: one generation, one answer."""

from __future__ import annotations

from service.engine import candidates, choice, contexts, embedding, formulas, lookup, ranking, retrieval, scoring
from service.engine.limits import at_most, check_queries, wanted
from service.engine.requests import Recommendation, Recommended
from service.engine.steps import Steps
from service.errors import InvalidArgument
from service.generations.generation import Generation, LoadedCorpus
from service.settings import ServiceSettings

_CANDIDATES_DEFAULT = 100
_CANDIDATES_PER_K = 10


def recommend(generation: Generation, request: Recommendation, settings: ServiceSettings, steps: Steps) -> Recommended:
    """Answers a Recommendation: what one generation retrieves, the same one ranks.

    Raises:
      InvalidArgument, TooLarge, NotFound: as `service/errors.py` tells.
      FeatureError: a column does not fit its feature.
    """
    index_name, index = choice.index(generation, request.index)
    name, tower = choice.ranking_tower(generation, request.tower)
    query_tower = generation.towers[index.page.query_tower]
    order = formulas.ordering(tower, request.formula)
    context = tower.by_role["context"]
    what = f"index {index_name!r} with tower {name!r}"
    lookup.check_names(request.features, {**query_tower.inputs, **context}, "feature", what)
    candidates.check_attributes(index.corpus, request.attributes)
    excluded_ids = request.exclude.ids if request.exclude else None
    lookup.check_size(settings, request.features.values(), excluded_ids, request.context_ids)
    n = contexts.count(generation, request.features, request.context_ids)
    check_queries(n, settings)
    k = wanted(request.k, retrieval.K_DEFAULT, settings.k_max)
    fetched = _fetched(index.corpus, request.candidates, k, n, settings)

    excluded = candidates.excluded_positions(index.corpus, request.exclude, n)
    work = tower.work(frozenset(order.outputs))
    taken = dict.fromkeys((*query_tower.inputs, *work.inputs["context"]))
    features = contexts.filled(generation, taken, request.features, request.context_ids, n, steps)
    vectors = embedding.result(generation, query_tower, features, n, steps)
    found = retrieval.nearest(index, vectors, fetched, excluded, steps)
    steps.computed(n, int(found.positions.size))

    shown = scoring.Candidates(found.offsets, {}, index.corpus, found.positions)
    answers = scoring.score(generation, tower, work, features, shown, steps)
    scores = order.scores(answers, lambda place: index.corpus.store.ids(found.positions[place : place + 1])[0])
    chosen, offsets = ranking.best(scores, found.offsets, k)
    with steps.phase("lookup"):
        neighbors = candidates.told(index.corpus, found.positions[chosen], scores[chosen], offsets, request.attributes)
    return Recommended(generation.model, generation.version, neighbors, found.scores[chosen])


def _fetched(corpus: LoadedCorpus, candidates: int, k: int, n: int, settings: ServiceSettings) -> int:
    if candidates < 0:
        raise InvalidArgument(f"candidates is {candidates}; 0 stands for max({_CANDIDATES_DEFAULT}, 10 k)")
    fetched = candidates or max(_CANDIDATES_DEFAULT, _CANDIDATES_PER_K * k)
    if fetched < k:
        raise InvalidArgument(f"candidates is {fetched}, fewer than the k = {k} recommendations wanted")
    fetched = min(fetched, corpus.page.size)
    at_most(n * fetched, settings.candidates_max, "candidates to rank in one request", "candidates_max")
    return fetched

"""Retrieves candidates, then ranks them, with one model version."""

from __future__ import annotations

from service.config import ServiceSettings
from service.engine import contexts, embedding, formulas, ranking, retrieval, scoring, validation
from service.engine.context import Execution
from service.engine.requests import Recommendation, Recommended
from service.errors import InvalidArgument
from service.models.version import LoadedStore, ModelVersion

_CANDIDATES_DEFAULT = 100
_CANDIDATES_PER_K = 10


def recommend(
    model_version: ModelVersion, request: Recommendation, settings: ServiceSettings, execution: Execution
) -> Recommended:
    """Answers a Recommendation with one model version.

    Raises:
      InvalidArgument, TooLarge, NotFound: see service/errors.py.
      FeatureError: a column does not fit its feature.
    """
    index_name, index = validation.choose_index(model_version, request.index)
    name, tower = validation.choose_ranking_tower(model_version, request.tower)
    query_tower, corpus = model_version.towers[index.entry.query_tower], index.corpus
    order = formulas.ordering(tower, request.formula)
    known = {**query_tower.inputs, **tower.by_role["context"]}
    validation.check_names(request.features, known, "feature", f"index {index_name!r} with tower {name!r}")
    validation.check_attributes(corpus, request.attributes)
    excluded_ids = request.exclude.ids if request.exclude else None
    validation.check_values(settings, request.features.values(), excluded_ids, request.context_ids)
    n = contexts.count(model_version, request.features, request.context_ids)
    validation.check_queries(n, settings)
    k = validation.check_k(request.k, retrieval.K_DEFAULT, settings.max_k)
    fetched = _candidates_per_query(corpus, request.candidates, k, n, settings)

    excluded = retrieval.excluded_positions(corpus, request.exclude, n)
    plan = tower.plan(frozenset(order.outputs))
    needed = dict.fromkeys((*query_tower.inputs, *plan.inputs["context"]))
    features = contexts.complete(model_version, needed, request.features, request.context_ids, n, execution)
    vectors = embedding.result(model_version, query_tower, features, n, execution)
    found = retrieval.nearest(index, vectors, fetched, excluded, execution)
    execution.computed(n, int(found.positions.size))

    candidates = scoring.Candidates(found.offsets, {}, corpus, found.positions)
    outputs = scoring.score(model_version, tower, plan, features, candidates, execution)
    scores = order.scores(outputs, lambda place: corpus.store.ids(found.positions[place : place + 1])[0])
    chosen, offsets = ranking.best(scores, found.offsets, k)
    with execution.phase("lookup"):
        neighbors = retrieval.neighbors(corpus, found.positions[chosen], scores[chosen], offsets, request.attributes)
    return Recommended(model_version.model, model_version.version, neighbors, found.scores[chosen])


def _candidates_per_query(corpus: LoadedStore, candidates: int, k: int, n: int, settings: ServiceSettings) -> int:
    if candidates < 0:
        raise InvalidArgument(f"candidates is {candidates}; 0 stands for max({_CANDIDATES_DEFAULT}, 10 k)")
    fetched = candidates or max(_CANDIDATES_DEFAULT, _CANDIDATES_PER_K * k)
    if fetched < k:
        raise InvalidArgument(f"candidates is {fetched}, fewer than the k = {k} recommendations wanted")
    fetched = min(fetched, corpus.entry.size)
    validation.at_most(n * fetched, settings.max_candidates, "candidates to rank in one request", "max_candidates")
    return fetched

"""Retrieves candidates, then ranks them, with one model version."""

from __future__ import annotations

from service.config import ServiceSettings
from service.engine import embedding, formulas, lookup, ranking, retrieval, scoring, validation
from service.engine.context import Execution
from service.engine.requests import K_DEFAULT, Recommendation, Recommended
from service.errors import InvalidArgument
from service.models.version import ModelVersion


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
    n = lookup.count_queries(model_version, request.features, request.context_ids, settings)
    k = validation.check_k(request.k, K_DEFAULT, settings.max_k)
    if request.fetched < k:
        raise InvalidArgument(f"candidates is {request.fetched}, fewer than the k = {k} recommendations wanted")
    fetched = min(request.fetched, corpus.entry.size)
    validation.at_most(settings, "max_candidates", n * fetched, "the request, over all queries,")

    excluded = retrieval.excluded_positions(corpus, request.exclude, n)
    plan = tower.plan(frozenset(order.outputs))
    needed = dict.fromkeys((*query_tower.inputs, *plan.inputs["context"]))
    features = lookup.complete(model_version, needed, request.features, request.context_ids, n, execution)
    vectors = embedding.result(model_version, query_tower, features, n, execution)
    found = retrieval.nearest(index, vectors, fetched, excluded, execution)
    execution.computed(n, int(found.positions.size))

    candidates = scoring.Candidates(found.offsets, {}, corpus, found.positions)
    outputs = scoring.score(model_version, tower, plan, features, candidates, execution)
    scores = order.scores(outputs, lambda place: corpus.store.ids(found.positions[place : place + 1])[0])
    chosen, offsets = ranking.best(scores, found.offsets, k)
    with execution.phase("lookup"):
        best = retrieval.Found(found.positions[chosen], scores[chosen], offsets)
        neighbors = retrieval.neighbors(corpus, best, request.attributes)
    return Recommended(model_version.model, model_version.version, neighbors, found.scores[chosen])

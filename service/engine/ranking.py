"""Answers a Ranking: the scores of candidates for contexts, and the best of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of
from service.config import ServiceSettings
from service.engine import formulas, lookup, validation
from service.engine.context import Execution
from service.engine.requests import Offsets, Ranked, Ranking
from service.engine.scoring import Candidates, Scores, score
from service.errors import InvalidArgument
from service.models.towers import TowerPlan
from service.models.version import ModelVersion


def rank(
    model_version: ModelVersion, request: Ranking, settings: ServiceSettings, execution: Execution
) -> Ranked:
    """Answers a Ranking with one model version.

    Raises:
      InvalidArgument, TooLarge, NotFound: see service/errors.py.
      FeatureError: a column does not fit its feature.
    """
    name, tower = validation.choose_ranking_tower(model_version, request.tower)
    where = f"tower {name!r}"
    validation.check_names(request.context, tower.by_role["context"], "context feature", where)
    validation.check_names(
        request.candidates, tower.by_role["candidate"], "candidate feature", where
    )
    validation.check_names(request.heads, tower.heads, "head", where)
    order = formulas.ordering(tower, request.formula)
    k = validation.check_k(request.k, 0, settings.max_k)
    columns = [*request.context.values(), *request.candidates.values()]
    validation.check_values(settings, columns, request.candidate_ids, request.context_ids)
    plan = tower.plan(frozenset([*request.heads, *order.outputs]))
    candidates = _candidates(model_version, request, plan, settings)
    offsets, ids = candidates.offsets, request.candidate_ids
    n = int(offsets.size) - 1
    execution.computed(n, int(offsets[-1]))
    needed = plan.inputs["context"]
    context = lookup.complete(
        model_version, needed, request.context, request.context_ids, n, execution
    )
    outputs = score(model_version, tower, plan, context, candidates, execution)
    scores = order.scores(outputs, None if ids is None else ids.__getitem__)
    heads = {head: outputs[head] for head in request.heads}
    positions, kept = np.arange(scores.size), offsets
    if k:
        positions, kept = best(scores, offsets, k)
        ids = None if ids is None else ids[positions]
        scores, heads = (
            scores[positions],
            {head: values[positions] for head, values in heads.items()},
        )
    own = (positions - offsets[:-1].repeat(np.diff(kept))).astype(np.int32)
    return Ranked(model_version.model, model_version.version, ids, own, scores, heads, kept)


def best(scores: Scores, offsets: Offsets, k: int) -> tuple[NDArray[np.int64], Offsets]:
    """Picks the k best of each context, best first, equals in the order sent.

    Returns:
      [m'] int64 indices into `scores`, and the [n + 1] int64 offsets of each context's.
    """
    counts = np.diff(offsets)
    owners = np.repeat(np.arange(counts.size), counts)
    order = np.lexsort((-scores, owners))
    place = np.arange(scores.size) - np.repeat(offsets[:-1], counts)
    return order[place < k], offsets_of(np.minimum(counts, k))


def _candidates(
    model_version: ModelVersion, request: Ranking, plan: TowerPlan, settings: ServiceSettings
) -> Candidates:
    """Determines how many candidates there are, whose they are, and where features come from that were not sent."""
    ids = request.candidate_ids
    if ids is None and not request.candidates:
        raise InvalidArgument(
            "candidates are given by candidate_ids, by their features, or by both; got neither"
        )
    m = (
        int(ids.size)
        if ids is not None
        else lookup.count_examples(model_version.manifest, request.candidates)
    )
    validation.at_most(settings, "max_candidates", m, "the request")
    offsets = request.offsets
    if offsets is None:
        offsets = np.array([0, m], np.int64)
    else:
        n = max(0, int(offsets.size) - 1)
        validation.check_queries(n, settings)
        validation.check_offsets(offsets, n, m, "candidates")
    missing = set(plan.inputs["candidate"]) - request.candidates.keys()
    corpus = (
        validation.choose_corpus(model_version, missing) if missing and ids is not None else None
    )
    if corpus is None or ids is None:
        return Candidates(offsets, request.candidates)
    return Candidates(offsets, request.candidates, corpus, lookup.known_positions(corpus, ids))

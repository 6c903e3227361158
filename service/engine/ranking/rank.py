"""Ranks candidates: scores them for each context, and returns all of them or the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import lengths_of, offsets_of
from service.config import ServiceSettings
from service.engine.calls import Offsets, Ranked, Ranking, check_offsets
from service.engine.context import Execution
from service.engine.features import lookup
from service.engine.limits import at_most, check_k, check_queries, check_scores, check_values
from service.engine.names import check_names, choose_corpus, choose_ranking_tower
from service.engine.ranking import formulas
from service.engine.ranking.scoring import Candidates, Scores, score
from service.errors import InvalidArgument
from service.versions.loaded_towers import LoadedTower, TowerPlan
from service.versions.version import ModelVersion


@dataclass(frozen=True)
class _Plan:
    """What a ranking computes, validated.

    Attributes:
      tower: The ranking tower.
      outputs: The outputs of the tower that the request needs: its heads, and those of the formula.
      ordering: Gives the score that candidates are ordered by.
      k: How many candidates to return per context; 0 returns all of them in the order sent.
    """

    tower: LoadedTower
    outputs: TowerPlan
    ordering: formulas.Ordering
    k: int


async def rank(
    model_version: ModelVersion, request: Ranking, settings: ServiceSettings, execution: Execution
) -> Ranked:
    """Scores the candidates of each context and returns them, or the k best, best first.

    Raises:
      InvalidArgument, TooLarge, NotFound: See service/errors.py.
      FeatureError: A column does not fit its feature.
    """
    plan = _plan(model_version, request, settings)
    candidates = _candidates(model_version, request, plan.outputs, settings)
    counts = lengths_of(candidates.offsets)
    returned = int(np.minimum(counts, plan.k).sum() if plan.k else counts.sum())
    check_scores(
        returned, request.candidate_ids, len(request.heads), settings, execution.request_count
    )
    context_count = int(counts.size)
    execution.computed(context_count, int(candidates.offsets[-1]))

    context = lookup.complete(
        model_version,
        plan.outputs.inputs["context"],
        request.context,
        request.context_ids,
        context_count,
        execution,
    )
    outputs = await score(model_version, plan.tower, plan.outputs, context, candidates, execution)

    ids = request.candidate_ids
    scores = plan.ordering.scores(outputs, None if ids is None else ids.__getitem__)
    heads = {head: outputs[head] for head in request.heads}
    # Everything is scored before anything is dropped: a formula may need all heads.
    return _select(model_version, request, candidates.offsets, scores, heads, plan.k)


def best(scores: Scores, offsets: Offsets, k: int) -> tuple[NDArray[np.int64], Offsets]:
    """Picks the k best candidates of each context, best first; equal scores in the order sent.

    Returns:
      [m'] int64 indices into `scores`, and the [n + 1] int64 offsets of each context's.
    """
    counts = lengths_of(offsets)
    owners = np.arange(counts.size).repeat(counts)
    order = np.lexsort((-scores, owners))
    rank_in_context = np.arange(scores.size) - offsets[:-1].repeat(counts)
    return order[rank_in_context < k], offsets_of(np.minimum(counts, k))


def _plan(model_version: ModelVersion, request: Ranking, settings: ServiceSettings) -> _Plan:
    """Validates the names and limits of a request."""
    name, tower = choose_ranking_tower(model_version, request.tower)
    where = f"tower {name!r}"
    check_names(request.context, tower.by_role["context"], "context feature", where)
    check_names(request.candidate_features, tower.by_role["candidate"], "candidate feature", where)
    check_names(request.heads, tower.heads, "head", where)

    ordering = formulas.ordering(tower, request.formula)
    k = check_k(request.k, 0, settings.max_k)
    columns = [*request.context.values(), *request.candidate_features.values()]
    check_values(settings, columns, request.candidate_ids, request.context_ids)

    outputs = tower.plan(frozenset([*request.heads, *ordering.outputs]))
    return _Plan(tower, outputs, ordering, k)


def _candidates(
    model_version: ModelVersion, request: Ranking, plan: TowerPlan, settings: ServiceSettings
) -> Candidates:
    """Returns the candidates of a request, with their corpus if it has to supply features."""
    ids = request.candidate_ids
    if ids is None and not request.candidate_features:
        raise InvalidArgument(
            "no candidates in the request: set candidate_ids, candidate_features, or both"
        )
    if ids is None:
        count = lookup.count_examples(model_version.manifest, request.candidate_features)
    else:
        count = int(ids.size)
    at_most(settings, "max_candidates", count, "the request")

    offsets = request.offsets
    if offsets is None:
        offsets = np.array([0, count], np.int64)
    else:
        context_count = max(0, int(offsets.size) - 1)
        check_queries(context_count, settings)
        check_offsets(offsets, context_count, count, "candidates")

    missing = set(plan.inputs["candidate"]) - request.candidate_features.keys()
    if ids is None or not missing:
        return Candidates(offsets, request.candidate_features)
    corpus = choose_corpus(model_version, missing)
    if corpus is None:
        return Candidates(offsets, request.candidate_features)
    return Candidates(
        offsets, request.candidate_features, corpus, lookup.known_positions(corpus, ids)
    )


def _select(
    model_version: ModelVersion,
    request: Ranking,
    offsets: Offsets,
    scores: Scores,
    heads: Mapping[str, Scores],
    k: int,
) -> Ranked:
    """Returns the k best candidates of each context, or all of them in the order sent."""
    ids = request.candidate_ids
    positions = np.arange(scores.size)
    kept_offsets = offsets
    if k:
        positions, kept_offsets = best(scores, offsets, k)
        ids = None if ids is None else ids[positions]
        scores = scores[positions]
        heads = {head: values[positions] for head, values in heads.items()}

    first_of_context = offsets[:-1].repeat(lengths_of(kept_offsets))
    return Ranked(
        model=model_version.model,
        version=model_version.version,
        ids=ids,
        positions=(positions - first_of_context).astype(np.int32),
        scores=scores,
        heads=heads,
        offsets=kept_offsets,
    )

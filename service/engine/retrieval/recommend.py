"""Retrieves candidates from one or several sources, then ranks them, with one model version and
under one deadline.

What ranking and diversity took before tells what they will take. If the deadline leaves too little
time for both, diversity is dropped; if it leaves too little for the ranking, only the best
retrieved candidates are ranked, and the others follow in the order of retrieval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import lengths_of, offsets_of
from service.config import ServiceSettings
from service.engine import lookup
from service.engine.calls import (
    K_DEFAULT,
    Columns,
    Explanation,
    Offsets,
    Recommendation,
    Retrieved,
)
from service.engine.execution import Execution
from service.engine.limits import check_k
from service.engine.names import check_names, choose_ranking_tower
from service.engine.pace import MARGIN, Pace
from service.engine.ranking import formulas
from service.engine.ranking.formulas import Scores
from service.engine.ranking.rank import Candidates, CandidatesNotFinite, score
from service.engine.retrieval import reordering, retrieve, search, sources
from service.engine.retrieval.pool import Pool, Retriever
from service.engine.retrieval.quotas import Quotas
from service.engine.retrieval.sources import Sources
from service.versions.version import LoadedStore, ModelVersion, TowerPlan


async def recommend(
    model_version: ModelVersion,
    request: Recommendation,
    settings: ServiceSettings,
    execution: Execution,
) -> Retrieved:
    """Answers a Recommendation with one model version.

    Raises:
      InvalidArgument, TooLarge, NotFound: see service/errors.py.
      FeatureError: a column does not fit its feature.
    """
    name, tower = choose_ranking_tower(model_version, request.tower)
    k = check_k(request.k, K_DEFAULT, settings.max_k)
    planned = sources.plan(model_version, request, k)
    corpus = planned.corpus
    order = formulas.ordering(tower, request.formula, _formula_names(planned))
    query_towers = [
        model_version.towers[index.entry.query_tower] for index in planned.indexes.values()
    ]
    inputs = {*tower.by_role["context"], *planned.list_inputs}
    for query_tower in query_towers:
        inputs |= query_tower.inputs.keys()
    owner = f"{planned.owner} with tower {name!r}"
    check_names(request.context, inputs, "context", "a feature", owner)
    listed = [source.ids.ids for source in request.sources if source.ids is not None]
    retrieve.check_selection(corpus, request, settings, listed, *request.context.values())
    n = lookup.count_queries(
        model_version, request.context, request.context_ids, settings, execution
    )
    retrieve.check_response(corpus, request, n, k, settings, execution)
    reordering.check(request, corpus, k)
    planned.check_count(request, n, settings)

    plan = tower.plan(frozenset(order.outputs))
    needed = dict.fromkeys([*plan.inputs["context"], *planned.list_inputs])
    for query_tower in query_towers:
        needed |= dict.fromkeys(query_tower.inputs)
    features = lookup.complete(
        model_version, needed, request.context, request.context_ids, n, execution
    )
    retriever = Retriever(model_version, planned, request, features, n, k, settings, execution)
    pool = await retriever.pool()
    ranker = _Ranker(model_version, order, plan, corpus, features)
    steps = _plan_steps(ranker, request, pool, k, execution)
    reasons = [reason for reason in (*pool.reasons, steps.reason) if reason]
    if reasons:
        execution.check_alone()
        execution.count("degraded", 1, model_version.model)
    try:
        scores, ranked = await ranker.score(pool.neighbors, steps.ranked_max, execution)
    except CandidatesNotFinite as problem:
        execution.check_alone()
        reasons.append(_left_out(problem, pool.neighbors))
        pool = pool.only(problem.kept(pool.sources.size))
        scores, ranked = await ranker.score(pool.neighbors, steps.ranked_max, execution)
    if ranked is None and not request.formula:
        execution.scored(tower, scores, n)
    shaped = replace(request, diversity=steps.diversity)
    quotas = None
    if request.sources:
        quotas = Quotas(request.sources, pool.sources)
    with steps.diversifying.measured(bool(steps.diversity)):
        chosen, offsets = await reordering.best(
            corpus, planned.index, pool.neighbors, scores, k, shaped, execution, ranked, quotas
        )
    execution.begin("lookup")
    return _answer(model_version, planned, pool, request, chosen, offsets, scores, k, reasons)


def _formula_names(planned: Sources) -> list[str]:
    """Returns what a formula may take beside the outputs of the tower."""
    names = reordering.numeric_attributes(planned.corpus)
    if planned.index is not None:
        names.append("retrieval_score")
    return names


def _answer(
    model_version: ModelVersion,
    planned: Sources,
    pool: Pool,
    request: Recommendation,
    chosen: NDArray[np.int64],
    offsets: Offsets,
    scores: Scores,
    k: int,
    reasons: Sequence[str],
) -> Retrieved:
    """Returns the recommendations as clients see them.

    Args:
      model_version: The model version.
      planned: The sources.
      pool: The candidates that were ranked.
      request: The request.
      chosen: [m] where the recommendations are in the pool.
      offsets: [n + 1], which of these belong to each context.
      scores: Those of all candidates of the pool.
      k: The number of recommendations that each context wants.
      reasons: Why the response is degraded; (): it is not.
    """
    positions = pool.neighbors.positions[chosen]
    best = pool.neighbors._replace(positions=positions, scores=scores[chosen], offsets=offsets)
    unexplained = replace(request, explain=False)
    answer = retrieve.answer(model_version, planned.corpus, best, unexplained, k)
    explanations: tuple[Explanation, ...] = ()
    if request.explain and not planned.names:
        explanations = search.explained(best, request, k)
    elif request.explain:
        explanations = _explained(pool, offsets, request, k)
    answer = replace(
        answer,
        explanations=explanations,
        retrieval_scores=pool.neighbors.scores[chosen],
        degraded_reason="; ".join(reasons),
    )
    if not planned.names:
        return answer
    return replace(answer, source_names=planned.names, sources=pool.sources[chosen])


def _explained(
    pool: Pool, offsets: Offsets, request: Recommendation, k: int
) -> tuple[Explanation, ...]:
    """Returns how the first index was searched, and why contexts have fewer than k
    recommendations.
    """
    explanations = []
    counts = lengths_of(pool.neighbors.offsets).tolist()
    sizes = lengths_of(offsets).tolist()
    for explanation, count, size in zip(pool.neighbors.explanations, counts, sizes, strict=True):
        shortfall = ""
        if size < k and request.offset is not None:
            shortfall = f"the pool of {count} candidates has no more"
        elif size < k:
            shortfall = (
                f"the sources have {count} candidates that pass the filter, the exclusions and the "
                f"deny list; min_score, crowding and max_count leave {size}"
            )
        explanations.append(explanation._replace(shortfall=shortfall))
    return tuple(explanations)


def _left_out(problem: CandidatesNotFinite, found: search.Found) -> str:
    """Returns which candidates cannot be ranked."""
    return (
        f"{len(problem.messages)} of {found.positions.size} candidates are left out, because they "
        f"read rows that hold NaN or an infinity, such as one of table {problem.table!r}"
    )


@dataclass(frozen=True)
class _Steps:
    """What a recommendation has time for.

    Attributes:
      ranked_max: candidates to rank for each query; None: all.
      diversity: that of the request, or 0.
      diversifying: pace of the step that makes the list diverse.
      reason: what is left out and why, in a sentence; empty: nothing is.
    """

    ranked_max: int | None
    diversity: float
    diversifying: Pace
    reason: str = ""


def _plan_steps(
    ranker: _Ranker, request: Recommendation, pool: Pool, k: int, execution: Execution
) -> _Steps:
    if request.diversity and not pool.has_vectors:
        steps = _plan_steps(ranker, replace(request, diversity=0.0), pool, k, execution)
        unread = "the list is not made diverse: the vectors of some candidates cannot be read"
        return replace(steps, reason="; ".join(filter(None, [steps.reason, unread])))

    m = int(pool.sources.size)
    version = ranker.model_version
    kind = ("diversity", version.model, version.version)
    picked = k + (request.offset or 0)
    diversifying = Pace(execution, kind, m * picked if request.diversity else 0)
    diversity_s = diversifying.expected_s
    ranking_s = ranker.pace(m, execution).expected_s
    left_s = execution.least_left_s
    if (ranking_s + diversity_s) * MARGIN <= left_s:
        return _Steps(None, request.diversity, diversifying)

    remained = f"{left_s * 1000:.0f} ms remained, and "
    without = ""
    if request.diversity:
        diversifying.dropped()
        without = "; the list is not made diverse"
    if ranking_s * MARGIN <= left_s:
        taken = f"ranking and diversity take about {(ranking_s + diversity_s) * 1000:.0f} ms"
        return _Steps(None, 0.0, diversifying, remained + taken + without)

    share = max(0.0, left_s) / (ranking_s * MARGIN)
    counts = lengths_of(pool.neighbors.offsets)
    ranked_max = int(m * share) // counts.size
    ranked = int(np.minimum(counts, ranked_max).sum())
    if not ranked:
        ranker.pace(m, execution).dropped()
    reason = (
        f"{ranked} of {m} candidates are ranked: {remained}ranking all takes about "
        f"{ranking_s * 1000:.0f} ms; the others follow in the order of retrieval"
    )
    return _Steps(ranked_max, 0.0, diversifying, reason + without)


@dataclass(frozen=True)
class _Ranker:
    """Ranks what was retrieved, or the best of it. `context`: features of the n contexts."""

    model_version: ModelVersion
    order: formulas.Ordering
    plan: TowerPlan
    corpus: LoadedStore
    context: Columns

    async def score(
        self, found: search.Found, ranked_max: int | None, execution: Execution
    ) -> tuple[Scores, NDArray[np.bool_] | None]:
        """Scores the best retrieved candidates of each context; the others keep the score of their
        retrieval.

        Args:
          found: what was retrieved.
          ranked_max: candidates of each context to score; None: all.
        Returns:
          [m] scores; [m] whether they are of the ranking, None if all are.
        """
        if ranked_max is None:
            return await self._rank(found, execution), None
        counts = np.diff(found.offsets)
        number = np.arange(found.positions.size) - np.repeat(found.offsets[:-1], counts)
        ranked = number < ranked_max
        scores = found.scores.copy()
        if ranked_max:
            best = found._replace(
                positions=found.positions[ranked],
                scores=found.scores[ranked],
                offsets=offsets_of(np.minimum(counts, ranked_max)),
            )
            try:
                scores[ranked] = await self._rank(best, execution)
            except CandidatesNotFinite as problem:
                raise problem.among(np.flatnonzero(ranked)) from problem
        return scores, ranked

    def pace(self, candidates: int, execution: Execution) -> Pace:
        """Returns how long it takes to rank some candidates."""
        version = self.model_version
        kind = ("ranking", version.model, version.version, self.order.tower.name, self.plan.outputs)
        return Pace(execution, kind, candidates)

    async def _rank(self, found: search.Found, execution: Execution) -> Scores:
        """Returns [m] scores of candidates; measures what that took."""
        m = int(found.positions.size)
        execution.computed(int(found.offsets.size) - 1, m)
        values = {}
        formula = self.order.formula
        if self.plan.outputs:
            candidates = Candidates(found.offsets, {}, self.corpus, found.positions)
            tower = self.order.tower
            version = self.model_version
            with self.pace(m, execution).measured():
                values = await score(version, tower, self.plan, self.context, candidates, execution)
        others = [] if formula is None else [name for name in formula.names if name not in values]
        attributes = [name for name in others if name != "retrieval_score"]
        numbers = self.corpus.store.numbers(found.positions, attributes) if attributes else {}
        return self.order.scores(
            {"retrieval_score": found.scores, **numbers, **values},
            reordering.id_of(self.corpus, found),
        )

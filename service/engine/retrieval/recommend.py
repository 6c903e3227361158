"""Retrieves candidates from one or several sources, then ranks them, with one model version and
under one deadline.

A stage may come before the ranking: a cheaper ranking tower, which chooses the candidates that are
ranked.

The time that the stage, ranking and diversity took before predicts what they will take. If the
deadline leaves too little time for the stage, it is left out, and the first retrieved candidates
are kept. If it leaves too little for ranking and diversity, diversity is dropped; if it leaves too
little for the ranking, only the best candidates are ranked, and the others follow in the order of
the stage, or of the retrieval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import lengths_of
from service.config import ServiceSettings
from service.engine import lookup
from service.engine.calls import (
    K_DEFAULT,
    Columns,
    Explanation,
    Offsets,
    RecommendationRequest,
    RetrievalResult,
)
from service.engine.execution import Execution
from service.engine.pace import MARGIN, Pace
from service.engine.ranking import formulas
from service.engine.ranking.formulas import Scores
from service.engine.ranking.pool_scores import LeftOut, PoolTower
from service.engine.ranking.rank import Candidates
from service.engine.retrieval import reordering, retrieve, search, sources, stages
from service.engine.retrieval.pool import Pool, Retriever
from service.engine.retrieval.quotas import Quotas
from service.engine.retrieval.sources import Sources
from service.engine.retrieval.stages import Stage, StagedPool
from service.engine.validation import check_k, check_names, choose_ranking_tower
from service.versions.version import LoadedStore, ModelVersion, TowerPlan


async def recommend(
    model_version: ModelVersion,
    request: RecommendationRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> RetrievalResult:
    """Retrieves candidates for n contexts and ranks them, with one model version.

    Raises:
      InvalidArgument, TooLarge, NotFound: See service/errors.py.
      FeatureError: A column does not fit its feature.
    """
    name, tower = choose_ranking_tower(model_version, request.tower)
    k = check_k(request.k, K_DEFAULT, settings.max_k)
    planned = sources.plan(model_version, request, k)
    corpus = planned.corpus
    order = formulas.ordering(tower, request.formula, _formula_names(planned))
    query_towers = [
        model_version.towers[index.entry.query_tower] for index in planned.indexes.values()
    ]
    stage = stages.choose(model_version, request, name, k)
    # One context serves all steps: the sources, the stage and the ranking.
    inputs = {*model_version.ranking_inputs(name, "context"), *planned.list_inputs}
    for query_tower in query_towers:
        inputs |= query_tower.inputs.keys()
    owner = f"{planned.owner} with tower {name!r}"
    check_names(request.context, inputs, "context", "a feature", owner)
    listed = [source.ids.ids for source in request.sources if source.ids is not None]
    retrieve.check_selection(corpus, request, settings, listed, *request.context.values())
    # Everything is validated before anything is computed: an error costs little.
    n = lookup.count_queries(
        model_version, request.context, request.context_ids, settings, execution
    )
    retrieve.check_response(corpus, request, n, k, settings, execution)
    reordering.check(request, corpus, k)
    planned.check_count(request, n, settings, execution)

    plan = tower.plan(frozenset(order.outputs))
    # Of these inputs, only what the request computes with is read from the store.
    needed = dict.fromkeys([*plan.inputs["context"], *planned.list_inputs])
    if stage is not None:
        needed |= dict.fromkeys(stage.plan.inputs["context"])
    for query_tower in query_towers:
        needed |= dict.fromkeys(query_tower.inputs)
    features = lookup.complete(
        model_version, needed, request.context, request.context_ids, n, execution
    )
    retriever = Retriever(model_version, planned, request, features, n, k, settings, execution)
    pool = await retriever.retrieve()
    execution.count_examples(n)
    staged = StagedPool.of_retrieval(pool)
    if stage is not None:
        chooser = _Ranker(model_version, stage.order, stage.plan, corpus, features)
        staged = await _pass_stage(stage, chooser, request, pool, k, execution)
    ranker = _Ranker(model_version, order, plan, corpus, features, bool(request.formula))
    steps = _plan_steps(ranker, request, staged, k, execution)
    reasons = [reason for reason in (*pool.reasons, *staged.reasons, steps.reason) if reason]
    if reasons:
        execution.check_alone()
        execution.count("degraded", 1, model_version.model)
    scorable, scores, ranked, left_out = await ranker.score(staged, steps.ranked_max, execution)
    if left_out:
        reasons += left_out
        staged = staged.only(scorable)
    pool = staged.pool
    if ranked is None and not request.formula:
        execution.count_scores(tower, scores, n)
    # Time may have left no room for diversity.
    shaped = replace(request, diversity=steps.diversity)
    quotas = None
    if request.sources:
        quotas = Quotas(request.sources, pool.sources)
    with steps.diversifying.measured(bool(steps.diversity)):
        chosen, offsets = await reordering.pick_best(
            corpus, planned.index, pool.neighbors, scores, k, shaped, execution, ranked, quotas
        )
    execution.begin("lookup")
    result = _result(model_version, planned, staged, request, chosen, offsets, scores, k, reasons)
    return _explain_stage(result, stage, staged, k)


def _formula_names(planned: Sources) -> list[str]:
    """Returns the names that a formula may use beside the outputs of the tower."""
    names = reordering.numeric_attributes(planned.corpus)
    if planned.index is not None:
        names.append("retrieval_score")
    return names


def _result(
    model_version: ModelVersion,
    planned: Sources,
    staged: StagedPool,
    request: RecommendationRequest,
    chosen: NDArray[np.int64],
    offsets: Offsets,
    scores: Scores,
    k: int,
    reasons: Sequence[str],
) -> RetrievalResult:
    """Returns the recommendations as clients see them.

    Args:
      model_version: The model version.
      planned: The sources.
      staged: The candidates that were ranked.
      request: The request.
      chosen: [m] positions of the recommendations in the pool.
      offsets: [n + 1], which of these belong to each context.
      scores: The scores of all candidates of the pool.
      k: The number of recommendations that each context wants.
      reasons: Why the response is degraded; (): it is not.
    """
    pool = staged.pool
    positions = pool.neighbors.positions[chosen]
    best = pool.neighbors._replace(positions=positions, scores=scores[chosen], offsets=offsets)
    unexplained = replace(request, explain=False)
    result = retrieve.retrieval_result(model_version, planned.corpus, best, unexplained, k)
    explanations: tuple[Explanation, ...] = ()
    if request.explain and not planned.names:
        explanations = search.explain_shortfalls(best, request, k)
    elif request.explain:
        explanations = _explain_sources(staged, offsets, request, k)
    result = replace(
        result,
        explanations=explanations,
        retrieval_scores=pool.neighbors.scores[chosen],
        degraded_reason="; ".join(reasons),
    )
    if not planned.names:
        return result
    return replace(result, source_names=planned.names, sources=pool.sources[chosen])


def _explain_sources(
    staged: StagedPool, offsets: Offsets, request: RecommendationRequest, k: int
) -> tuple[Explanation, ...]:
    """Returns how the first index was searched, and why contexts have fewer than k
    recommendations.
    """
    explanations = []
    neighbors = staged.pool.neighbors
    counts = (lengths_of(neighbors.offsets) + staged.dropped).tolist()
    sizes = lengths_of(offsets).tolist()
    for explanation, count, size in zip(neighbors.explanations, counts, sizes, strict=True):
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


async def _pass_stage(
    stage: Stage,
    chooser: _Ranker,
    request: RecommendationRequest,
    pool: Pool,
    k: int,
    execution: Execution,
) -> StagedPool:
    """Returns the candidates of a pool that a stage keeps; without the time for the stage, those
    that were retrieved first.

    Args:
      stage: The stage.
      chooser: Scores candidates by the tower of the stage.
      request: The request.
      pool: The candidates.
      k: The number of recommendations.
      execution: The batch of the request.
    """
    needed = stage.candidates_to_score(pool)
    if not needed.size:
        return StagedPool.of_retrieval(pool)
    pace = chooser.pace(int(needed.size), execution)
    left_s = execution.least_left_s
    expected_s = pace.expected_s
    if expected_s * MARGIN > left_s:
        execution.check_alone()
        pace.dropped()
        reason = (
            f"stage {stage.name!r} is left out: {left_s * 1000:.0f} ms remained, and it takes "
            f"about {expected_s * 1000:.0f} ms; of each context, the first {stage.keep} candidates "
            "are kept in the order of retrieval"
        )
        nothing = needed[:0]
        no_scores = np.empty(0, np.float32)
        required = await _required_candidates(
            chooser.corpus, request, pool, (nothing, no_scores), k, execution
        )
        staged = stages.drop_candidates(stage, pool, nothing, no_scores, required)
        return staged._replace(reasons=(reason,))

    candidates = StagedPool.of_retrieval(pool.only(needed))
    scorable, scores, _, reasons = await chooser.score(candidates, None, execution)
    if reasons:
        lost = np.delete(needed, scorable)
        pool = pool.only(np.delete(np.arange(pool.sources.size), lost))
        needed = needed[scorable] - lost.searchsorted(needed[scorable])
    contexts = np.count_nonzero(lengths_of(candidates.pool.neighbors.offsets))
    execution.count_scores(stage.order.tower, scores, int(contexts))
    required = await _required_candidates(
        chooser.corpus, request, pool, (needed, scores), k, execution
    )
    staged = stages.drop_candidates(stage, pool, needed, scores, required)
    dropped = int(staged.dropped.sum())
    model = chooser.model_version.model
    for outcome, count in (("dropped", dropped), ("kept", int(needed.size) - dropped)):
        execution.count("stage_candidates", count, model, stage.name, outcome)
    return staged._replace(reasons=reasons)


async def _required_candidates(
    corpus: LoadedStore,
    request: RecommendationRequest,
    pool: Pool,
    scored: tuple[NDArray[np.int64], Scores],
    k: int,
    execution: Execution,
) -> NDArray[np.int64]:
    """Returns the positions of the candidates that a list in the order of a stage would have, if
    crowding or quotas leave out some that come before them.

    Args:
      corpus: The candidates.
      request: The request.
      pool: The candidates that were retrieved.
      scored: Positions of those that the stage has scored, and their scores.
      k: The number of recommendations.
      execution: The batch of the request.
    """
    has_quotas = any(source.min_count or source.max_count for source in request.sources)
    if not request.crowding and not has_quotas:
        return np.empty(0, np.int64)
    quotas = None
    if has_quotas:
        quotas = Quotas(request.sources, pool.sources)
    scores = stages.scores_by_stage(pool, *scored)
    # The scores are those of the stage, to which the options of the ranking do not apply.
    shaped = replace(request, min_score=None, diversity=0.0, offset=None)
    last = k + (request.offset or 0)
    required, _ = await reordering.pick_best(
        corpus, None, pool.neighbors, scores, last, shaped, execution, None, quotas
    )
    return required


def _explain_stage(
    result: RetrievalResult, stage: Stage | None, staged: StagedPool, k: int
) -> RetrievalResult:
    """Returns a response that says what the stage dropped where contexts have fewer than k
    recommendations.
    """
    if stage is None or not result.explanations:
        return result
    explanations = []
    sizes = lengths_of(result.offsets).tolist()
    for explanation, size, dropped in zip(
        result.explanations, sizes, staged.dropped.tolist(), strict=True
    ):
        if size < k and dropped:
            lost = f"stage {stage.name!r} has dropped {dropped} candidates of the pool"
            shortfall = "; ".join(filter(None, [explanation.shortfall, lost]))
            explanations.append(explanation._replace(shortfall=shortfall))
        else:
            explanations.append(explanation)
    return replace(result, explanations=tuple(explanations))


@dataclass(frozen=True)
class _Steps:
    """What a recommendation has time for.

    Attributes:
      ranked_max: The number of candidates to rank for each query; None: all.
      diversity: The diversity of the request, or 0.
      diversifying: The pace of the step that makes the list diverse.
      reason: A sentence that says what is left out and why; empty: nothing is.
    """

    ranked_max: int | None
    diversity: float
    diversifying: Pace
    reason: str = ""


def _plan_steps(
    ranker: _Ranker,
    request: RecommendationRequest,
    staged: StagedPool,
    k: int,
    execution: Execution,
) -> _Steps:
    pool = staged.pool
    if request.diversity and not pool.has_vectors:
        steps = _plan_steps(ranker, replace(request, diversity=0.0), staged, k, execution)
        unread_reason = (
            "the list is not made diverse: the vectors of some candidates cannot be read"
        )
        return replace(steps, reason="; ".join(filter(None, [steps.reason, unread_reason])))

    m = int(pool.sources.size)
    version = ranker.model_version
    kind = ("diversity", version.model, version.version)
    picked = k + (request.offset or 0)
    # Each pick is compared with all candidates.
    comparisons = 0
    if request.diversity:
        comparisons = m * picked
    diversifying = Pace(execution, kind, comparisons)
    diversity_s = diversifying.expected_s
    ranking_s = ranker.pace(m, execution).expected_s
    left_s = execution.least_left_s
    if (ranking_s + diversity_s) * MARGIN <= left_s:
        return _Steps(None, request.diversity, diversifying)

    remained = f"{left_s * 1000:.0f} ms remained, and "
    diversity_note = ""
    if request.diversity:
        diversifying.dropped()
        diversity_note = "; the list is not made diverse"
    if ranking_s * MARGIN <= left_s:
        cost_text = f"ranking and diversity take about {(ranking_s + diversity_s) * 1000:.0f} ms"
        return _Steps(None, 0.0, diversifying, remained + cost_text + diversity_note)

    # The same number of each context, so that none is left without ranked candidates.
    share = max(0.0, left_s) / (ranking_s * MARGIN)
    counts = lengths_of(pool.neighbors.offsets)
    ranked_max = int(m * share) // counts.size
    ranked = int(np.minimum(counts, ranked_max).sum())
    if not ranked:
        ranker.pace(m, execution).dropped()
    reason = (
        f"{ranked} of {m} candidates are ranked: {remained}ranking all takes about "
        f"{ranking_s * 1000:.0f} ms; the others follow in {staged.order}"
    )
    return _Steps(ranked_max, 0.0, diversifying, reason + diversity_note)


class _Scored(NamedTuple):
    """Candidates of a pool that were scored.

    Attributes:
      positions: [c] int64 in the pool, ascending, of the candidates that are not left out.
      scores: [c] float32.
      ranked: [c], whether the scores are of the ranking; None: all are.
      left_out: Which candidates are left out, and why; a sentence each.
    """

    positions: NDArray[np.int64]
    scores: Scores
    ranked: NDArray[np.bool_] | None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Ranker:
    """Scores candidates, or the best of them.

    Attributes:
      model_version: The model version.
      order: The tower, and the formula over its outputs.
      plan: The parts of the tower that are run.
      corpus: The candidates.
      context: The features of the n contexts.
      is_requested: Whether the request has sent the formula.
    """

    model_version: ModelVersion
    order: formulas.Ordering
    plan: TowerPlan
    corpus: LoadedStore
    context: Columns
    is_requested: bool = False

    async def score(
        self, staged: StagedPool, ranked_max: int | None, execution: Execution
    ) -> _Scored:
        """Scores the first candidates of each context; the others keep the score that they are
        ordered by. Candidates that cannot be scored are left out.

        Args:
          staged: The candidates.
          ranked_max: The number of candidates of each context to score; None: all.
          execution: The batch of the request.
        """
        neighbors = staged.pool.neighbors
        m = int(neighbors.positions.size)
        ranked = None
        scorable = np.arange(m)
        scores = staged.scores
        if ranked_max is not None:
            counts = np.diff(neighbors.offsets)
            ranked = np.arange(m) - np.repeat(neighbors.offsets[:-1], counts) < ranked_max
            scorable = ranked.nonzero()[0]
        left_out: Sequence[LeftOut] = ()
        if ranked_max is None:
            scores, left_out = await self._rank(neighbors, execution)
        elif ranked_max:
            scores = scores.copy()
            scores[scorable], left_out = await self._rank(neighbors.only(scorable), execution)
        if not left_out:
            return _Scored(np.arange(m), scores, ranked)

        reasons = []
        is_kept = np.ones(m, bool)
        for positions, reason, clause in left_out:
            lost = scorable[positions]
            is_kept[lost] = False
            execution.leave_out(reason, self.corpus.store.ids(neighbors.positions[lost]))
            reasons.append(
                f"{lost.size} of {scorable.size} candidates are left out, because {clause}"
            )
        remaining = is_kept.nonzero()[0]
        if ranked is not None:
            ranked = ranked[remaining]
        return _Scored(remaining, scores[remaining], ranked, tuple(reasons))

    def pace(self, candidates: int, execution: Execution) -> Pace:
        """Returns how long it takes to rank some candidates."""
        version = self.model_version
        kind = ("ranking", version.model, version.version, self.order.tower.name, self.plan.outputs)
        return Pace(execution, kind, candidates)

    async def _rank(
        self, neighbors: search.Neighbors, execution: Execution
    ) -> tuple[Scores, Sequence[LeftOut]]:
        """Returns [m] scores of candidates, and those that cannot be scored; measures what that
        took.
        """
        m = int(neighbors.positions.size)
        execution.count_examples(0, m)
        values: Mapping[str, Scores] = {}
        left_out: Sequence[LeftOut] = ()
        if self.plan.outputs:
            candidates = Candidates(neighbors.offsets, {}, self.corpus, neighbors.positions)
            tower = PoolTower(self.model_version, self.order.tower, self.plan, self.context)
            with self.pace(m, execution).measured():
                values, left_out = await tower.score(candidates, execution)
        formula = self.order.formula
        if formula is None:
            return values[self.order.tower.entry.result], left_out

        known_names = {"retrieval_score", *values}
        attributes = [name for name in formula.names if name not in known_names]
        numbers: Mapping[str, NDArray[Any]] = {}
        if attributes:
            numbers = self.corpus.store.numbers(neighbors.positions, attributes)
        scores = formulas.pool_scores(
            formula,
            {"retrieval_score": neighbors.scores, **numbers, **values},
            reordering.id_of(self.corpus, neighbors),
            is_requested=self.is_requested,
        )
        is_undefined = ~np.isfinite(scores)
        for positions, _, _ in left_out:
            is_undefined[positions] = False
        if is_undefined.any():
            undefined = is_undefined.nonzero()[0]
            clause = "the formula has no finite value for them"
            left_out = [*left_out, LeftOut(undefined, "score", clause)]
        return scores, left_out

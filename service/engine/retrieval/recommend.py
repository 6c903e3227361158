"""Retrieves candidates, then ranks them, with one model version and under one deadline.

What ranking and diversity took before tells what they will take. If the deadline leaves too little
time for both, diversity is dropped; if it leaves too little for the ranking, only the best
retrieved candidates are ranked, and the others follow in the order of retrieval.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of
from service.config import ServiceSettings
from service.engine import lookup, towers
from service.engine.calls import K_DEFAULT, Columns, Recommendation, Retrieved
from service.engine.execution import Execution
from service.engine.limits import check_k
from service.engine.names import check_names, choose_index, choose_ranking_tower
from service.engine.ranking import formulas
from service.engine.ranking.formulas import Scores
from service.engine.ranking.rank import Candidates, CandidatesNotFinite, score
from service.engine.retrieval import reordering, retrieve, search
from service.versions.version import LoadedStore, ModelVersion, TowerPlan

_MARGIN = 2
"""How many times the expected time must remain: that is an average, and the answer is still to be
written.
"""
_DECAY = 0.5
"""What is observed, as a share of the estimate, of a step that was dropped: an estimate that is too
high does not last.
"""


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
    index_name, index = choose_index(model_version, request.index)
    name, tower = choose_ranking_tower(model_version, request.tower)
    query_tower = model_version.towers[index.entry.query_tower]
    corpus = index.corpus
    order = formulas.ordering(
        tower, request.formula, ("retrieval_score", *reordering.numeric_attributes(corpus))
    )
    known = {**query_tower.inputs, **tower.by_role["context"]}
    owner = f"index {index_name!r} with tower {name!r}"
    check_names(request.context, known, "context", "a feature", owner)
    retrieve.check_selection(index, request, settings, None, *request.context.values())
    n = lookup.count_queries(model_version, request.context, request.context_ids, settings)
    k = check_k(request.k, K_DEFAULT, settings.max_k)
    retrieve.check_response(index, request, n, k, settings, execution)
    reordering.check(request, corpus, k)

    plan = tower.plan(frozenset(order.outputs))
    needed = dict.fromkeys((*query_tower.inputs, *plan.inputs["context"]))
    features = lookup.complete(
        model_version, needed, request.context, request.context_ids, n, execution
    )
    vectors = await towers.result(model_version, query_tower, features, n, execution)
    vectors, negatives = await retrieve.avoid_negatives(
        index, vectors, request, [], n, None, execution
    )
    allowed = retrieve.allowed(index, request, n, execution, negatives)
    queries = search.Queries(vectors, allowed)
    found = await retrieve.pool(index, queries, request, k, settings, execution)
    ranker = _Ranker(model_version, order, plan, corpus, features)
    steps = _plan_steps(ranker, request, found, k, execution)
    if steps.reason:
        execution.count("degraded", 1, model_version.model)
    reason = steps.reason
    try:
        scores, ranked = await ranker.score(found, steps.ranked_max, execution)
    except CandidatesNotFinite as problem:
        reason = _with_left_out(reason, problem, found)
        found = _only(found, problem.kept(found.positions.size))
        scores, ranked = await ranker.score(found, steps.ranked_max, execution)
    if ranked is None and not request.formula:
        execution.scored(tower, scores, n)
    planned = replace(request, diversity=steps.diversity)
    with steps.diversifying.measured(bool(steps.diversity)):
        chosen, offsets = await reordering.best(index, found, scores, k, planned, execution, ranked)
    execution.begin("lookup")
    best = found._replace(positions=found.positions[chosen], scores=scores[chosen], offsets=offsets)
    answer = retrieve.answer(model_version, corpus, best, request, k)
    return replace(answer, retrieval_scores=found.scores[chosen], degraded_reason=reason)


def _only(found: search.Found, kept: NDArray[np.int64]) -> search.Found:
    """Returns some of the candidates that were found, by their ascending positions."""
    return found._replace(
        positions=found.positions[kept],
        scores=found.scores[kept],
        offsets=kept.searchsorted(found.offsets),
    )


def _with_left_out(reason: str, problem: CandidatesNotFinite, found: search.Found) -> str:
    """Returns why a recommendation is degraded, with the candidates that cannot be ranked."""
    left_out = (
        f"{len(problem.messages)} of {found.positions.size} candidates are left out, because they "
        f"read rows that hold NaN or an infinity, such as one of table {problem.table!r}"
    )
    return f"{reason}; {left_out}" if reason else left_out


@dataclass(frozen=True)
class _Pace:
    """How long a step takes, by what it took before for other numbers of units.

    Attributes:
      kind: of the step.
      units: of this step, such as candidates.
    """

    execution: Execution
    kind: tuple[object, ...]
    units: int

    @property
    def expected_s(self) -> float:
        """How long the step is expected to take; 0.0: nothing is known yet."""
        seconds = self.execution.estimates.expected_s((*self.kind, "seconds"))
        units = self.execution.estimates.expected_s((*self.kind, "units"))
        return self.units * seconds / units if seconds and units else 0.0

    @contextmanager
    def measured(self, runs: bool = True) -> Iterator[None]:
        """Measures the block of the `with` statement, if the step runs in it.

        A step that fails, such as by its deadline, would have taken longer than it did.
        """
        began = time.perf_counter()
        at_least_s = self.expected_s
        try:
            yield
            at_least_s = 0.0
        finally:
            if runs and self.units:
                self._observe(max(at_least_s, time.perf_counter() - began))

    def dropped(self) -> None:
        """Notes that the step was left out for want of time."""
        if self.units:
            self._observe(_DECAY * self.expected_s)

    def _observe(self, seconds: float) -> None:
        self.execution.estimates.observe((*self.kind, "seconds"), seconds)
        self.execution.estimates.observe((*self.kind, "units"), float(self.units))


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
    diversifying: _Pace
    reason: str = ""


def _plan_steps(
    ranker: _Ranker, request: Recommendation, found: search.Found, k: int, execution: Execution
) -> _Steps:
    m = int(found.positions.size)
    version = ranker.model_version
    kind = ("diversity", version.model, version.version)
    picked = k + (request.offset or 0)
    diversifying = _Pace(execution, kind, m * picked if request.diversity else 0)
    diversity_s = diversifying.expected_s
    ranking_s = ranker.pace(m, execution).expected_s
    left_s = execution.left_s
    if (ranking_s + diversity_s) * _MARGIN <= left_s:
        return _Steps(None, request.diversity, diversifying)

    remained = f"{left_s * 1000:.0f} ms remained, and "
    without = ""
    if request.diversity:
        diversifying.dropped()
        without = "; the list is not made diverse"
    if ranking_s * _MARGIN <= left_s:
        taken = f"ranking and diversity take about {(ranking_s + diversity_s) * 1000:.0f} ms"
        return _Steps(None, 0.0, diversifying, remained + taken + without)

    share = max(0.0, left_s) / (ranking_s * _MARGIN)
    counts = np.diff(found.offsets)
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

    def pace(self, candidates: int, execution: Execution) -> _Pace:
        """Returns how long it takes to rank some candidates."""
        version = self.model_version
        kind = ("ranking", version.model, version.version, self.order.tower.name, self.plan.outputs)
        return _Pace(execution, kind, candidates)

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

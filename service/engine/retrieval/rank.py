"""Orders the candidates of a pool: by a tower, a formula, or both; those that cannot be scored are
left out. Before the ranking of a recommendation, a stage may order them by a cheaper tower.

Of a stage, a context keeps its best candidates. Beyond these, it keeps those that a list in the
order of the stage would have under the crowding and the quotas of the request: so these leave no
list short that the pool could fill, and no source without its minimum.

What time does not suffice for before the deadline, by what the steps took before, is left out. If
too little is left for a source or the stage, it is; the stage then keeps the candidates that were
retrieved first. If too little is left for ranking and diversity, diversity is left out; if too
little is left for the ranking, only the best candidates are ranked, and the others follow in the
order of the stage, or of the retrieval.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.format.formula import Formula
from bundle.tables.offsets import lengths_of, offsets_of
from service.contract.messages import Columns
from service.engine.execution import Execution
from service.engine.ranking import formulas
from service.engine.ranking.formulas import Scores
from service.engine.ranking.pool_scores import LeftOut, PoolTower
from service.engine.ranking.rank import Candidates
from service.engine.retrieval.pick import Pool, PoolPositions, pick_best
from service.engine.retrieval.plan import Ranking, Selection

MARGIN = 2
"""Multiple of the expected time that must remain: that is an average, and the response is still to
be written. A larger margin leaves steps out that would have been in time.
"""
_DECAY = 0.5
"""Share of its estimate that a step is taken to need once it was dropped: an estimate that is too
high does not last. A smaller share tries slow steps again sooner.
"""


@dataclass(frozen=True)
class LatencyEstimate:
    """How long a step takes, by what it took before for other numbers of units.

    Attributes:
      kind: The kind of the step.
      units: How much it has to do, such as the number of candidates.
    """

    execution: Execution
    kind: tuple[object, ...]
    units: int

    @property
    def expected_s(self) -> float:
        """How long the step is expected to take; 0.0: nothing is known yet."""
        seconds = self.execution.estimates.expected((*self.kind, "seconds"))
        units = self.execution.estimates.expected((*self.kind, "units"))
        if not seconds or not units:
            return 0.0
        return self.units * seconds / units

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measures the block of the `with` statement, which runs the step.

        A step that fails, such as by its deadline, would have taken longer than it did.
        """
        began = time.perf_counter()
        at_least_s = self.expected_s
        try:
            yield
            at_least_s = 0.0
        finally:
            self._observe(max(at_least_s, time.perf_counter() - began))

    def late(self) -> str:
        """Returns why the step is left out, for want of time, and notes it; empty: it is not.

        Raises:
          NotTogether: It is, and the batch has several requests.
        """
        left_s = self.execution.least_left_s
        expected_s = self.expected_s
        if MARGIN * expected_s <= left_s:
            return ""
        self.execution.check_alone()
        self.dropped()
        return f"{_ms(left_s)} remained, and it takes about {_ms(expected_s)}"

    def dropped(self) -> None:
        """Notes that the step was left out for want of time."""
        self._observe(_DECAY * self.expected_s)

    def _observe(self, seconds: float) -> None:
        if self.units:
            self.execution.estimates.observe((*self.kind, "seconds"), seconds)
            self.execution.estimates.observe((*self.kind, "units"), float(self.units))


class LastSteps(NamedTuple):
    """What there is time for of ranking and diversity.

    Attributes:
      ranked_max: The number of candidates to rank for each query; None: all.
      diversity: The diversity of the request, or 0.
      diversifying: The estimate of the step that makes the list diverse.
      reason: A sentence that says what is left out and why; empty: nothing is.
    """

    ranked_max: int | None
    diversity: float
    diversifying: LatencyEstimate
    reason: str = ""


def plan_last_steps(selection: Selection, pool: Pool, ranking: LatencyEstimate) -> LastSteps:
    """Returns what there is time for once a pool is to be ranked.

    Args:
      selection: The request.
      pool: The candidates.
      ranking: The estimate of the ranking of all of them.
    """
    execution = selection.execution
    diversity = selection.request.diversity
    unread_reason = ""
    if diversity and not pool.has_vectors:
        diversity = 0.0
        unread_reason = (
            "the list is not made diverse: the vectors of some candidates cannot be read"
        )
    m = int(pool.positions.size)
    version = selection.model_version
    comparisons = 0
    if diversity:
        # Each pick is compared with all candidates.
        comparisons = m * selection.end
    kind = ("diversity", version.model, version.version)
    diversifying = LatencyEstimate(execution, kind, comparisons)
    ranking_s = ranking.expected_s
    both_s = ranking_s + diversifying.expected_s
    left_s = execution.least_left_s
    if both_s * MARGIN <= left_s:
        return LastSteps(None, diversity, diversifying, unread_reason)

    remained = f"{_ms(left_s)} remained, and"
    ranked_max = None
    if ranking_s * MARGIN <= left_s:
        reason = f"{remained} ranking and diversity take about {_ms(both_s)}"
    else:
        # The same number of each context, so that none is left without ranked candidates.
        share = 0.0
        if left_s > 0:
            share = left_s / (ranking_s * MARGIN)
        counts = lengths_of(pool.offsets)
        ranked_max = int(m * share) // counts.size
        ranked = int(np.minimum(counts, ranked_max).sum())
        if not ranked:
            ranking.dropped()
        reason = (
            f"{ranked} of {m} candidates are ranked: {remained} ranking all takes about "
            f"{_ms(ranking_s)}; the others follow in {pool.order}"
        )
    if diversity:
        diversifying.dropped()
        reason += "; the list is not made diverse"
    reasons = "; ".join(filter(None, [reason, unread_reason]))
    return LastSteps(ranked_max, 0.0, diversifying, reasons)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


class Scored(NamedTuple):
    """The candidates of a pool that could be scored.

    Attributes:
      positions: [c] int64 in the pool, ascending.
      scores: [c] float32.
      left_out: Which others there are, and why; a sentence each.
    """

    positions: PoolPositions
    scores: Scores
    left_out: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Scorer:
    """What gives candidates their scores.

    Attributes:
      selection: The request.
      tower: The tower; None: the formula takes what the retrieval knows.
      formula: The formula; None: the score is the result of the tower.
      is_requested: Whether the request has sent the formula.
      retrieval_score: The name of the score of the retrieval in the formula.
    """

    selection: Selection
    tower: PoolTower | None
    formula: Formula | None
    is_requested: bool = False
    retrieval_score: str = "retrieval_score"

    @classmethod
    def of(
        cls, selection: Selection, ranking: Ranking, features: Columns, is_requested: bool = False
    ) -> Scorer:
        """Returns what scores candidates by a tower, for contexts with some features."""
        tower, outputs, formula, _ = ranking
        pool_tower = PoolTower(selection.model_version, tower, outputs, features)
        return cls(selection, pool_tower, formula, is_requested)

    def latency(self, candidates: int) -> LatencyEstimate:
        """Returns how long it takes to score some candidates by the tower."""
        assert self.tower is not None  # noqa: S101 - else time is not planned
        version = self.selection.model_version
        outputs = self.tower.plan.outputs
        kind = ("ranking", version.model, version.version, self.tower.tower.name, outputs)
        return LatencyEstimate(self.selection.execution, kind, candidates)

    async def rank(self, pool: Pool, ranked_max: int | None) -> Pool:
        """Returns the pool with new scores, of the first candidates of each query alone if time
        suffices for no more.

        Args:
          pool: The candidates.
          ranked_max: The number of candidates of each query to score; None: all.
        """
        if ranked_max is None:
            scored = await self.score(pool)
            if scored.left_out:
                pool = pool.only(scored.positions)
            return pool._replace(scores=scored.scores).because(*scored.left_out)

        m = pool.positions.size
        is_ranked = np.arange(m) - pool.offsets[:-1].repeat(lengths_of(pool.offsets)) < ranked_max
        ranked_pool = pool._replace(is_ranked=is_ranked)
        first = is_ranked.nonzero()[0]
        if not first.size:
            return ranked_pool
        scored = await self.score(pool.only(first))
        scores = pool.scores.copy()
        scores[first[scored.positions]] = scored.scores
        ranked_pool = ranked_pool._replace(scores=scores)
        if scored.left_out:
            lost = np.delete(first, scored.positions)
            ranked_pool = ranked_pool.only(np.delete(np.arange(m), lost))
        return ranked_pool.because(*scored.left_out)

    async def score(self, pool: Pool) -> Scored:
        """Scores all candidates of a pool, and measures what that takes."""
        execution = self.selection.execution
        corpus = self.selection.corpus
        m = int(pool.positions.size)
        outputs: Mapping[str, Scores] = {}
        left_out: Sequence[LeftOut] = ()
        if self.tower is not None:
            execution.count_examples(0, m)
            if self.tower.plan.outputs:
                candidates = Candidates(pool.offsets, {}, corpus, pool.positions)
                with self.latency(m).measured():
                    outputs, left_out = await self.tower.score(candidates, execution)
        if self.formula is not None:
            scores = self._evaluate(self.formula, pool, outputs)
            is_undefined = ~np.isfinite(scores)
            for positions, _, _ in left_out:
                is_undefined[positions] = False
            if is_undefined.any():
                clause = "the formula has no finite value for them"
                left_out = [*left_out, LeftOut(is_undefined.nonzero()[0], "score", clause)]
        else:
            assert self.tower is not None  # noqa: S101 - else there is a formula
            scores = outputs[self.tower.tower.entry.result]
        if not left_out:
            return Scored(np.arange(m), scores)

        is_scored = np.ones(m, bool)
        sentences = []
        for positions, reason, clause in left_out:
            is_scored[positions] = False
            execution.leave_out(reason, corpus.store.ids(pool.positions[positions]))
            sentences.append(f"{positions.size} of {m} candidates are left out, because {clause}")
        scorable = is_scored.nonzero()[0]
        return Scored(scorable, scores[scorable], sentences)

    def _evaluate(self, formula: Formula, pool: Pool, outputs: Mapping[str, Scores]) -> Scores:
        """Returns [m] float32 scores: NaN or an infinity for a candidate for which the formula has
        no finite value.

        Raises:
          InvalidArgument: A formula of the request has no finite value for any candidate.
        """
        store = self.selection.corpus.store
        known_names = {self.retrieval_score, *outputs}
        attributes = [name for name in formula.names if name not in known_names]
        numbers: Mapping[str, NDArray[Any]] = {}
        if attributes:
            numbers = store.numbers(pool.positions, attributes)

        def id_of(position: int) -> Any:
            return store.ids(pool.positions[position : position + 1])[0]

        values = {self.retrieval_score: pool.retrieval_scores, **numbers, **outputs}
        scores = formula.compute(values)
        if self.is_requested and scores.size and not np.isfinite(scores).any():
            return formulas.evaluated(formula, values, id_of)  # raises InvalidArgument
        return scores


async def pass_stage(selection: Selection, stage: Ranking, pool: Pool, features: Columns) -> Pool:
    """Returns the candidates of a pool that a stage keeps, best first; without the time for the
    stage, those that were retrieved first.

    Args:
      selection: The request.
      stage: The stage.
      pool: The candidates.
      features: The features of the n contexts.
    """
    execution = selection.execution
    name = stage.tower.name
    scorer = Scorer.of(selection, stage, features)
    # Contexts that have no more candidates than the stage keeps need no scores.
    sizes = lengths_of(pool.offsets)
    needed = (sizes > stage.keep).repeat(sizes).nonzero()[0]
    if not needed.size:
        return pool._replace(dropped=[0] * selection.n)
    late = scorer.latency(int(needed.size)).late()
    if late:
        pool = pool.because(
            f"stage {name!r} is left out: {late}; of each context, the first {stage.keep} "
            "candidates are kept in the order of retrieval"
        )
        nothing = needed[:0]
        return await _drop(selection, stage, pool, nothing, np.empty(0, np.float32))

    scored = await scorer.score(pool.only(needed))
    if scored.left_out:
        lost = np.delete(needed, scored.positions)
        pool = pool.only(np.delete(np.arange(pool.positions.size), lost))
        needed = needed[scored.positions]
        needed -= lost.searchsorted(needed)
    contexts = int(np.count_nonzero(sizes > stage.keep))
    execution.count_scores(stage.tower, scored.scores, contexts)
    staged_pool = await _drop(selection, stage, pool, needed, scored.scores)
    dropped = sum(staged_pool.dropped)
    model = selection.model_version.model
    for outcome, count in (("dropped", dropped), ("kept", int(needed.size) - dropped)):
        execution.count("stage_candidates", count, model, name, outcome)
    return staged_pool.because(*scored.left_out)


async def _drop(
    selection: Selection,
    stage: Ranking,
    pool: Pool,
    scored: PoolPositions,
    stage_scores: Scores,
) -> Pool:
    """Returns a pool without the candidates that a stage drops, best first.

    Args:
      selection: The request.
      stage: The stage.
      pool: The candidates.
      scored: [c] positions of the candidates that the stage has scored, ascending: all of a
        context, or none, whose candidates then stay in the order of the retrieval.
      stage_scores: [c] float32, their scores.
    """
    sort_scores = np.zeros(pool.scores.size, np.float32)
    sort_scores[scored] = stage_scores
    offsets = pool.offsets
    sizes = lengths_of(offsets)
    contexts = np.arange(sizes.size).repeat(sizes)
    # The sort is stable: candidates that the stage has not scored stay in the order of the
    # retrieval.
    order = np.lexsort((-sort_scores, contexts))
    is_kept = np.arange(order.size) - offsets[:-1].repeat(sizes) < stage.keep

    has_quotas = any(
        source.entry.min_count or source.entry.max_count for source in selection.sources
    )
    if selection.request.crowding or has_quotas:
        # The scores are those of the stage, to which the options of the ranking do not apply.
        shaped = selection.with_options(min_score=None, diversity=0.0, offset=None)
        shaped = shaped._replace(k=selection.end)
        required, _ = await pick_best(shaped, pool._replace(scores=sort_scores))
        is_required = np.zeros(order.size, np.bool_)
        is_required[required] = True
        is_kept |= is_required[order]

    counts = np.bincount(contexts[is_kept], minlength=sizes.size)
    scores = pool.scores.copy()
    scores[scored] = stage_scores
    staged_pool = pool._replace(scores=scores, dropped=(sizes - counts).tolist())
    if scored.size:
        staged_pool = staged_pool._replace(order=f"the order of stage {stage.tower.name!r}")
    return staged_pool.select(order[is_kept], offsets_of(counts))

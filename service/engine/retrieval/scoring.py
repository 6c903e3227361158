"""Scores the candidates of a pool by a tower, a formula, or both; those that cannot be scored are
left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.format.formula import Formula
from bundle.tables.offsets import lengths_of
from service.engine.ranking import formulas
from service.engine.ranking.formulas import Scores
from service.engine.ranking.pool_scores import LeftOut, PoolTower
from service.engine.ranking.rank import Candidates
from service.engine.retrieval.deadlines import LatencyEstimate
from service.engine.retrieval.pool import Pool, PoolPositions, Selection


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
        corpus = self.selection.sources.corpus
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
        store = self.selection.sources.corpus.store
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

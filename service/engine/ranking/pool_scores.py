"""Scores the candidates of a pool, without those that cannot be scored.

Nobody named the candidates of a pool. So a candidate whose features do not fit the tower, or whose
score overflows, is left out, and the others get the bits that they would have without it. Only
where a context is at fault, with which no candidate can be scored, does the request fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, RowUnavailable
from bundle.features.columns import repeated
from bundle.tables.offsets import lengths_of
from runtime.errors import ComputationFailed
from service.contract.messages import Columns
from service.engine import towers
from service.engine.execution import Execution
from service.engine.ranking.rank import Candidates, find_unfit, rows_not_finite, scores_unchecked
from service.engine.validation import NotFinite
from service.versions.version import LoadedTower, ModelVersion, TowerPlan

Positions = NDArray[np.int64]

_PROBLEMS = (FeatureError, RowUnavailable, ComputationFailed, NotFinite)
"""What scores fail with because of a candidate, or of its context."""
_PROBED = 8
"""Number of other candidates of the corpus that are scored to find out whether a context is at
fault: if one of them has a score, the context is not.
"""


class LeftOut(NamedTuple):
    """Candidates that cannot be scored.

    Attributes:
      positions: [l] their positions among all that were to be scored, ascending.
      reason: The reason, as the metric names it.
      clause: The reason, as responses name it.
    """

    positions: Positions
    reason: str
    clause: str


class PoolScores(NamedTuple):
    """Outputs of a tower for m candidates.

    Attributes:
      outputs: [m] float32 by name; those of candidates that cannot be scored mean nothing.
      left_out: The candidates that cannot be scored.
    """

    outputs: dict[str, NDArray[np.float32]]
    left_out: Sequence[LeftOut] = ()


@dataclass(frozen=True)
class PoolTower:
    """The tower that scores a pool.

    Attributes:
      version: The model version.
      tower: The tower.
      plan: The parts of the tower that are run.
      context: The features of the n contexts.
    """

    version: ModelVersion
    tower: LoadedTower
    plan: TowerPlan
    context: Columns

    async def score(self, candidates: Candidates, execution: Execution) -> PoolScores:
        """Computes the outputs of the tower for the candidates of n contexts.

        Raises:
          FeatureError, RowUnavailable, ComputationFailed, NotFinite: A context is at fault.
          RowNotFinite: A context reads a row that is not finite.
          NotTogether: Candidates fail, and the batch has several requests.
        """
        m = int(candidates.offsets[-1])
        scores, unfit = await self._scores_of_fitting(candidates, execution)
        scorable = np.delete(np.arange(m), unfit)
        left_out = []
        if unfit.size:
            left_out.append(LeftOut(unfit, "features", "their features do not fit the tower"))

        is_finite = np.ones(scorable.size, bool)
        for output in scores.values():
            is_finite &= np.isfinite(output)
        if not is_finite.all():
            execution.check_alone()
            fit = candidates.only(scorable)
            rows = await rows_not_finite(self.version, self.plan, self.context, fit, execution)
            finite_counts = lengths_of(is_finite.nonzero()[0].searchsorted(fit.offsets))
            without_scores = (lengths_of(fit.offsets) > 0) & (finite_counts == 0)
            contexts = without_scores.nonzero()[0]
            if await self._has_context_without_scores(contexts, fit, execution):
                towers.check_outputs(self.tower, scores)  # raises NotFinite
            reads_row = np.zeros(scorable.size, bool)
            reads_row[[row.example for row in rows]] = True
            if rows:
                clause = (
                    "they read rows that hold NaN or an infinity, such as one of table "
                    f"{rows[0].table!r}"
                )
                left_out.append(LeftOut(scorable[reads_row & ~is_finite], "rows", clause))
            overflows = ~is_finite & ~reads_row
            if overflows.any():
                left_out.append(
                    LeftOut(scorable[overflows], "score", "their scores are not finite")
                )
        if not left_out:
            return PoolScores(scores)
        outputs = {name: np.zeros(m, np.float32) for name in scores}
        for name, output in scores.items():
            outputs[name][scorable] = output
        return PoolScores(outputs, left_out)

    async def _scores(
        self, candidates: Candidates, execution: Execution
    ) -> dict[str, NDArray[np.float32]]:
        return await scores_unchecked(
            self.version, self.tower, self.plan, self.context, candidates, execution
        )

    async def _scores_of_fitting(
        self, candidates: Candidates, execution: Execution
    ) -> tuple[dict[str, NDArray[np.float32]], Positions]:
        """Returns the outputs of the candidates whose features fit the tower, and the positions of
        the others. Raises the errors of `score`.
        """
        try:
            return await self._scores(candidates, execution), np.empty(0, np.int64)
        except _PROBLEMS:
            execution.check_alone()
            # Before anything is scored by itself: a context must not make that expensive.
            contexts = np.arange(candidates.offsets.size - 1)
            if await self._has_context_without_scores(contexts, candidates, execution):
                raise

        async def score_some(selected: Candidates) -> None:
            await self._scores(selected, execution)

        unfit = await find_unfit(score_some, candidates, _PROBLEMS)
        scorable = np.delete(np.arange(int(candidates.offsets[-1])), unfit)
        return await self._scores(candidates.only(scorable), execution), unfit

    async def _has_context_without_scores(
        self, contexts: Positions, candidates: Candidates, execution: Execution
    ) -> bool:
        """Returns whether one of some contexts is at fault: it cannot be scored with any of a few
        other candidates of the corpus.
        """
        corpus = candidates.corpus
        assert corpus is not None  # noqa: S101 - pools are of a corpus
        n = candidates.offsets.size - 1
        probed_positions = np.unique(
            np.linspace(0, corpus.entry.size - 1, _PROBED).astype(np.int64)
        )
        for number in contexts.tolist():
            is_context = (np.arange(n) == number).astype(np.int64)
            columns = {
                name: repeated(name, column, is_context) for name, column in self.context.items()
            }
            of_context = replace(self, context=columns)
            for position in probed_positions:
                probe = Candidates(np.array([0, 1]), {}, corpus, np.array([position]))
                if await of_context._has_score(probe, execution):  # noqa: SLF001 - of this class
                    break
            else:
                return True
        return False

    async def _has_score(self, candidate: Candidates, execution: Execution) -> bool:
        """Returns whether one candidate of one context can be scored."""
        try:
            scores = await self._scores(candidate, execution)
        except _PROBLEMS:
            return False
        return all(np.isfinite(output).all() for output in scores.values())

"""What a recommendation has time for before its deadline, by what its steps took before.

If too little time is left for a source or the stage, it is left out; the stage then keeps the
candidates that were retrieved first. If too little is left for ranking and diversity, diversity is
left out; if too little is left for the ranking, only the best candidates are ranked, and the others
follow in the order of the stage, or of the retrieval.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bundle.tables.offsets import lengths_of
from service.engine.execution import Execution
from service.engine.retrieval.pool import Pool, Selection

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

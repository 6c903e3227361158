"""Live scores of ranking towers, counted beside those of the examples at export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import ScoreDistribution
from service.engine.calls import RankingRequest, RecommendationRequest, Target
from service.observability.derived_metrics import population_stability
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.running import RunningService, column

CONTEXTS = 150
PER_CONTEXT = 8
AT_EXPORT = ScoreDistribution(edges=(-1.0, 0.0, 2.0), shares=(0.2, 0.3, 0.3, 0.2), examples=256)

Write = Callable[..., SmallBundle]
Serve = Callable[..., RunningService]


def ranking(small: SmallBundle, **options: Any) -> RankingRequest:
    """A request whose scores are all counted: CONTEXTS contexts with PER_CONTEXT candidates."""
    positions = np.arange(CONTEXTS * PER_CONTEXT) % small.ids.size
    return RankingRequest(
        Target(),
        context={"user": column(*(np.arange(CONTEXTS) % 50).tolist())},
        candidate_ids=small.ids[positions],
        offsets=np.arange(CONTEXTS + 1) * PER_CONTEXT,
        **options,
    )


def by_bin(scores: NDArray[np.float32]) -> list[int]:
    """Counts scores by the bins of AT_EXPORT, one after the other."""
    counts = [0] * len(AT_EXPORT.shares)
    for score in scores.tolist():
        counts[sum(edge <= score for edge in AT_EXPORT.edges)] += 1
    return counts


def counted(service: RunningService) -> list[float]:
    return [
        service.value("rowcast_scores_total", model="movies", tower="ranking", bin=str(number))
        for number in range(len(AT_EXPORT.shares))
    ]


def test_scores_are_counted_by_bin_and_compared_with_those_at_export(
    write: Write, serve: Serve
) -> None:
    small = write(scores=AT_EXPORT)
    service = serve()
    scores = service.execute(ranking(small)).scores
    assert scores.size == CONTEXTS * PER_CONTEXT
    counts = by_bin(scores)
    assert min(counts[0], counts[-1]) > 0, "the edges lie among the scores"
    until(lambda: counted(service) == counts)
    assert service.value("rowcast_score_baseline", bin="1") == 0.3
    expected = population_stability(counts, AT_EXPORT.shares)
    assert service.value("rowcast_score_psi", model="movies") == pytest.approx(expected)
    assert expected > 0.01

    # The scores of a request's own formula are none of the tower; recommendations have its scores.
    service.execute(ranking(small, formula="score * 2"))
    context = {"user": column(5)}
    recommendation = RecommendationRequest(Target(), context=context, k=8, pool_size=8)
    recommended = service.execute(recommendation, "recommend")
    counts = [sum(pair) for pair in zip(counts, by_bin(recommended.scores), strict=True)]
    until(lambda: sum(counted(service)) >= sum(counts))
    assert counted(service) == counts

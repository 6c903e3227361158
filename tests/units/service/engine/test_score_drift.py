"""Live scores of ranking towers, counted beside those of the examples at export."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bundle.format.manifest import ScoreDistribution
from service.observability.derived_metrics import population_stability
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.making import responds
from tests.units.service.running import RunningService

CONTEXTS = 150
AT_EXPORT = ScoreDistribution(edges=(-1.0, 0.0, 2.0), shares=(0.2, 0.3, 0.3, 0.2), examples=256)


def by_bin(scores: list[float]) -> list[int]:
    """Counts scores by the bins of AT_EXPORT, one after the other."""
    counts = [0] * len(AT_EXPORT.shares)
    for score in scores:
        counts[sum(edge <= score for edge in AT_EXPORT.edges)] += 1
    return counts


def counted(service: RunningService) -> list[float]:
    return [
        service.value("rowcast_scores_total", model="movies", tower="ranking", bin=str(number))
        for number in range(len(AT_EXPORT.shares))
    ]


def test_scores_are_counted_by_bin_and_compared_with_those_at_export(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    ids = write(scores=AT_EXPORT).ids.tolist()
    service = serve()
    requests = [
        {"context": {"user": number % 50}, "candidate_ids": ids[number % 30 :][:8]}
        for number in range(CONTEXTS)
    ]
    results = responds(service, "rank", requests=requests)["results"]
    counts = by_bin([score for result in results for score in result["scores"]])
    assert min(counts[0], counts[-1]) > 0, "the edges lie among the scores"
    until(lambda: counted(service) == counts)
    assert service.value("rowcast_score_baseline", bin="1") == 0.3
    expected = population_stability(counts, AT_EXPORT.shares)
    assert service.value("rowcast_score_psi", model="movies") == pytest.approx(expected)
    assert expected > 0.01

    # The scores of a request's own formula are none of the tower; recommendations have its scores.
    responds(service, "rank", requests=requests, formula="score * 2")
    recommended = responds(service, "recommend", context={"user": 5}, k=8, pool_size=8)
    counts = [sum(pair) for pair in zip(counts, by_bin(recommended["scores"]), strict=True)]
    until(lambda: sum(counted(service)) >= sum(counts))
    assert counted(service) == counts

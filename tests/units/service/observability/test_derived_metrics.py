"""What is computed from the sums of all workers."""

from __future__ import annotations

import math

import pytest

from service.observability.derived_metrics import population_stability, recall_estimate


def test_population_stability_is_the_sum_over_bins_with_half_a_score_in_each() -> None:
    """By hand: 10.5, 10.5 and 31.5 of 52.5 scores are shares of 0.2, 0.2 and 0.6."""
    by_hand = (0.2 - 0.5) * math.log(0.2 / 0.5) + (0.6 - 0.3) * math.log(0.6 / 0.3)
    assert by_hand == pytest.approx(0.4828313737)
    assert population_stability([10, 10, 31], [0.5, 0.2, 0.3]) == pytest.approx(by_hand)
    assert population_stability([30, 30, 30], [1 / 3] * 3) == pytest.approx(0)
    assert 0.25 < population_stability([0, 1000], [0.1, 0.9]) < math.inf


def test_recall_interval_counts_queries_and_not_their_neighbors() -> None:
    """The interval of 50 successes in 100 trials is known; 100 queries for 10 neighbors have it."""
    estimate = recall_estimate(500, 1000, 100 * 10**2)
    assert estimate == pytest.approx((0.5, 0.40383, 0.59617), abs=1e-5)


def test_recall_interval_of_perfect_queries_says_how_few_they_are() -> None:
    assert recall_estimate(30, 30, 3 * 10**2).low == pytest.approx(0.4385, abs=1e-4)
    assert recall_estimate(10_000, 10_000, 1000 * 10**2).low > 0.995
    assert recall_estimate(30, 30, 3 * 10**2).high == 1.0

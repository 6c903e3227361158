"""Metrics that are computed from the sums of all workers, since their own values cannot be merged:
a recall, its interval, and the stability index of scores.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bundle.arithmetic import wilson_interval

SCORES_MIN = 1000
"""Number of live scores from which a stability index is reported: with fewer, chance alone moves
it.
"""
RECALL_SUMS = ("hits", "neighbors", "squared_neighbors")
"""The sums over the sampled queries in `live_recall_window`."""
_PSEUDO_COUNT = 0.5
"""Added to the number of scores in each bin, so that the logarithm of an empty bin is finite."""

DERIVED: dict[str, tuple[str, tuple[str, ...]]] = {
    "live_recall": (
        "Share of the exact nearest candidates that sampled responses had, over the last hour",
        ("model", "index"),
    ),
    "live_recall_low": ("Lower end of the 95 % interval of the live recall", ("model", "index")),
    "live_recall_high": ("Upper end of the 95 % interval of the live recall", ("model", "index")),
    "score_psi": (
        "Population stability index of the scores of the last hour against those of the examples "
        f"at export; none with fewer than {SCORES_MIN} live scores",
        ("model", "tower"),
    ),
}

Labels = tuple[str, ...]


class RecallEstimate(NamedTuple):
    """A recall with the ends of its 95 % interval."""

    recall: float
    low: float
    high: float


class Collecting(Protocol):
    """Collects metrics, as registries and collectors of prometheus_client do."""

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics."""


class DerivedMetrics(Collector):
    """The metrics of a collector, and those that are derived from them."""

    def __init__(self, source: Collecting) -> None:
        """Creates the collector; `source` collects the metrics of all workers."""
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics; for prometheus_client."""
        families = list(self._source.collect())
        yield from families
        values = derived_values(families)
        for name, (text, labels) in DERIVED.items():
            family = GaugeMetricFamily(f"rowcast_{name}", text, labels=labels)
            for label_values, value in sorted(values[name].items()):
                family.add_metric(label_values, value)
            yield family


def derived_values(families: Iterable[Metric]) -> dict[str, dict[Labels, float]]:
    """Returns the values of each of DERIVED, by the values of its labels."""
    # The families hold the sums over all workers, from which the shares are computed.
    sums = _by_name(families)
    values: dict[str, dict[Labels, float]] = {name: {} for name in DERIVED}
    for labels, window in _group_by_labels(
        sums["live_recall_window"], "model", "index", "sum"
    ).items():
        hits, neighbors, squared = [window.get(term, 0.0) for term in RECALL_SUMS]
        if neighbors:
            estimate = recall_estimate(hits, neighbors, squared)
            values["live_recall"][labels] = estimate.recall
            values["live_recall_low"][labels] = estimate.low
            values["live_recall_high"][labels] = estimate.high

    shares = _group_by_labels(sums["score_baseline"], "model", "tower", "bin")
    for labels, counts in _group_by_labels(sums["score_window"], "model", "tower", "bin").items():
        if sum(counts.values()) < SCORES_MIN or labels not in shares:
            continue
        bins = [bin_label for bin_label, share in shares[labels].items() if share > 0]
        live_counts = [counts.get(bin_label, 0.0) for bin_label in bins]
        expected_shares = [shares[labels][bin_label] for bin_label in bins]
        values["score_psi"][labels] = population_stability(live_counts, expected_shares)
    return values


def recall_estimate(hits: float, neighbors: float, squared_neighbors: float) -> RecallEstimate:
    """Returns the recall of some queries with its 95 % Wilson interval.

    The neighbors of one query are found or missed together, so queries are counted, not neighbors.
    A query's recall lies between 0 and 1, so that its variance is at most that of a coin with the
    same mean: the interval is not too narrow, and does not shrink to a point while every recall
    is 1. Queries for more neighbors weigh more, and count as the effective number of equal ones.

    Args:
      hits: The number of exact nearest candidates that the responses had.
      neighbors: The number of exact nearest candidates, above 0.
      squared_neighbors: The sum of the squares of these numbers over the queries.

    Source: Kish, Survey Sampling (1965), section 11.7 (effective number).
    """
    recall = hits / neighbors
    queries = neighbors * neighbors / squared_neighbors
    return RecallEstimate(recall, *wilson_interval(recall, queries))


def population_stability(counts: Sequence[float], shares: Sequence[float]) -> float:
    """Returns the population stability index of live scores against expected shares.

    It is the sum over the bins of (live - expected) * ln(live / expected), which is 0 for equal
    distributions. By convention, a change below 0.1 is small and one above 0.25 is large. Half a
    score is added to the count of each bin, so that a bin without live scores has a finite term.

    Args:
      counts: The number of live scores in each bin.
      shares: The expected share of each bin, each above 0, 1 in sum.

    Source: Siddiqi, Credit Risk Scorecards (2006), chapter 9; its distribution: Yurdakul and
    Naranjo, Journal of Risk Model Validation 14 (2020).
    """
    total = sum(counts) + _PSEUDO_COUNT * len(counts)
    index = 0.0
    for count, expected in zip(counts, shares, strict=True):
        live = (count + _PSEUDO_COUNT) / total
        index += (live - expected) * math.log(live / expected)
    return index


def _by_name(families: Iterable[Metric]) -> dict[str, list[Any]]:
    """Returns all samples, by the name of the metric."""
    samples: dict[str, list[Any]] = defaultdict(list)
    for family in families:
        samples[family.name.removeprefix("rowcast_")] += family.samples
    return samples


def _group_by_labels(samples: Iterable[Any], *labels: str) -> dict[Labels, dict[str, float]]:
    """Returns values by the last of the labels, grouped by the other labels."""
    groups: dict[Labels, dict[str, float]] = defaultdict(dict)
    for sample in samples:
        group = tuple(sample.labels[label] for label in labels[:-1])
        groups[group][sample.labels[labels[-1]]] = sample.value
    return groups

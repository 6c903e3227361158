"""Histograms whose values are counted as plain integers, and reach prometheus_client each second.

`prometheus_client.Histogram` takes ten calls and two locks for each value, in a mapped file. A
request has eight values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

from prometheus_client import CollectorRegistry, values
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class _Series:
    """The values of one series since the last flush; earlier values are in prometheus_client."""

    def __init__(self, bucket_count: int, flushed_sum: Any, flushed_counts: list[Any]) -> None:
        self.counts = [0] * bucket_count
        self.sum = 0.0
        self.flushed_counts = flushed_counts
        self.flushed_sum = flushed_sum


class Histogram(Collector):
    """One histogram. Its owner has a lock."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Labels,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """Creates a histogram without series.

        Args:
          name: The name of the metric.
          text: The description of the metric.
          labels: The names of its labels.
          bounds: The upper bounds of its buckets, without infinity.
          registry: Renders the histogram where there is one process.
        """
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = (*bounds, inf)
        self._bound_texts = [floatToGoString(bound) for bound in self._bounds]  # type: ignore[no-untyped-call]
        self._series: dict[Labels, _Series] = {}
        registry.register(self)

    def observe(self, value: float, labels: Labels) -> None:
        """Counts a value; rendered after the next flush."""
        if labels not in self._series:
            self.add_series(labels)
        series = self._series[labels]
        series.counts[bisect_left(self._bounds, value)] += 1
        series.sum += value

    def add_series(self, labels: Labels) -> None:
        """Begins a series, which is 0 until a value is observed."""
        self._series[labels] = self._create(labels)

    def flush(self) -> None:
        """Adds the values since the last flush to the values in prometheus_client."""
        # Most buckets are empty, and each value of prometheus_client takes a lock.
        for series in self._series.values():
            for bucket, count in enumerate(series.counts):
                if count:
                    series.flushed_counts[bucket].inc(count)
                    series.counts[bucket] = 0
            if series.sum:
                series.flushed_sum.inc(series.sum)
                series.sum = 0.0

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yields the flushed values; for prometheus_client."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, series in list(self._series.items()):
            # The buckets of Prometheus are cumulative.
            total = 0.0
            buckets = []
            for bound, count in zip(self._bound_texts, series.flushed_counts, strict=True):
                total += count.get()
                buckets.append((bound, total))
            family.add_metric(labels, buckets, series.flushed_sum.get())
        yield family

    def _create(self, labels: Labels) -> _Series:
        """Returns a series without values. Where there are several processes, its values are in a
        file of this process, as the values of `prometheus_client.Histogram` are.
        """

        def value(suffix: str, names: Labels, label_values: Labels) -> Any:
            name = self._name + suffix
            return values.ValueClass("histogram", self._name, name, names, label_values, self._text)

        counts = [
            value("_bucket", (*self._labels, "le"), (*labels, bound)) for bound in self._bound_texts
        ]
        return _Series(len(counts), value("_sum", self._labels, labels), counts)

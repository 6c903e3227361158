"""Page faults of the process: rows that were not in memory when they were asked for."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector


class PageFaults(Collector):
    """Counts page faults since the process began; as the kernel does, for nothing."""

    def describe(self) -> list[CounterMetricFamily]:
        """Tells the registry the name without a value."""
        told = "Page faults: major ones waited for the disk, minor ones found the page in memory"
        return [CounterMetricFamily("rowcast_page_faults", told, labels=("kind",))]

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Tells the registry the counts."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        (family,) = self.describe()
        family.add_metric(["major"], usage.ru_majflt)
        family.add_metric(["minor"], usage.ru_minflt)
        yield family

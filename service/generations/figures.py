"""What is told of every loaded version in the metrics: since when, what memory, and how much of its tables is there."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bundle.table_pages import Table
from service.errors import ServiceError
from service.generations.switch import Switch

_SCALE_BYTES = 4
_LABELS = ("model", "version")
_FAMILIES = {
    "rowcast_version_loaded_timestamp_seconds": "When a version was loaded, seconds since 1970",
    "rowcast_version_memory_bytes": "Memory that a version may take beside its tables",
    "rowcast_version_table_bytes": "Size of a version's tables, which are mapped",
    "rowcast_version_resident_table_bytes": "How much of a version's tables is in memory, whoever brought it there",
}


class GenerationFigures(Collector):
    """Looks at the loaded versions whenever metrics are asked for; at samples of large tables, in some 0.1 ms each."""

    def __init__(self, switch: Switch) -> None:
        """Tells of the versions of a switch."""
        self._switch = switch

    def describe(self) -> list[GaugeMetricFamily]:
        """Tells the registry the names without a value."""
        return [GaugeMetricFamily(name, told, labels=_LABELS) for name, told in _FAMILIES.items()]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Tells the registry the values."""
        families = self.describe()
        for each in self._switch.loaded():
            try:
                lease = self._switch.lease(each.model, each.version)
            except ServiceError:  # it was retired meanwhile
                continue
            with lease as generation:
                values = (
                    generation.loaded_at,
                    generation.memory_bytes,
                    sum(_bytes(table) for table in generation.manifest.tables.values()),
                    sum(table.resident_bytes() for table in generation.tables.values()),
                )
            for family, value in zip(families, values, strict=True):
                family.add_metric((each.model, str(each.version)), value)
        yield from families


def _bytes(table: Table) -> int:
    return table.rows * (table.row_bytes + (_SCALE_BYTES if table.scales else 0))

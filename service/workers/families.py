"""Metrics of several workers as those of one service: counters and histograms summed, gauges by rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from service import logs

_log = logs.logger(__name__)

SUMMED = frozenset({"rowcast_in_flight", "rowcast_connections", "rowcast_queue_calls", "rowcast_queue_candidates"})
"""Gauges of which the service has as much as its workers together."""
LEAST = frozenset(
    {
        *("rowcast_ready", "rowcast_state_readable", "rowcast_state_revision"),
        *("rowcast_root_readable", "rowcast_root_looked_timestamp_seconds"),
        "rowcast_certificate_expires_timestamp_seconds",
    }
)
"""Gauges that hold for the service as they hold for the worst of its workers."""
LARGEST = frozenset(
    {
        *("rowcast_version", "rowcast_build_info", "rowcast_load_seconds", "python_info"),
        *("rowcast_version_loaded_timestamp_seconds", "rowcast_version_memory_bytes"),
        *("rowcast_version_table_bytes", "rowcast_version_resident_table_bytes"),
    }
)
"""Gauges that tell of what is the same in all workers, or of the worker that has most.

What has no rule is told for each worker, with a label `worker`.
"""

_ADDED = frozenset({"counter", "histogram", "summary"})
_Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """One metric with its samples, each `(name, labels, value)`."""

    name: str
    documentation: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]

    @property
    def added(self) -> bool:
        """Whether values of several processes make one by adding."""
        return self.type in _ADDED


def collect(registry: CollectorRegistry) -> list[Family]:
    """Reads a process' own metrics."""
    return [
        Family(
            each.name, each.documentation, each.type, [(one.name, dict(one.labels), one.value) for one in each.samples]
        )
        for each in registry.collect()
    ]


def written(families: Sequence[Family]) -> bytes:
    """Writes metrics for `read`."""
    return orjson.dumps(families)


def read(page: bytes) -> list[Family]:
    """Reads what `written` wrote.

    Raises:
      ValueError, TypeError: it is something else.
    """
    families = [Family(**each) for each in orjson.loads(page)]
    for family in families:
        family.samples = [(name, labels, float(value)) for name, labels, value in family.samples]
    return families


def merged(workers: Mapping[int, Sequence[Family]]) -> list[Family]:
    """Makes one service's metrics of its workers'. See SUMMED, LEAST and LARGEST."""
    found: dict[str, list[tuple[int, Family]]] = {}
    for worker, families in workers.items():
        for family in families:
            found.setdefault(family.name, []).append((worker, family))
    return [_one(each) for each in found.values()]


def _one(each: Sequence[tuple[int, Family]]) -> Family:
    first = each[0][1]
    rule = _rule(first)
    values: dict[tuple[str, _Labels], list[float]] = {}
    for worker, family in each:
        for name, labels, value in family.samples:
            told = labels if rule else {**labels, "worker": str(worker)}
            values.setdefault((name, tuple(told.items())), []).append(value)
    samples = []
    for (name, key), several in values.items():
        samples.append((name, dict(key), float((rule or max)(several))))
    return Family(first.name, first.documentation, first.type, samples)


def _rule(family: Family) -> Callable[[Iterable[float]], float] | None:
    if family.added or family.name in SUMMED:
        return sum
    if family.name in LEAST:
        return min
    return max if family.name in LARGEST else None


def rendered(families: Sequence[Family]) -> bytes:
    """Returns the page of `/metrics`."""
    return generate_latest(_Told(families))


class _Told(Collector):
    """Metrics whose values are known, in the shape that the library renders."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Returns every metric."""
        for family in self._families:
            metric = Metric(family.name, family.documentation, family.type)
            for name, labels, value in family.samples:
                metric.add_sample(name, labels, value)
            yield metric


class Totals:
    """The counters of one worker over all processes that were it, so that the service's sums never fall.

    A sum that falls is taken for a restart of the whole service: all of it would count as new. So what was told is kept
    in a file before it is told; a process that takes a worker's place goes on from there, and of one that does not
    answer, the others tell what it told last.
    """

    def __init__(self, path: Path, registry: CollectorRegistry) -> None:
        """Goes on from the file, if there is one."""
        self._path, self._registry = path, registry
        self._before = told_last(path)
        self._problem = ""

    def tell(self) -> list[Family]:
        """Returns the worker's metrics, and keeps its counters in the file. One thread may call it."""
        own = collect(self._registry)
        counted = {family.name: family for family in merged({0: own, 1: self._before}) if family.added}
        families = [counted.pop(family.name, family) for family in own] + list(counted.values())
        self._keep(written([family for family in families if family.added]))
        return families

    def _keep(self, page: bytes) -> None:
        """Keeps the counters if it can: a disk that is full is no reason to tell nothing."""
        aside = self._path.with_suffix(".aside")
        try:
            aside.write_bytes(page)
            aside.replace(self._path)
        except OSError as problem:
            if str(problem) != self._problem:
                _log.error("counters_unwritable", extra=logs.fields(problem=str(problem)))
            self._problem = str(problem)
        else:
            self._problem = ""


def told_last(path: Path) -> list[Family]:
    """Reads the counters that a worker told last; none if it told none."""
    try:
        return read(path.read_bytes())
    except FileNotFoundError:
        return []

"""Every metric, declared once. One `Metrics` per service instance with a registry of its own: nothing is global.

Labels are bounded: doors, calls, phases and codes are closed sets; models and features come from manifests, never from
requests.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from bundle.manifest import FORMAT_VERSION

CALLS = ("retrieve", "rank", "recommend", "embed", "lookup", "models", "model", "other")
PHASES = ("decode", "admit", "queue", "lookup", "compute", "search", "encode")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (
    *(0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)


class Metrics:
    """The service's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._answers = self._kept("requests", "Requests answered, by door, call and code", "door", "call", "code")
        self._seconds = _Durations(
            "rowcast_request_seconds", "Time from the whole body read to the answer made", ("door", "call")
        )
        self._phases = _Durations("rowcast_phase_seconds", "Time of one phase of a call", ("call", "phase"))
        self.registry.register(self._seconds)
        self.registry.register(self._phases)
        self._examples = self._kept("examples", "Queries, contexts or examples answered", "call")
        self._candidates = self._kept("candidates", "Candidates scored", "call")
        self._unknown = self._kept("unknown_ids", "Ids that a feature's table does not know", "model", "feature")
        self._unknown_contexts = self._kept(
            "unknown_contexts", "Contexts that were given the defaults: their store lacks the id", "model", "store"
        )
        part = "Examples that each part of a tower was run on; `whole`: a tower that is not cut"
        self._part_examples = self._kept("part_examples", part, "model", "tower", "part")
        self.in_flight = Gauge("rowcast_in_flight", "Calls admitted and not yet answered", registry=self.registry)
        build = Gauge("rowcast_build_info", "1 for what is running", ("product", "format"), registry=self.registry)
        build.labels(metadata.version("rowcast"), str(FORMAT_VERSION)).set(1)
        self.ready = Gauge("rowcast_ready", "1 when the service can answer", registry=self.registry)
        self._revision = Gauge(
            "rowcast_state_revision", "Revision of the desired state that is followed", registry=self.registry
        )
        self._readable = Gauge("rowcast_state_readable", "1 when the desired state can be read", registry=self.registry)
        self.connections = Gauge("rowcast_connections", "HTTP connections that are open", registry=self.registry)
        self._cuts = self._kept("cut_connections", "HTTP connections ended, by why", "reason")
        self._versions = Gauge(
            "rowcast_version",
            "1 for the state each version is in",
            ("model", "version", "state"),
            registry=self.registry,
        )
        self._loads = Counter(
            "rowcast_loads",
            "Versions loaded, refused, or found damaged while served",
            ("model", "outcome"),
            registry=self.registry,
        )
        self._load_seconds = Gauge(
            "rowcast_load_seconds", "Time that the newest load of a model took", ("model",), registry=self.registry
        )
        self._checked = Counter(
            "rowcast_checked_bytes", "Table bytes compared with their checksums", ("model",), registry=self.registry
        )

    def _kept(self, name: str, documentation: str, *labels: str) -> Callable[..., Counter]:
        """Returns what finds a counter by its labels: each once, since `labels` costs more than what it returns."""
        return cache(Counter(f"rowcast_{name}", documentation, labels, registry=self.registry).labels)

    def answered(self, door: str, call: str, code: str, seconds: float) -> None:
        """Counts one answer of a door. `door`: http or grpc; `call`: one of CALLS; `code`: OK or a Code's value."""
        self._answers(door, call, code).inc()
        self._seconds.observe((door, call), seconds)

    def phase(self, call: str, phase: str, seconds: float, calls: int = 1) -> None:
        """Records how long one phase took in each of some calls. `phase`: one of PHASES."""
        self._phases.observe((call, phase), seconds, calls)

    def computed(self, call: str, examples: int, candidates: int = 0) -> None:
        """Counts what one call asked for."""
        self._examples(call).inc(examples)
        if candidates:
            self._candidates(call).inc(candidates)

    def unknown_ids(self, model: str, feature: str, count: int) -> None:
        """Counts ids that a feature's table does not know."""
        self._unknown(model, feature).inc(count)

    def part_ran(self, model: str, tower: str, part: str, examples: int) -> None:
        """Counts the examples that a part of a tower was run on."""
        self._part_examples(model, tower, part).inc(examples)

    def unknown_contexts(self, model: str, store: str, count: int) -> None:
        """Counts contexts that a store does not hold."""
        self._unknown_contexts(model, store).inc(count)

    def connection_cut(self, reason: str) -> None:
        """Counts a connection that was ended. `reason`: room (for a newer one), unread (answers) or rest (of a body
        that was not asked for)."""
        self._cuts(reason).inc()

    def versions(self, states: list[tuple[str, int, str]]) -> None:
        """Tells which versions there are, as (model, version, state); what is not named is gone."""
        self._versions.clear()
        for model, version, state in states:
            self._versions.labels(model, str(version), state).set(1)

    def state(self, revision: int, readable: bool) -> None:
        """Tells which desired state is followed, and whether its file can be read now."""
        self._revision.set(revision)
        self._readable.set(readable)

    def loaded(self, model: str, outcome: str, seconds: float | None) -> None:
        """Counts one load. `outcome`: available (then with the seconds it took), refused or damaged."""
        self._loads.labels(model, outcome).inc()
        if seconds is not None:
            self._load_seconds.labels(model).set(seconds)

    def checked(self, model: str, size_bytes: int) -> None:
        """Counts table bytes that were compared with their checksums in the background."""
        self._checked.labels(model).inc(size_bytes)

    def render(self) -> bytes:
        """Returns the page of `/metrics`, of content type CONTENT_TYPE."""
        return generate_latest(self.registry)


class _Durations(Collector):
    """Histograms of seconds by labels. A short call records nine values, so that each must cost next to nothing:
    prometheus_client's own histogram takes several times as long, and takes them one by one."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, ...]) -> None:
        self._family = name, documentation, labels
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, labels: tuple[str, ...], seconds: float, times: int = 1) -> None:
        """Counts a duration, `times` over."""
        with self._lock:
            counts = self._counts.get(labels)
            if counts is None:
                counts = self._counts[labels] = [0] * (len(_SECONDS) + 1)
                self._sums[labels] = 0.0
            counts[bisect_left(_SECONDS, seconds)] += times
            self._sums[labels] += seconds * times

    def describe(self) -> list[HistogramMetricFamily]:
        """Tells the registry the names without a value."""
        name, documentation, labels = self._family
        return [HistogramMetricFamily(name, documentation, labels=labels)]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Tells the registry every value."""
        (family,) = self.describe()
        with self._lock:
            seen = [(labels, list(counts), self._sums[labels]) for labels, counts in self._counts.items()]
        for labels, counts, total in seen:
            bounds = [*map(floatToGoString, _SECONDS), "+Inf"]
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
        yield family

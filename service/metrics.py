"""Every metric, declared once. One `Metrics` per service instance with a registry of its own: nothing is global.

Labels are bounded: doors, calls, phases and codes are closed sets; models and features come from manifests, never from
requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from itertools import product
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from bundle import native
from bundle.manifest import FORMAT_VERSION
from service import logs
from service.counts import Counts
from service.histograms import Histograms
from service.page_faults import PageFaults
from service.seen_ids import SeenIds

CALLS = ("retrieve", "rank", "recommend", "embed", "lookup", "models", "model", "other")
PHASES = ("decode", "admit", "queue", "lookup", "compute", "search", "encode")
SHED = ("calls", "line", "candidates", "deadline", "bodies", "draining", "expired", "gone")
"""Why a call was not computed: too many calls, candidates or bytes of bodies at once; it would have been late; the
service goes down; it was late, or its caller left, while it was queued."""
OUTCOMES = ("available", "refused", "damaged")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PAGES = ThreadPoolExecutor(1, "rowcast-metrics")
Page = TypeVar("Page")
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


async def beside_calls(make: Callable[[], Page]) -> Page:
    """Makes a page of metrics, which takes tens of milliseconds of a hundred models, in a thread; one at a time."""
    return await asyncio.get_running_loop().run_in_executor(_PAGES, make)


class _Asked(Collector):
    """One metric whose values somebody else keeps."""

    def __init__(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        documentation: str,
        labels: tuple[str, ...],
        ask: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        self._kind, self._family, self._labels, self._ask = kind, (name, documentation), labels, ask

    def describe(self) -> list[GaugeMetricFamily | CounterMetricFamily]:
        return [self._kind(*self._family, labels=self._labels)]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        (family,) = self.describe()
        for labels, value in self._ask().items():
            family.add_metric(labels, value)
        yield family


class Metrics:
    """The service's metrics.

    Attributes:
      seen: counts the ids that are looked up.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._answers = self._kept("requests", "Requests answered, by door, call and code", "door", "call", "code")
        for labels in product(("http", "grpc"), CALLS, ("INTERNAL", "DATA_LOSS")):
            self._answers.add(labels, 0)  # told before there is one, so that `increase` sees the first
        self._shed = self._kept("shed", "Calls that were not computed, by call and reason", "call", "reason")
        self._seconds = Histograms(
            "rowcast_request_seconds", "Time from the whole body read to the answer made", ("door", "call")
        )
        self._phases = Histograms("rowcast_phase_seconds", "Time of one phase of a call", ("call", "phase"))
        self._joined = Histograms("rowcast_batch_calls", "Calls that were computed as one", ("call",), _SIZES)
        self._sizes = Histograms(
            "rowcast_batch_candidates", "Candidates, or queries, of calls that were computed as one", ("call",), _SIZES
        )
        self.seen = SeenIds()
        for own in (self._seconds, self._phases, self._joined, self._sizes, self.seen, PageFaults()):
            self.registry.register(own)
        self._examples = self._kept("examples", "Queries, contexts or examples answered", "call")
        self._candidates = self._kept("candidates", "Candidates scored", "call")
        self._unknown = self._kept("unknown_ids", "Ids that a feature's table does not know", "model", "feature")
        self._unknown_contexts = self._kept(
            "unknown_contexts", "Contexts that were given the defaults: their store lacks the id", "model", "store"
        )
        part = "Examples that each part of a tower was run on; `whole`: a tower that is not cut"
        self._part_examples = self._kept("part_examples", part, "model", "tower", "part")
        self._queued = [
            Gauge(
                f"rowcast_queue_{what}", f"{what.capitalize()} that wait for a compute thread", registry=self.registry
            )
            for what in ("calls", "candidates")
        ]
        self.in_flight = Gauge("rowcast_in_flight", "Calls admitted and not yet answered", registry=self.registry)
        build = Gauge(
            "rowcast_build_info", "1 for what is running", ("product", "format", "rows"), registry=self.registry
        )
        rows = "numpy" if native.Rows is None else "compiled"
        build.labels(metadata.version("rowcast"), str(FORMAT_VERSION), rows).set(1)
        self.ready = Gauge("rowcast_ready", "1 when the service can answer", registry=self.registry)
        self._revision = Gauge(
            "rowcast_state_revision", "Revision of the desired state that is followed", registry=self.registry
        )
        self._readable = Gauge("rowcast_state_readable", "1 when the desired state can be read", registry=self.registry)
        self._root = Gauge("rowcast_root_readable", "1 when the root can be looked at", registry=self.registry)
        looked = "When the root was last looked at, seconds since 1970"
        self._looked = Gauge("rowcast_root_looked_timestamp_seconds", looked, registry=self.registry)
        self.connections = Gauge("rowcast_connections", "Connections that are open", ("door",), registry=self.registry)
        self._cuts = self._kept("cut_connections", "HTTP connections ended, by why", "reason")
        self._versions = Gauge(
            "rowcast_version",
            "1 for the state each version is in",
            ("model", "version", "state"),
            registry=self.registry,
        )
        self._loads = self._kept("loads", "Versions loaded, refused, or found damaged while served", "model", "outcome")
        self._load_seconds = Gauge(
            "rowcast_load_seconds", "Time that the newest load of a model took", ("model",), registry=self.registry
        )
        lost = "Lines of the log that found no room where it is written"
        self.registry.register(
            _Asked(CounterMetricFamily, "rowcast_log_lines_lost", lost, (), lambda: {(): logs.lines_lost()})
        )
        self._checked = self._kept("checked_bytes", "Table bytes compared with their checksums", "model")
        self._warmed = self._kept("warmed_bytes", "Table bytes brought into memory after a load", "model")

    def _kept(self, name: str, documentation: str, *labels: str) -> Counts:
        counts = Counts(f"rowcast_{name}", documentation, labels)
        self.registry.register(counts)
        return counts

    def answered(self, door: str, call: str, code: str, seconds: float) -> None:
        """Counts one answer of a door. `door`: http or grpc; `call`: one of CALLS; `code`: OK or a Code's value."""
        self._answers.add((door, call, code))
        self._seconds.observe((door, call), seconds)

    def phase(self, call: str, phase: str, seconds: float, calls: int = 1) -> None:
        """Records how long one phase took in each of some calls. `phase`: one of PHASES."""
        self._phases.observe((call, phase), seconds, calls)

    def shed(self, call: str, reason: str) -> None:
        """Counts a call that was not computed. `call`: one of CALLS; `reason`: one of SHED."""
        self._shed.add((call, reason))

    def queued(self, calls: Callable[[], float], candidates: Callable[[], float]) -> None:
        """Tells how to find out what waits for a compute thread."""
        for gauge, count in zip(self._queued, (calls, candidates), strict=True):
            gauge.set_function(count)

    def recordings(self, outcomes: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """Tells how to find out what became of the calls that were to be recorded, by outcome."""
        told = "Calls to be recorded that were written, left_out or failed"
        self.registry.register(_Asked(CounterMetricFamily, "rowcast_recorded_calls", told, ("outcome",), outcomes))

    def certificates(self, expiries: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """Tells how to find out when which certificate expires, seconds since 1970."""
        name, told = "rowcast_certificate_expires_timestamp_seconds", "When the first certificate of a file expires"
        self.registry.register(_Asked(GaugeMetricFamily, name, told, ("certificate",), expiries))

    def joined(self, call: str, calls: int, candidates: int) -> None:
        """Counts calls that were computed as one, and what they cost."""
        self._joined.observe((call,), calls)
        self._sizes.observe((call,), candidates)

    def computed(self, call: str, examples: int, candidates: int = 0) -> None:
        """Counts what one call asked for."""
        self._examples.add((call,), examples)
        if candidates:
            self._candidates.add((call,), candidates)

    def unknown_ids(self, model: str, feature: str, count: int) -> None:
        """Counts ids that a feature's table does not know."""
        self._unknown.add((model, feature), count)

    def part_ran(self, model: str, tower: str, part: str, examples: int) -> None:
        """Counts the examples that a part of a tower was run on."""
        self._part_examples.add((model, tower, part), examples)

    def unknown_contexts(self, model: str, store: str, count: int) -> None:
        """Counts contexts that a store does not hold."""
        self._unknown_contexts.add((model, store), count)

    def connection_cut(self, reason: str) -> None:
        """Counts a connection that was ended. `reason`: room (for a newer one), unread (answers) or rest (of a body
        that was not asked for)."""
        self._cuts.add((reason,))

    def versions(self, states: list[tuple[str, int, str]]) -> None:
        """Tells which versions there are, as (model, version, state); what is not named is gone."""
        self._versions.clear()
        self.seen.keep({(model, version) for model, version, _ in states})
        for model, version, state in states:
            self._versions.labels(model, str(version), state).set(1)

    def state(self, revision: int, readable: bool) -> None:
        """Tells which desired state is followed, and whether its file can be read now."""
        self._revision.set(revision)
        self._readable.set(readable)

    def root(self, readable: bool) -> None:
        """Tells whether the root could be looked at for versions."""
        self._root.set(readable)
        self._looked.set_to_current_time()

    def loaded(self, model: str, outcome: str, seconds: float | None) -> None:
        """Counts one load. `outcome`: available (then with the seconds it took), refused or damaged."""
        for each in OUTCOMES:
            self._loads.add((model, each), 0)
        self._loads.add((model, outcome))
        if seconds is not None:
            self._load_seconds.labels(model).set(seconds)

    def checked(self, model: str, size_bytes: int) -> None:
        """Counts table bytes that were compared with their checksums in the background."""
        self._checked.add((model,), size_bytes)

    def warmed(self, model: str, size_bytes: int) -> None:
        """Counts table bytes that were brought into memory after a load."""
        self._warmed.add((model,), size_bytes)

    def render(self) -> bytes:
        """Returns the page of `/metrics`, of content type CONTENT_TYPE."""
        return generate_latest(self.registry)

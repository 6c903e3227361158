"""Every metric of the service, declared once. `docs/reference/metrics.md` is generated from this module.

Labels are bounded: transports, calls, phases, codes, reasons and states are closed sets; models, features, stores,
towers and parts come from manifests, never from requests.

With several workers (PROMETHEUS_MULTIPROC_DIR is set before prometheus_client is imported) each process keeps its
metrics in files of that directory, and every process renders the metrics of all.
"""

from __future__ import annotations

import collections
import contextlib
import os
import resource
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Literal, TypeVar

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from bundle import native
from bundle.format.manifest import FORMAT_VERSION
from service.observability import logging

CALLS = (
    "retrieve",
    "rank",
    "recommend",
    "embed",
    "lookup",
    "models",
    "model",
    "rows",
    "search",
    "describe",
    "other",
)
PHASES = ("decode", "queue", "lookup", "compute", "search", "encode")
REJECTIONS = ("requests", "queue", "deadline", "bytes", "draining", "expired", "cancelled")
STATES = ("loading", "available", "kept", "retiring", "failed")
LOAD_OUTCOMES = ("available", "failed", "damaged")
RECORD_OUTCOMES = ("written", "dropped", "failed")
CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_0_0_4

_SIZES = tuple(float(1 << power) for power in range(16))
_SECONDS = (
    *(0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
Metric = TypeVar("Metric", Counter, Gauge, Histogram)
Merge = Literal["livesum", "livemin", "livemax", "livemostrecent"]
"""How the values of several workers become one."""

COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "requests": ("Requests answered", ("transport", "call", "code")),
    "rejected_requests": ("Requests not computed", ("call", "reason")),
    "examples": ("Queries, contexts or examples computed", ("call",)),
    "candidates": ("Candidates scored", ("call",)),
    "degraded": (
        "Recommendations in which some candidates were not ranked, for lack of time",
        ("model",),
    ),
    "filtered_searches": (
        "Queries with a filter, by how their neighbors were found: index, exact or none",
        ("path",),
    ),
    "filters": ("Filters of requests: `cached` ones were compiled before", ("outcome",)),
    "feature_examples": ("Examples for which the feature was looked up", ("model", "feature")),
    "oov_ids": ("Ids that are not in the feature's table", ("model", "feature")),
    "missing_contexts": (
        "Contexts that got the defaults because their store lacks the id",
        ("model", "store"),
    ),
    "tower_examples": (
        "Examples that each part of a tower ran on; `whole`: a tower without parts",
        ("model", "tower", "part"),
    ),
    "shard_failures": (
        "Calls to shards that failed, some of which another replica answered",
        ("shard", "code"),
    ),
    "shard_hedges": (
        "Calls to shards that were sent to a second replica, as the first took long",
        ("shard",),
    ),
    "shard_bytes": ("Bytes received from shards", ("shard",)),
    "lost_rows": (
        "Rows read as unknown because no replica of their shard could be reached",
        ("model", "table"),
    ),
    "loads": ("Versions loaded, failed, or found damaged later", ("model", "outcome")),
    "scrubbed_bytes": ("Table bytes compared with their checksums", ("model",)),
    "prefetched_bytes": ("Table bytes read into memory after a load", ("model",)),
    "recorded_requests": (
        "Sampled requests written to the request log, dropped or failed",
        ("outcome",),
    ),
    "log_lines_dropped": ("Log lines that could not be written", ()),
    "page_faults": (
        "Page faults: `major` ones waited for the disk, `minor` ones did not",
        ("kind",),
    ),
}
HISTOGRAMS: dict[str, tuple[str, tuple[str, ...], tuple[float, ...]]] = {
    "request_seconds": (
        "Time from the complete body to the finished answer",
        ("transport", "call"),
        _SECONDS,
    ),
    "phase_seconds": ("Time that a call spent in one phase", ("call", "phase"), _SECONDS),
    "shard_seconds": ("Time of a call to a shard: rows or search", ("shard", "call"), _SECONDS),
    "batch_requests": ("Requests computed as one batch", ("call",), _SIZES),
}
GAUGES: dict[str, tuple[str, tuple[str, ...], Merge]] = {
    "ready": ("1 when the service can answer", (), "livemin"),
    "workers": ("Processes that serve", (), "livesum"),
    "inflight_requests": ("Requests admitted and not yet answered", (), "livesum"),
    "queue_requests": ("Requests waiting to be computed", (), "livesum"),
    "queue_candidates": (
        "Candidates, or queries, of the requests waiting to be computed",
        (),
        "livesum",
    ),
    "filter_cache_bytes": ("Memory of compiled filters", (), "livesum"),
    "versions": ("Versions of a model in a state", ("model", "state"), "livemax"),
    "current_version": (
        "Version that answers requests without a version; 0: none",
        ("model",),
        "livemax",
    ),
    "load_seconds": ("Time of the newest load", ("model",), "livemostrecent"),
    "model_memory_bytes": (
        "Most memory of the loaded versions, without their tables",
        ("model",),
        "livesum",
    ),
    "model_table_bytes": ("Bytes of the mapped tables", ("model",), "livemax"),
    "model_resident_table_bytes": (
        "Bytes of the mapped tables that are in memory",
        ("model",),
        "livemax",
    ),
    "shard_replicas": ("Replicas of a shard that answer", ("shard",), "livemin"),
    "denied_ids": ("Ids on the deny list", ("model",), "livemin"),
    "desired_state_revision": ("Revision of the desired state that is followed", (), "livemin"),
    "desired_state_readable": ("1 when the desired state can be read", (), "livemin"),
    "root_readable": ("1 when the root can be listed", (), "livemin"),
    "root_scanned_timestamp_seconds": ("When the root was last listed, Unix time", (), "livemin"),
    "certificate_expiry_timestamp_seconds": (
        "When a file's first certificate expires",
        ("certificate",),
        "livemin",
    ),
    "process_start_timestamp_seconds": (
        "When the newest process started, Unix time",
        (),
        "livemax",
    ),
    "build_info": ("1 for what is running", ("product", "format", "rows"), "livemax"),
}


def _series(metric: Metric, labels: tuple[str, ...]) -> Callable[..., Metric]:
    """Returns what gives the series of a metric by label values, each made once: `labels()` costs more than a count."""
    return cache(metric.labels if labels else lambda: metric)


class Metrics:
    """The metrics of one process. Every method may be called from any thread."""

    def __init__(self) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._directory = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")
        self._registry = registry = CollectorRegistry()
        if not self._directory:
            prometheus.ProcessCollector(registry=registry)
            prometheus.GCCollector(registry=registry)
        self._lock = threading.Lock()
        self._lookups: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
        self._flushed: dict[Counter, int] = {}
        self._models: set[str] = set()
        self._counters = {
            name: _series(Counter(f"rowcast_{name}", text, labels, registry=registry), labels)
            for name, (text, labels) in COUNTERS.items()
        }
        self._histograms = {
            name: _series(
                Histogram(f"rowcast_{name}", text, labels, registry=registry, buckets=buckets),
                labels,
            )
            for name, (text, labels, buckets) in HISTOGRAMS.items()
        }
        self._gauges = {
            name: _series(
                Gauge(f"rowcast_{name}", text, labels, registry=registry, multiprocess_mode=merge),
                labels,
            )
            for name, (text, labels, merge) in GAUGES.items()
        }
        for key in product(("http", "grpc"), CALLS, ("INTERNAL", "DATA_LOSS")):
            self._counters["requests"](*key).inc(0)  # so that `increase` sees the first
        for outcome in RECORD_OUTCOMES:
            self._counters["recorded_requests"](outcome).inc(0)
        rows = "numpy" if native.Rows is None else "compiled"
        self._gauges["build_info"](metadata.version("rowcast"), str(FORMAT_VERSION), rows).set(1)
        self._gauges["process_start_timestamp_seconds"]().set_to_current_time()
        self._gauges["workers"]().set(1)

    def request_finished(self, transport: str, call: str, code: str, seconds: float) -> None:
        """Counts an answer. `transport`: http or grpc; `call`: one of CALLS; `code`: OK or a Code's value."""
        self._counters["requests"](transport, call, code).inc()
        self._histograms["request_seconds"](transport, call).observe(seconds)

    def count(self, name: str, amount: float, *labels: str) -> None:
        """Adds to one of COUNTERS."""
        self._counters[name](*labels).inc(amount)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Records a value in one of HISTOGRAMS."""
        self._histograms[name](*labels).observe(value)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Sets one of GAUGES."""
        self._gauges[name](*labels).set(value)

    def looked_up(self, model: str, features: tuple[str, ...], examples: int) -> None:
        """Counts a lookup of several features; rendered after the next flush."""
        with self._lock:
            self._lookups[model, features] += examples

    def load_finished(self, model: str, outcome: str, seconds: float | None) -> None:
        """Counts a load with one of LOAD_OUTCOMES; `seconds`: how long it took, if it succeeded."""
        for each in LOAD_OUTCOMES:
            self._counters["loads"](model, each).inc(each == outcome)
        if seconds is not None:
            self._gauges["load_seconds"](model).set(seconds)

    def versions(self, states: Mapping[str, Mapping[str, int]], current: Mapping[str, int]) -> None:
        """Sets how many versions each model has in each of STATES, and which is current; others count as zero."""
        with self._lock:
            self._models.update(states, current)
            for model in self._models:
                for state in STATES:
                    self._gauges["versions"](model, state).set(states.get(model, {}).get(state, 0))
                self._gauges["current_version"](model).set(current.get(model, 0))

    def root_scanned(self, readable: bool) -> None:
        """Sets whether the root could be listed, and that it was tried now."""
        self._gauges["root_readable"]().set(readable)
        self._gauges["root_scanned_timestamp_seconds"]().set_to_current_time()

    def flush(self) -> None:
        """Brings counters up to date that are kept elsewhere; call it once a second, for other workers."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        with self._lock:
            for (model, features), examples in self._lookups.items():
                for feature in features:
                    self._counters["feature_examples"](model, feature).inc(examples)
            self._lookups.clear()
            for series, total in (
                (self._counters["log_lines_dropped"](), logging.lines_dropped()),
                (self._counters["page_faults"]("major"), usage.ru_majflt),
                (self._counters["page_faults"]("minor"), usage.ru_minflt),
            ):
                series.inc(max(0, total - self._flushed.get(series, 0)))
                self._flushed[series] = total

    def render(self) -> bytes:
        """Returns the text of `/metrics`, of content type CONTENT_TYPE; takes milliseconds, so run it in a thread."""
        self.flush()
        if self._directory:
            forget_dead_workers(Path(self._directory))
            registry = CollectorRegistry()
            MultiProcessCollector(registry, self._directory)  # type: ignore[no-untyped-call]
            return prometheus.generate_latest(registry)
        return prometheus.generate_latest(self._registry)


def forget_dead_workers(directory: Path) -> None:
    """Removes the gauges of processes that have ended; their counters stay part of the sums."""
    for process in {
        int(path.stem.rpartition("_")[2]) for path in directory.glob("gauge_live*_*.db")
    }:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            with contextlib.suppress(FileNotFoundError):  # another worker was faster
                mark_process_dead(process, str(directory))  # type: ignore[no-untyped-call]
        except PermissionError:
            continue

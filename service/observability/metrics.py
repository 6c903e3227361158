"""Every metric of the service, declared once. `docs/reference/metrics.md` is generated from this
module.

Labels are bounded: transports, calls, phases, codes, reasons and states are closed sets; models,
features, stores, towers and parts come from manifests, never from requests. A request whose model
is not known, because it was not decoded or names a model that does not exist, has the model "".

In a worker process (PROMETHEUS_MULTIPROC_DIR is set before prometheus_client is imported), the
metrics are in files of that directory, and the supervisor renders those of all workers.
"""

from __future__ import annotations

import collections
import os
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from itertools import product
from typing import Literal, TypeVar

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, Counter, Gauge

from bundle import native
from bundle.format.manifest import FORMAT_VERSION
from service.contract.messages import SearchPath
from service.errors import Code, NotReady
from service.observability import derived_metrics, logging, merged_metrics
from service.observability.histograms import Histogram

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
    "change",
    "changes",
    "predict",
    "classify",
    "regress",
    "infer",
    "other",
)
TRANSPORTS = ("http", "grpc")
CODES = ("OK", *(code.value for code in Code))
PHASES = ("decode", "queue", "lookup", "compute", "search", "encode")
_REQUEST_PHASES = ("decode", "queue", "encode")
"""The phases of a request by itself; its batch has the others."""
REJECTIONS = (
    "requests",
    "queue",
    "deadline",
    "bytes",
    "shard",
    "draining",
    "expired",
    "cancelled",
)
STATES = ("loading", "available", "kept", "retiring", "failed")
LOAD_OUTCOMES = ("available", "failed", "damaged")
RECORD_OUTCOMES = ("written", "dropped", "failed")
LIVE_RECALL_OUTCOMES = ("searched", "dropped")
LEFT_OUT_REASONS = ("features", "rows", "score", "vector")
"""Why candidates are left out: their features do not fit the tower, their rows or scores are not
finite, or their vectors cannot be searched.
"""
SOURCE_OUTCOMES = ("failed", "late")
STAGE_OUTCOMES = ("kept", "dropped")
RETRY_OUTCOMES = ("sent", "over_budget")
FILTER_OUTCOMES = ("compiled", "cached")
CONTENT_TYPE = merged_metrics.CONTENT_TYPE
_MODEL_CALLS = ("retrieve", "rank", "recommend", "embed", "lookup", "model")
_CALLS_BY_ID = ("retrieve", "rank", "recommend", "lookup")
"""Calls that can leave out ids that do not exist."""
_NO_MODEL = ("",)

_SIZES = tuple(float(1 << power) for power in range(16))
_SECONDS = (
    *(0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
Metric = TypeVar("Metric", Counter, Gauge)
Merge = Literal["livesum", "livemin", "livemax", "livemostrecent"]
"""How the values of several workers become one."""

COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "requests": ("Completed requests, by code", ("transport", "call", "model", "code")),
    "rejected_requests": (
        "Requests rejected or abandoned before they were computed",
        ("call", "model", "reason"),
    ),
    "failed_batches": (
        "Batches that failed, so that each of their requests was computed alone",
        ("call",),
    ),
    "examples": ("Queries, contexts or examples that were computed", ("call",)),
    "candidates": ("Candidates that were scored", ("call",)),
    "degraded": (
        "Recommendations that are degraded: unranked, not diverse, or without some source",
        ("model",),
    ),
    "candidates_left_out": (
        "Candidates that responses lack because they cannot be scored; the log has their ids",
        ("model", "reason"),
    ),
    "sources_left_out": (
        "Sources of recommendations that were left out because they failed or were late",
        ("model", "outcome"),
    ),
    "stage_candidates": (
        "Candidates that the tower of a stage scored, by whether the stage kept them",
        ("model", "tower", "outcome"),
    ),
    "filtered_searches": (
        "Queries with a filter, by the search that found their neighbors",
        ("path",),
    ),
    "filters": (
        "Filters in requests; a `cached` filter was compiled for an earlier request",
        ("outcome",),
    ),
    "feature_examples": ("Examples for which a feature was looked up", ("model", "feature")),
    "oov_ids": ("Ids that are not in the table of the feature", ("model", "feature")),
    "non_finite_rows": (
        "Rows that hold NaN or an infinity and failed a request or one of its candidates",
        ("model", "table"),
    ),
    "cut_lists": (
        "Lists that were longer than their input takes, of which `keep` values stayed",
        ("model", "input"),
    ),
    "padded_lists": (
        "Lists that were shorter than their input takes, and were padded with `pad`",
        ("model", "input"),
    ),
    "missing_contexts": (
        "Contexts that used default values because the context store has no such id",
        ("model", "store"),
    ),
    "not_found_ids": (
        "Ids that do not exist and were left out: of requests with `not_found` set to `skip`, and "
        "of sources of recommendations",
        ("model", "call"),
    ),
    "tower_examples": (
        "Examples on which a part of a tower ran; the part `whole` is a tower without parts",
        ("model", "tower", "part"),
    ),
    "context_states": (
        "Histories of contexts of a tower whose states are stored, by outcome: found (the same "
        "history), extended (by the events that were added) or computed",
        ("model", "tower", "outcome"),
    ),
    "shard_failures": (
        "Failed calls to shards; another replica may have served the call",
        ("shard", "code"),
    ),
    "shard_retries": (
        "Failed calls to shards, by whether the retry budget permitted to try another replica",
        ("shard", "outcome"),
    ),
    "shard_ejections": (
        "Ejections of replicas that failed more calls than others",
        ("shard",),
    ),
    "shard_bytes": ("Bytes received from shards", ("shard",)),
    "lost_rows": (
        "Rows treated as unknown because no replica of their shard could be reached",
        ("model", "table"),
    ),
    "partial_searches": (
        "Queries whose neighbors are those of the shards that responded",
        (),
    ),
    "loads": (
        "Versions that were loaded, failed to load, or were later found damaged",
        ("model", "outcome"),
    ),
    "scrubbed_bytes": (
        "Bytes of tables and vectors that were compared with their checksums",
        ("model",),
    ),
    "prefetched_bytes": (
        "Bytes of tables that were prefetched into memory after a load",
        ("model",),
    ),
    "recorded_requests": (
        "Sampled requests, by what happened when they were recorded",
        ("outcome",),
    ),
    "live_recall_queries": (
        "Sampled queries of retrievals, by whether they were also searched exactly",
        ("model", "index", "outcome"),
    ),
    "live_recall_neighbors": (
        "Exact nearest candidates of the queries that were also searched exactly",
        ("model", "index"),
    ),
    "live_recall_hits": (
        "Those of the exact nearest candidates that the responses had",
        ("model", "index"),
    ),
    "scores": (
        "Sampled scores of ranking towers, by the bin of the distribution at export",
        ("model", "tower", "bin"),
    ),
    "changes": (
        "Rows, candidates and contexts that this service was sent changes of",
        ("model", "kind", "action"),
    ),
    "log_lines_dropped": ("Log lines that could not be written", ()),
    "page_faults": (
        "Page faults; a `major` fault reads from disk, a `minor` fault does not",
        ("kind",),
    ),
}
SERIES_AT_START: dict[str, tuple[tuple[str, ...], ...]] = {
    "requests": (TRANSPORTS, CALLS, _NO_MODEL, CODES),
    "rejected_requests": (CALLS, _NO_MODEL, REJECTIONS),
    "failed_batches": (CALLS,),
    "examples": (CALLS,),
    "candidates": (CALLS,),
    "filtered_searches": (tuple(SearchPath),),
    "filters": (FILTER_OUTCOMES,),
    "recorded_requests": (RECORD_OUTCOMES,),
}
"""Values of the labels of counters, by label: these series are 0 until something is counted. A
dashboard then shows 0 instead of no data, and `increase` does not miss the first count. Those of a
model follow when the model is first seen.
"""
HISTOGRAMS: dict[str, tuple[str, tuple[str, ...], tuple[float, ...]]] = {
    "request_seconds": (
        "Time from the last byte of the request to the complete response, without requests that "
        "were rejected before they were read",
        ("transport", "call", "model"),
        _SECONDS,
    ),
    "phase_seconds": (
        "Time that a call spent in one phase",
        ("call", "model", "phase"),
        _SECONDS,
    ),
    "shard_seconds": ("Time of a call to a shard", ("shard", "call"), _SECONDS),
    "batch_requests": ("Number of requests in a batch", ("call",), _SIZES),
}
GAUGES: dict[str, tuple[str, tuple[str, ...], Merge]] = {
    "ready": ("1 if the service accepts calls, else 0", (), "livemin"),
    "workers": ("Running worker processes", (), "livesum"),
    "inflight_requests": ("Requests in progress", (), "livesum"),
    "decode_turn_seconds": (
        "Age of the oldest turn to decompress and decode a large body; 0: there is none",
        (),
        "livemax",
    ),
    "queue_requests": ("Requests that wait for computation", ("model",), "livesum"),
    "queue_candidates": (
        "Candidates or queries in the requests that wait for computation",
        ("model",),
        "livesum",
    ),
    "filter_cache_bytes": ("Memory of the filter cache", (), "livesum"),
    "versions": ("Versions of a model in a state", ("model", "state"), "livemax"),
    "current_version": (
        "Version that serves requests without a version; 0 if there is none",
        ("model",),
        "livemax",
    ),
    "change_sequence": (
        "Sequence of the last change that is served",
        ("model",),
        "livemin",
    ),
    "changes_bytes": ("Size of the changes of the model", ("model",), "livemax"),
    "changes_limit_bytes": (
        "Size of the changes of the model at which further ones are rejected",
        ("model",),
        "livemin",
    ),
    "change_lag": (
        "Sequences by which a copy of changes is behind; NaN while it cannot be copied",
        ("model",),
        "livemax",
    ),
    "changes_followed": (
        "Whether all changes of the model are served: 1 yes; 0 no, because their file cannot be "
        "read or copied, or shards do not respond",
        ("model",),
        "livemin",
    ),
    "changes_dropped": (
        "Candidates and contexts that were changed and that a loaded version does not serve, or "
        "not whole",
        ("model", "reason"),
        "livemax",
    ),
    "changed_candidates": (
        "Candidates of a corpus that were added or replaced while it was served",
        ("model", "corpus"),
        "livemax",
    ),
    "changed_contexts": (
        "Contexts of a context store that were added or replaced while it was served",
        ("model", "store"),
        "livemax",
    ),
    "load_seconds": ("Duration of the most recent load", ("model",), "livemostrecent"),
    "model_memory_bytes": (
        "Maximum memory of the loaded versions, without their tables",
        ("model",),
        "livesum",
    ),
    "model_table_bytes": ("Size of the mapped tables", ("model",), "livemax"),
    "model_resident_table_bytes": (
        "Size of the part of the mapped tables that is in memory",
        ("model",),
        "livemax",
    ),
    "live_recall_window": (
        "Sums over the sampled queries of the last hour, from which the live recall is computed",
        ("model", "index", "sum"),
        "livesum",
    ),
    "live_recall_target": (
        "Recall that the recipe requires of the index",
        ("model", "index"),
        "livemostrecent",
    ),
    "score_window": (
        "Sampled scores of the last hour, from which the stability index is computed",
        ("model", "tower", "bin"),
        "livesum",
    ),
    "score_baseline": (
        "Share of the examples at export whose scores are in a bin",
        ("model", "tower", "bin"),
        "livemostrecent",
    ),
    "shard_replicas": (
        "Replicas of a shard that respond and are not ejected; NaN if its division is not in use",
        ("shard",),
        "livemin",
    ),
    "denied_ids": ("Ids on the deny list", ("model",), "livemin"),
    "desired_state_revision": ("Revision of the desired state that is in effect", (), "livemin"),
    "desired_state_readable": ("1 if the desired state can be read, else 0", (), "livemin"),
    "root_readable": ("1 if the root can be listed, else 0", (), "livemin"),
    "root_scanned_timestamp_seconds": ("Unix time of the last scan of the root", (), "livemin"),
    "certificate_expiry_timestamp_seconds": (
        "Unix time at which the first certificate in the file expires",
        ("certificate",),
        "livemin",
    ),
    "process_start_timestamp_seconds": (
        "Unix time at which the newest process started",
        (),
        "livemax",
    ),
    "build_info": (
        "1; the labels describe the running build",
        ("product", "format", "rows"),
        "livemax",
    ),
}


def _series(metric: Metric, labels: tuple[str, ...]) -> Callable[..., Metric]:
    """Returns a function that finds the series of a metric by label values."""
    # Cached, because `labels()` costs more than a count.
    return cache(metric.labels if labels else lambda: metric)


class Metrics:
    """The metrics of one process. Every method may be called from any thread.

    Attributes:
      registry: Collects the metrics, but those that are derived from others.
    """

    def __init__(self, render_all: Callable[[], bytes] = bytes) -> None:
        """Creates all metrics at 0.

        Args:
          render_all: Returns the text of `/metrics` for all workers, empty if there is no other
            process; raises MetricsMissing if the files of a worker are gone, OSError or EOFError if
            the supervisor is.
        """
        self._render_all = render_all
        # By default, counters and histograms have further series with their times of creation.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            prometheus.ProcessCollector(registry=registry)
            prometheus.GCCollector(registry=registry)
        self._lock = threading.Lock()
        self._lookups: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
        self._counts: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
        self._flushed: dict[Counter, int] = {}
        self._models: set[str] = set()
        self._counters = {
            name: _series(Counter(f"rowcast_{name}", text, labels, registry=registry), labels)
            for name, (text, labels) in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"rowcast_{name}", text, labels, bounds, registry)
            for name, (text, labels, bounds) in HISTOGRAMS.items()
        }
        self._phase_seconds = self._histograms["phase_seconds"]
        self._gauges = {
            name: _series(
                Gauge(f"rowcast_{name}", text, labels, registry=registry, multiprocess_mode=merge),
                labels,
            )
            for name, (text, labels, merge) in GAUGES.items()
        }
        # An alert watches for an increase, which the first count would not be without a zero.
        for name, labels in SERIES_AT_START.items():
            for values in product(*labels):
                self._counters[name](*values).inc(0)
        # The first series opens the file of all histograms. Opened with the first request, it might
        # not be possible any more.
        for call in CALLS:
            self._histograms["batch_requests"].add_series((call,))
        row_reads = "numpy" if native.Rows is None else "compiled"
        version = metadata.version("rowcast")
        self._gauges["build_info"](version, str(FORMAT_VERSION), row_reads).set(1)
        self._gauges["process_start_timestamp_seconds"]().set_to_current_time()
        self._gauges["workers"]().set(1)

    def request_finished(
        self,
        transport: str,
        call: str,
        model: str,
        code: str,
        seconds: float,
        phases: Mapping[str, float],
    ) -> None:
        """Counts a completed request; rendered after the next flush.

        Args:
          transport: "http" or "grpc".
          call: One of CALLS.
          model: The model that the client named; "" if it named none, or if the name was not read.
          code: "OK", or the value of a Code.
          seconds: The duration of the request.
          phases: The time that the request spent in each of PHASES. The phases of its batch are
            recorded by `batch_finished`.
        """
        # As `known_model`, without a further call per request.
        model = model if model in self._models else ""
        with self._lock:
            self._counts["requests", (transport, call, model, code)] += 1
            self._histograms["request_seconds"].observe(seconds, (transport, call, model))
            for phase in _REQUEST_PHASES:
                if phase in phases:
                    self._phase_seconds.observe(phases[phase], (call, model, phase))

    def request_rejected(self, transport: str, call: str, model: str, code: str) -> None:
        """Counts a request that was rejected before it was read; it has no duration. Arguments are
        those of `request_finished`.
        """
        self.count("requests", 1, transport, call, self.known_model(model), code)

    def call_rejected(self, call: str, model: str, reason: str) -> None:
        """Counts a request that was rejected or abandoned before it was computed.

        Args:
          call: One of CALLS.
          model: As in `request_finished`.
          reason: One of REJECTIONS.
        """
        self.count("rejected_requests", 1, call, self.known_model(model), reason)

    def rejection_counters(
        self, transport: str, call: str, model: str, code: str, reason: str
    ) -> Sequence[tuple[str, tuple[str, ...]]]:
        """Returns the counters of `request_rejected` and `call_rejected`, for `count_each`: the
        name and the labels of each. Arguments are those of the two.
        """
        model = self.known_model(model)
        request = ("requests", (transport, call, model, code))
        rejection = ("rejected_requests", (call, model, reason))
        return request, rejection

    def count_each(self, counters: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        """Adds 1 to several counters with their labels; rendered after the next flush."""
        with self._lock:
            for counter in counters:
                self._counts[counter] += 1

    def batch_finished(
        self,
        call: str,
        model: str,
        phases: Mapping[str, float],
        counts: Mapping[tuple[str, tuple[str, ...]], int],
        lookups: Mapping[tuple[str, tuple[str, ...]], int],
    ) -> None:
        """Records a batch that was computed; rendered after the next flush.

        Args:
          call: One of CALLS.
          model: The model.
          phases: The time that it spent in each of some PHASES.
          counts: What is added to COUNTERS, by their names and labels.
          lookups: The number of examples for which features were looked up, by model and features.
        """
        with self._lock:
            for phase, seconds in phases.items():
                self._phase_seconds.observe(seconds, (call, model, phase))
            for counter, amount in counts.items():
                self._counts[counter] += amount
            for features, examples in lookups.items():
                self._lookups[features] += examples

    def known_model(self, model: str) -> str:
        """Returns the name of a model if it exists, else ""."""
        # Clients may name anything, also people, and each name would be a series for ever.
        if model in self._models:
            return model
        return ""

    def count(self, name: str, amount: int, *labels: str) -> None:
        """Adds to one of COUNTERS; rendered after the next flush."""
        with self._lock:
            self._counts[name, labels] += amount

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Records a value in one of HISTOGRAMS; rendered after the next flush."""
        with self._lock:
            self._histograms[name].observe(value, labels)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Sets one of GAUGES."""
        self._gauges[name](*labels).set(value)

    def load_finished(self, model: str, outcome: str, seconds: float | None) -> None:
        """Counts a load with one of LOAD_OUTCOMES.

        Args:
          model: The model.
          outcome: The outcome.
          seconds: The duration of the load if it succeeded, else None.
        """
        # All outcomes, so that each has a series from the first load.
        for possible_outcome in LOAD_OUTCOMES:
            self._counters["loads"](model, possible_outcome).inc(possible_outcome == outcome)
        if seconds is not None:
            self._gauges["load_seconds"](model).set(seconds)

    def versions(self, states: Mapping[str, Mapping[str, int]], current: Mapping[str, int]) -> None:
        """Sets the versions of all models.

        Args:
          states: For each model, the number of its versions by state.
          current: The current version of each model that has one.
        """
        with self._lock:
            for model in {*states, *current} - self._models:
                self._begin_model(model)
            self._models.update(states, current)
            # Also models that are gone: their last values would stay otherwise.
            for model in self._models:
                counts = states.get(model, {})
                for state in STATES:
                    self._gauges["versions"](model, state).set(counts.get(state, 0))
                self._gauges["current_version"](model).set(current.get(model, 0))

    def queued(self, requests: Mapping[str, int], candidates: Mapping[str, int]) -> None:
        """Sets the queue of all models.

        Args:
          requests: The number of requests that wait, by model.
          candidates: The number of candidates or queries that they have, by model.
        """
        with self._lock:
            models = set(self._models)
        for model in models:
            self.set("queue_requests", requests.get(model, 0), model)
            self.set("queue_candidates", candidates.get(model, 0), model)

    def _begin_model(self, model: str) -> None:
        """Creates the series of a model at 0."""
        for transport, call, code in product(TRANSPORTS, _MODEL_CALLS, CODES):
            self._counters["requests"](transport, call, model, code).inc(0)
        for call, reason in product(_MODEL_CALLS, REJECTIONS):
            self._counters["rejected_requests"](call, model, reason).inc(0)
        for call in _CALLS_BY_ID:
            self._counters["not_found_ids"](model, call).inc(0)

    def root_scanned(self, readable: bool) -> None:
        """Sets whether the root could be listed, and that it was tried now."""
        self._gauges["root_readable"]().set(readable)
        self._gauges["root_scanned_timestamp_seconds"]().set_to_current_time()

    def flush(self) -> None:
        """Writes what was counted to the metrics. Call it each second, so that a scrape of another
        worker finds it.
        """
        usage = resource.getrusage(resource.RUSAGE_SELF)
        with self._lock:
            for (model, features), examples in self._lookups.items():
                for feature in features:
                    self._counters["feature_examples"](model, feature).inc(examples)
            self._lookups.clear()
            for (name, labels), amount in self._counts.items():
                self._counters[name](*labels).inc(amount)
            self._counts.clear()
            for histogram in self._histograms.values():
                histogram.flush()
            # Totals that something else counts: a counter only takes increases.
            for series, total in (
                (self._counters["log_lines_dropped"](), logging.lines_dropped()),
                (self._counters["page_faults"]("major"), usage.ru_majflt),
                (self._counters["page_faults"]("minor"), usage.ru_minflt),
            ):
                series.inc(max(0, total - self._flushed.get(series, 0)))
                self._flushed[series] = total

    def render(self) -> bytes:
        """Returns the text of `/metrics`, of content type CONTENT_TYPE; takes milliseconds, so run
        it in a thread.

        Raises:
          NotReady: The files of a process are gone, or the supervisor is.
        """
        self.flush()
        try:
            page = self._render_all()
        except merged_metrics.MetricsMissing as problem:
            raise NotReady(str(problem)) from None
        except (EOFError, OSError) as problem:
            raise NotReady(f"the supervisor does not return the metrics: {problem!r}") from problem
        if page:
            return page
        return prometheus.generate_latest(derived_metrics.DerivedMetrics(self.registry))

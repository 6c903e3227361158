"""Every metric, declared once. One `Metrics` per service instance with a registry of its own: nothing is global.

Labels are bounded: doors, calls, phases and codes are closed sets; models and features come from manifests, never from
requests.
"""

from __future__ import annotations

from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

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
        # What every call touches is found by its labels once and kept: `labels` costs more than what it returns.
        self._answers = cache(
            Counter(
                "rowcast_requests",
                "Requests answered, by door, call and code",
                ("door", "call", "code"),
                registry=self.registry,
            ).labels
        )
        self._seconds = cache(
            Histogram(
                "rowcast_request_seconds",
                "Time from the whole body read to the answer made",
                ("door", "call"),
                buckets=_SECONDS,
                registry=self.registry,
            ).labels
        )
        self._phases = cache(
            Histogram(
                "rowcast_phase_seconds",
                "Time of one phase of a call",
                ("call", "phase"),
                buckets=_SECONDS,
                registry=self.registry,
            ).labels
        )
        self._examples = cache(
            Counter(
                "rowcast_examples", "Queries, contexts or examples answered", ("call",), registry=self.registry
            ).labels
        )
        self._candidates = cache(
            Counter("rowcast_candidates", "Candidates scored", ("call",), registry=self.registry).labels
        )
        self._unknown = cache(
            Counter(
                "rowcast_unknown_ids",
                "Ids that a feature's table does not know",
                ("model", "feature"),
                registry=self.registry,
            ).labels
        )
        self.in_flight = Gauge("rowcast_in_flight", "Calls admitted and not yet answered", registry=self.registry)
        self.ready = Gauge("rowcast_ready", "1 when the service can answer", registry=self.registry)
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

    def answered(self, door: str, call: str, code: str, seconds: float) -> None:
        """Counts one answer of a door. `door`: http or grpc; `call`: one of CALLS; `code`: OK or a Code's value."""
        self._answers(door, call, code).inc()
        self._seconds(door, call).observe(seconds)

    def phase(self, call: str, phase: str, seconds: float) -> None:
        """Records how long one phase of a call took. `phase`: one of PHASES."""
        self._phases(call, phase).observe(seconds)

    def computed(self, call: str, examples: int, candidates: int = 0) -> None:
        """Counts what one call asked for."""
        self._examples(call).inc(examples)
        if candidates:
            self._candidates(call).inc(candidates)

    def unknown_ids(self, model: str, feature: str, count: int) -> None:
        """Counts ids that a feature's table does not know."""
        self._unknown(model, feature).inc(count)

    def versions(self, states: list[tuple[str, int, str]]) -> None:
        """Tells which versions there are, as (model, version, state); what is not named is gone."""
        self._versions.clear()
        for model, version, state in states:
            self._versions.labels(model, str(version), state).set(1)

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

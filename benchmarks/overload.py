"""More requests than a service can compute: an open loop whose callers have a deadline and do not
wait for each other.

Where the generator shares the service's cores, an overload costs it a part of them too; how much is
reported.
"""

from __future__ import annotations

import http.client
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field

import httpx
import numpy as np

from benchmarks.load import CONNECTIONS_MAX, SUCCESS, Endpoint, Floats, Load, Responses
from benchmarks.requests import Kind
from benchmarks.services import Service

CALLERS = 16
DEADLINE_S = 0.25
REJECTED = {"http": 429, "grpc": 8}
CANCELLED = 1
"""Of gRPC: its core ends calls like that behind the 10,000 that wait to be rejected."""
FILLS_CORE_FROM = 5
"""Requests, by the peak, from which on calls are cancelled, as docs/how-to/overload.md says."""
UNSENT = -2
"""Found no connection in time: a client with a pool of connections does not send such a request."""
PATIENCE_S = DEADLINE_S / 10
"""Time that a request waits for a connection, which its deadline includes."""
LATE = (504, 4)
"""Admitted, without a response in time: a few are, since durations are estimates."""
RECOVERY_MAX_S = 2.0
RECOVERY_OF_CORE_MAX_S = 10.0
"""The same once gRPC's core was full: what waits there is rejected first."""
USUAL = 3
"""Times its latency before the overload that a request may take once the service has recovered."""
PROBE_INTERVAL_S = 0.1
GIVE_UP_S = 30.0
METRICS_AGE_S = 1.5
"""Age that the metrics of another worker can have, and some more."""
PEAK_S = 3.0
"""Longest measurement of a peak."""
WARM_UP_S = 0.5
"""Longest time before a measurement in which a service responds unmeasured."""
USUAL_S = 0.3
"""Longest measurement of the usual latency."""


@dataclass
class Probes:
    """What health checks saw during an overload."""

    latency_s: list[float] = field(default_factory=list)
    failed: int = 0


@dataclass(frozen=True)
class Overload:
    """What became of an overload.

    Attributes:
      peak_per_s: Responses per second in a closed loop, before and after.
      offered_per_s: Requests per second that were due.
      computed: Requests that the service computed meanwhile; nan: it does not count them.
      recovery_s: Time from the last request until responses came as fast as before.
    """

    peak_per_s: float
    offered_per_s: float
    responses: Responses
    rejected_status: int
    probes: Probes
    computed: float
    recovery_s: float

    @property
    def goodput(self) -> float:
        """Responses within the deadline, as a share of the peak."""
        in_time = (self.latency_s(SUCCESS) <= DEADLINE_S).sum()
        return float(in_time) / self.responses.elapsed_s / self.peak_per_s

    @property
    def generator_cores(self) -> float:
        """Cores that the load generator used."""
        return self.responses.generator_s / self.responses.elapsed_s

    @property
    def sent_share(self) -> float:
        """Requests that found a connection, as a share of those that were due."""
        return float((self.responses.status != UNSENT).mean())

    def latency_s(self, status: int) -> Floats:
        """Returns the latencies of the requests that ended with a status."""
        latencies_s: Floats = self.responses.latency_s[self.responses.status == status]
        return latencies_s

    @property
    def rejected_share(self) -> float:
        """Rejections, as a share of the requests that were sent and returned no result."""
        failures = self.responses.status[~np.isin(self.responses.status, (SUCCESS, UNSENT))]
        if not len(failures):
            return float("nan")
        return float((failures == self.rejected_status).mean())

    @property
    def cancelled(self) -> int:
        """Calls that gRPC cancelled."""
        return int((self.responses.status == CANCELLED).sum())

    def p99_ms(self, status: int) -> float:
        """Returns the 99th percentile of the same; nan without any."""
        latencies_s = self.latency_s(status)
        return float(np.percentile(latencies_s, 99)) * 1e3 if len(latencies_s) else float("nan")

    def problems(self) -> list[str]:
        """Returns what must not happen on any host."""
        statuses = self.responses.status.astype(int)
        late = int(np.isin(statuses, LATE).sum())
        expected = {SUCCESS, self.rejected_status, UNSENT, *LATE}
        recovery_max_s = RECOVERY_MAX_S
        if self.cancelled and self.offered_per_s >= FILLS_CORE_FROM * self.peak_per_s:
            expected.add(CANCELLED)
            recovery_max_s = RECOVERY_OF_CORE_MAX_S
        unexpected = sorted(set(statuses.tolist()) - expected)
        checks = {
            "no request succeeded in time": self.goodput == 0,
            f"requests ended with {unexpected}, not with a rejection": bool(unexpected),
            "rejected requests were computed": self.computed > self.responses.succeeded + late,
            "health checks failed": self.probes.failed > 0,
            f"recovered after more than {recovery_max_s:g} s": self.recovery_s > recovery_max_s,
        }
        return [problem for problem, is_present in checks.items() if is_present]


def overload(
    service: Service,
    kind: Kind,
    times: float,
    seconds: float,
    transport: str = "http",
    connections: int = CONNECTIONS_MAX,
    peak_of: tuple[Service, Kind] | None = None,
) -> Overload:
    """Measures how many requests a service can compute, then sends a multiple of them.

    Args:
      service: The service, which is paused when this returns.
      kind: The requests.
      times: The multiple of the peak that is sent.
      seconds: The time of the overload.
      transport: One of REJECTED.
      connections: The maximum number of connections.
      peak_of: The service whose peak counts, paused before and after, and its requests; None:
        `service`.
    """
    timeout_ms = f"{DEADLINE_S * 1e3:.0f}"
    headers = (
        {"x-request-timeout-ms": timeout_ms}
        if transport == "http"
        else {"grpc-timeout": f"{timeout_ms}m"}
    )
    measured, own_kind = peak_of or (service, kind)
    before = _peak_per_s(measured, own_kind, transport, seconds)
    service.resume()
    with (
        closing(Load(endpoint_of(service, kind, transport), kind.bodies)) as load,
        closing(Load(endpoint_of(service, kind, transport, headers), kind.bodies)) as pressing,
    ):
        load.closed(CALLERS, min(seconds, WARM_UP_S))
        usual_s = float(np.median(load.closed(1, min(seconds, USUAL_S)).latency_s))
        time.sleep(METRICS_AGE_S)  # all of these requests are counted
        computed = _computed(service.http, kind.call)
        probes = Probes()
        done = threading.Event()
        prober = threading.Thread(target=_probe, args=(service.health, probes, done))
        prober.start()
        try:
            responses = pressing.open(
                times * before,
                seconds,
                seed=7,
                connections=connections,
                patience_s=PATIENCE_S,
            )
        finally:
            done.set()
            prober.join()
        computed = _computed(service.http, kind.call) - computed
        recovery_s = _recovery_s(load, usual_s)
    service.pause()
    after = _peak_per_s(measured, own_kind, transport, seconds)
    peak_per_s = (before + after) / 2
    return Overload(
        peak_per_s, times * before, responses, REJECTED[transport], probes, computed, recovery_s
    )


def endpoint_of(
    service: Service, kind: Kind, transport: str, headers: dict[str, str] | None = None
) -> Endpoint:
    """Returns where requests go."""
    if transport == "http":
        return Endpoint(service.http, kind.path, "application/x-protobuf", headers or {})
    return Endpoint(service.grpc, kind.method, headers=headers or {})


def _peak_per_s(service: Service, kind: Kind, transport: str, seconds: float) -> float:
    """Returns how many requests a service computes in a second, and pauses it."""
    service.resume()
    with closing(Load(endpoint_of(service, kind, transport), kind.bodies)) as load:
        load.closed(CALLERS, min(seconds, WARM_UP_S))
        responses = load.closed(CALLERS, min(seconds, PEAK_S))
    service.pause()
    return responses.requests_per_s


def _computed(port: int, call: str) -> float:
    """Returns how many requests the service has computed; nan: it does not count them."""
    lines = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=GIVE_UP_S).text.splitlines()
    counter = f'rowcast_examples_total{{call="{call}"'
    counts = [line.split()[-1] for line in lines if line.startswith(counter)]
    return sum(map(float, counts)) if counts else float("nan")


def _probe(port: int, probes: Probes, done: threading.Event) -> None:
    """Calls the health checks, each over a new connection as Kubernetes does, until `done`
    is set.
    """
    while not done.wait(PROBE_INTERVAL_S):
        for path in ("/livez", "/readyz"):
            began = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GIVE_UP_S)
            with closing(connection):
                try:
                    connection.request("GET", path)
                    probes.failed += connection.getresponse().status != SUCCESS
                except (OSError, http.client.HTTPException):
                    probes.failed += 1
            probes.latency_s.append(time.perf_counter() - began)


def _recovery_s(load: Load, usual_s: float) -> float:
    """Sends requests over one connection until responses come as fast as usual; returns how long
    that took.
    """
    began = time.perf_counter()
    while (elapsed_s := time.perf_counter() - began) < GIVE_UP_S:
        seen = load.closed(1, 0.05)
        fine = seen.status == SUCCESS
        if fine.any() and np.median(seen.latency_s[fine]) < USUAL * usual_s:
            return elapsed_s
    return float("inf")


def figures(seen: Overload) -> dict[str, str]:
    """Returns the figures of an overload by name."""
    probes_s = seen.probes.latency_s
    probe_ms = np.percentile(probes_s, 99) * 1e3 if probes_s else float("nan")
    return {
        "peak/s": f"{seen.peak_per_s:.0f}",
        "offered/s": f"{seen.offered_per_s:.0f}",
        "sent": f"{seen.sent_share:.2f}",
        "goodput by peak": f"{seen.goodput:.2f}",
        "rejections by failures": f"{seen.rejected_share:.2f}",
        "cancelled": str(seen.cancelled),
        "p99 ms of responses": f"{seen.p99_ms(SUCCESS):.0f}",
        "p99 ms of rejections": f"{seen.p99_ms(seen.rejected_status):.1f}",
        "p99 ms of health checks": f"{probe_ms:.0f}",
        "recovered after s": f"{seen.recovery_s:.2f}",
        "cores of the generator": f"{seen.generator_cores:.2f}",
        "problems": "; ".join(seen.problems()) or "none",
    }

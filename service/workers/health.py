"""Health checks and metrics at an address of their own. The responses come from the workers'
reports.

A probe never waits for a worker: new connections to the serving port can wait for seconds behind
thousands of busy ones, and a worker that computes holds its GIL.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import uvicorn

from service.bounded_pool import BoundedPool
from service.coordinator import LATE_S, Coordinator
from service.errors import TRANSPORT_STATUS, NotReady, ServiceError, without_host
from service.http_protocol import YieldingHttpProtocol
from service.observability import merged_metrics
from service.observability.merged_metrics import MetricsMissing
from service.security.hosts import AllowedHosts
from service.workers.sockets import UVICORN
from service.workers.supervisor_metrics import SupervisorMetrics

_START_S = 300.0
"""Time in which a worker must import its libraries and report for the first time."""
_NEVER = 0
"""The number in place of the last report of a worker that has not reported yet."""
_CALLS_MAX = 128
"""Maximum number of gRPC calls in progress."""
_SCRAPES_MAX = 4
"""Maximum number of scrapes in progress."""
_SCRAPE_S = 10.0
"""Maximum time for a scrape: Prometheus waits as long unless it is configured otherwise."""
_KEEP_ALIVE_S = 60
"""Time for which an idle connection of a probe or of Prometheus stays open."""
_FOLLOW_S = 0.25
"""Time after which watches of gRPC health learn of a change of the service's state."""
_STARTING = "the service is starting"
_STOPPING = "the service is shutting down"
_NO_WORKER = "no worker responds"


class Health:
    """The state of a service as its workers report it. Safe to read from any thread.

    Attributes:
      started: Whether every worker has listened once.
      stopping: Whether the service shuts down.
    """

    def __init__(
        self, coordinator: Coordinator, metrics: SupervisorMetrics, workers: int, timeout_s: float
    ) -> None:
        """Creates the state of a service that starts.

        Args:
          coordinator: Receives the reports of the workers.
          metrics: The metrics of the service.
          workers: The number of workers.
          timeout_s: Time without a report after which a worker is hung.
        """
        self.started = False
        self.stopping = False
        self._coordinator = coordinator
        self._metrics = metrics
        self._running: set[int] = set()
        self._workers = workers
        self._timeout_s = timeout_s
        self._all_were_ready = False
        self._silent_s: dict[int, float] = {}
        self._last_numbers: dict[int, int] = {}
        """The number of the last report, by process id."""

    def observe(self, running: list[int], elapsed_s: float) -> list[int | None]:
        """Looks at the reports of the workers.

        Args:
          running: The process ids of the workers.
          elapsed_s: The time since the last call for which this process ran. The clock may have
            advanced by more, if the machine was suspended, and then no worker is to blame.

        Returns:
          The workers that are hung.
        """
        self._running = set(running)
        reports = self._coordinator.reports()
        for pid in running:
            number, _ = reports.get(pid, (_NEVER, ""))
            if number != self._last_numbers.get(pid):
                self._last_numbers[pid] = number
                self._silent_s[pid] = 0.0
            else:
                self._silent_s[pid] += elapsed_s

        # Workers that have ended are forgotten: their process ids may be used again.
        self._last_numbers = {pid: self._last_numbers[pid] for pid in running}
        self._silent_s = {pid: self._silent_s[pid] for pid in running}
        problems = self._problems()
        self.started = self.started or len(problems) >= self._workers
        self._all_were_ready = self._all_were_ready or self._are_all_ready(problems)
        return [pid for pid in self._silent_s if self._is_hung(pid)]

    def render_metrics(self) -> bytes:
        """Returns the text of `/metrics`, without the gauges of workers that have ended.

        Raises:
          MetricsMissing: The files of a worker's metrics are gone.
        """
        # A worker that has not reported yet may not have files.
        reported = [pid for pid in self._running if self._last_numbers.get(pid)]
        return self._metrics.render(reported)

    def _is_hung(self, pid: int) -> bool:
        timeout_s = self._timeout_s
        # A worker that starts imports its libraries, and cannot report meanwhile.
        if self._last_numbers[pid] == _NEVER:
            timeout_s = max(_START_S, timeout_s)
        return self._silent_s[pid] >= timeout_s

    def _problems(self) -> list[str]:
        """Returns the problem of each worker that responds, as last reported; "": it has none."""
        problems = list[str]()
        reports = self._coordinator.reports()
        for pid in self._running:
            number, problem = reports.get(pid, (_NEVER, ""))
            # A worker that is late does not count as responding, long before it counts as hung.
            if number != _NEVER and self._silent_s.get(pid, 0.0) < LATE_S:
                problems.append(problem)
        return problems

    def _are_all_ready(self, problems: list[str]) -> bool:
        return len(problems) >= self._workers and not any(problems)

    @property
    def problem(self) -> str:
        """Why requests should not be sent to the service, by what its workers have reported by now;
        "": they should.
        """
        if self.stopping:
            return _STOPPING
        problems = self._problems()
        if not problems and self.started:
            return _NO_WORKER
        if not problems:
            return _STARTING

        unready = [problem for problem in problems if problem]
        if not (self._all_were_ready or self._are_all_ready(problems)):
            # The start waits for all workers: the kernel spreads connections over all.
            return (unready or [_STARTING])[0]
        # From then on, one worker suffices: a replacement may be loading while the others serve.
        if len(unready) < len(problems):
            return ""
        return unready[0]


class HealthApp:
    """`/livez`, `/readyz` and `/metrics`, as an ASGI application."""

    def __init__(self, health: Health, hosts: AllowedHosts) -> None:
        """Creates the application of a service's state; `hosts` may read its metrics."""
        self._health = health
        self._hosts = hosts
        self._scrapes = BoundedPool("scrapes", _SCRAPES_MAX)

    async def __call__(self, scope: Any, _: Any, send: Any) -> None:
        """Handles one request."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        try:
            status, media_type, body = await self._respond(
                scope["method"], scope["path"], ", ".join(hosts)
            )
        except ServiceError as problem:
            status = TRANSPORT_STATUS[problem.code].http
            text = without_host(str(problem))
            status, media_type, body = _error(status, problem.code.value, text)
        headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if scope["method"] == "HEAD":
            body = b""
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, method: str, path: str, host: str) -> tuple[int, str, bytes]:
        if path not in {"/livez", "/readyz", "/metrics"}:
            return _error(404, "NOT_FOUND", "path is none of /livez, /readyz and /metrics")
        if method not in {"GET", "HEAD"}:
            return _error(405, "INVALID_ARGUMENT", "GET or HEAD was expected")
        if path == "/livez":
            return _json(200, {"live": True})
        if path == "/readyz":
            if problem := self._health.problem:
                raise NotReady(problem)
            return _json(200, {"ready": True})
        # Probes name any host, and learn nothing else.
        self._hosts.check(host)
        return await self._scrape()

    async def _scrape(self) -> tuple[int, str, bytes]:
        # A thread reads the files, so that probes do not wait for a scrape.
        deadline = time.monotonic() + _SCRAPE_S
        try:
            content = await self._scrapes.run(self._health.render_metrics, deadline)
        except MetricsMissing as problem:
            return _error(500, "INTERNAL", str(problem))
        return 200, merged_metrics.CONTENT_TYPE, content


def serve_health(health: Health, hosts: AllowedHosts, listener: socket.socket) -> None:
    """Serves health checks in a thread, for as long as the process lives."""
    config = uvicorn.Config(
        HealthApp(health, hosts),
        http=YieldingHttpProtocol,
        # uvloop crashes when the process ends beside a thread that runs it.
        loop="asyncio",
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_S,
        **UVICORN,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()


def serve_grpc_health(health: Health, host: str, port: int) -> None:
    """Serves `grpc.health.v1.Health` in threads, for as long as the process lives."""
    # Only processes that serve gRPC health pay for the memory of gRPC.
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_health.v1.health import HealthServicer

    states = health_pb2.HealthCheckResponse

    class Servicer(HealthServicer):  # type: ignore[misc] # grpc is untyped
        """Reports the state of the service at each check."""

        def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - as the protocol has it
            """Responds to a check, as the workers have reported by now."""
            self.update()
            return super().Check(request, context)

        def update(self) -> None:
            """Sets the state, of which watches learn."""
            state = states.SERVING
            if health.problem:
                state = states.NOT_SERVING
            self.set("", state)

    servicer = Servicer(experimental_non_blocking=True)
    server = grpc.server(ThreadPoolExecutor(2), maximum_concurrent_rpcs=_CALLS_MAX)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if ":" in host:
        host = f"[{host}]"
    server.add_insecure_port(f"{host}:{port}")

    def follow() -> None:
        while True:
            servicer.update()
            server.wait_for_termination(_FOLLOW_S)

    server.start()
    threading.Thread(target=follow, daemon=True).start()


def _json(status: int, value: dict[str, Any]) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(value).encode()


def _error(status: int, code: str, message: str) -> tuple[int, str, bytes]:
    return _json(status, {"error": {"code": code, "message": message, "request_id": ""}})

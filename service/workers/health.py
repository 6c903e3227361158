"""Health checks and metrics at an address of their own, answered from the workers' heartbeats.

A probe never waits for a worker: new connections to the serving port can wait for seconds behind
thousands of busy ones, and a worker that computes holds its GIL.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import uvicorn

from service.observability import merged_metrics
from service.workers import run_directory
from service.workers.sockets import UVICORN

_LATE_S = 5.0
"""A worker without a heartbeat for so long is not ready; heartbeats come once a second."""
_START_S = 300.0
"""Time in which a worker must import its libraries and write its first heartbeat."""
_NEVER = 0
_CONNECTIONS_MAX = 128
_KEEP_ALIVE_S = 60
_FOLLOW_S = 0.25
_STARTING = "the service is starting"
_STOPPING = "the service is shutting down"
_NO_WORKER = "no worker responds"


class Health:
    """The state of a service as its heartbeats tell it. Safe to read from any thread.

    Attributes:
      directory: The run directory.
      running: The workers that are running, by process id.
      problem: Why requests should not be sent here; "": they should.
      started: Whether every worker has listened once.
      stopping: Whether the service shuts down.
    """

    def __init__(self, directory: Path, workers: int, timeout_s: float) -> None:
        """Creates the state of a service that starts.

        Args:
          directory: The run directory.
          workers: The number of workers.
          timeout_s: Time without a heartbeat after which a worker is hung.
        """
        self.directory = directory
        self.running: set[int] = set()
        self.problem = _STARTING
        self.started = False
        self.stopping = False
        self._workers = workers
        self._rendering = threading.Lock()
        self._timeout_s = timeout_s
        self._all_were_ready = False
        self._silent_s: dict[int, float] = {}
        self._last_ns: dict[int, int] = {}

    def observe(self, running: list[int], elapsed_s: float) -> list[int | None]:
        """Reads the heartbeats.

        Args:
          running: The process ids of the workers.
          elapsed_s: The time since the last call for which this process ran. The clock may have
            advanced by more, if the machine was suspended, and then no worker is to blame.

        Returns:
          The workers that are hung.
        """
        if set(running) != self.running:
            self.running = set(running)
            run_directory.forget_heartbeats(self.directory, self.running)
        problems = list[str]()
        for pid in running:
            heartbeat = run_directory.read_heartbeat(self.directory, pid)
            written_ns = _NEVER if heartbeat is None else heartbeat.written_ns
            if written_ns != self._last_ns.get(pid):
                self._last_ns[pid] = written_ns
                self._silent_s[pid] = 0.0
            else:
                self._silent_s[pid] += elapsed_s
            if heartbeat is not None and self._silent_s[pid] < _LATE_S:
                problems.append(heartbeat.problem)
        self._last_ns = {pid: self._last_ns[pid] for pid in running if pid in self._last_ns}
        self._silent_s = {pid: self._silent_s[pid] for pid in self._last_ns}
        self.started = self.started or len(problems) >= self._workers
        self.problem = self._problem_of(problems)
        return [pid for pid in self._silent_s if self._is_hung(pid)]

    def render_metrics(self) -> bytes:
        """Returns the text of `/metrics`, without the gauges of workers that have ended."""
        running = list(self.running)
        only = running[0] if len(running) == 1 else None
        with self._rendering:  # one at a time, whatever is scraped meanwhile
            merged_metrics.forget_ended(self.directory)
            return merged_metrics.render(self.directory, only)

    def _is_hung(self, pid: int) -> bool:
        starts = self._last_ns[pid] == _NEVER
        timeout_s = max(_START_S, self._timeout_s) if starts else self._timeout_s
        return self._silent_s[pid] >= timeout_s

    def _problem_of(self, problems: list[str]) -> str:
        """Returns the problem of the service, given that of each worker that responds."""
        if self.stopping:
            return _STOPPING
        if not problems:
            return _NO_WORKER if self.started else _STARTING
        unready = [problem for problem in problems if problem]
        if not unready and len(problems) >= self._workers:
            self._all_were_ready = True
        if self._all_were_ready:
            # One that was replaced may still be loading while the others serve.
            return unready[0] if len(unready) == len(problems) else ""
        return unready[0] if unready else _STARTING


class HealthApp:
    """`/livez`, `/readyz` and `/metrics`, as an ASGI application."""

    def __init__(self, health: Health) -> None:
        """Creates the application of a service's state."""
        self._health = health

    async def __call__(self, scope: Any, _: Any, send: Any) -> None:
        """Handles one request."""
        status, media_type, body = await self._respond(scope["method"], scope["path"])
        headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        sent = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": sent})

    async def _respond(self, method: str, path: str) -> tuple[int, str, bytes]:
        if method not in {"GET", "HEAD"}:
            return _error(405, "INVALID_ARGUMENT", "GET or HEAD was expected")
        if path == "/livez":
            return _json(200, {"live": True})
        if path == "/readyz":
            problem = _STOPPING if self._health.stopping else self._health.problem
            if problem:
                return _error(503, "NOT_READY", problem)
            return _json(200, {"ready": True})
        if path == "/metrics":
            text = await asyncio.to_thread(self._health.render_metrics)
            return 200, merged_metrics.CONTENT_TYPE, text
        return _error(404, "NOT_FOUND", "the paths are /livez, /readyz and /metrics")


def serve_health(health: Health, listener: socket.socket) -> None:
    """Serves health checks in a thread, for as long as the process lives."""
    config = uvicorn.Config(
        HealthApp(health),
        http="httptools",
        loop="asyncio",  # uvloop crashes when a process ends beside its thread
        lifespan="off",
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_keep_alive=_KEEP_ALIVE_S,
        **UVICORN,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()


def serve_grpc_health(health: Health, host: str, port: int) -> None:
    """Serves `grpc.health.v1.Health` in threads, for as long as the process lives."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_health.v1.health import HealthServicer

    servicer = HealthServicer(experimental_non_blocking=True)
    server = grpc.server(ThreadPoolExecutor(2), maximum_concurrent_rpcs=_CONNECTIONS_MAX)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    states = health_pb2.HealthCheckResponse

    def follow() -> None:
        while True:
            ready = not health.problem and not health.stopping
            servicer.set("", states.SERVING if ready else states.NOT_SERVING)
            server.wait_for_termination(_FOLLOW_S)

    server.start()
    threading.Thread(target=follow, daemon=True).start()


def _json(status: int, value: dict[str, Any]) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(value).encode()


def _error(status: int, code: str, message: str) -> tuple[int, str, bytes]:
    return _json(status, {"error": {"code": code, "message": message, "request_id": ""}})

"""A serving worker in a thread of the test process: uvicorn and grpc.aio on loopback, wired by
`service/app.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import socket
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from numpy.typing import NDArray

from runtime.tower import Tensor, Tower
from service.admin.server import AdminServer
from service.app import Worker
from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.http_protocol import HttpProtocol
from service.loopback import on_loopback
from service.observability.derived_metrics import DerivedMetrics
from service.observability.logging import JsonLines
from service.versions.version import ModelVersion
from tests.e2e.process import WAIT_S, until

Result = TypeVar("Result")


class RunningService:
    """A worker over a root, which is scanned before the constructor returns.

    Attributes:
      http: The base URL of the HTTP endpoint.
      grpc: The host:port of the gRPC endpoint.
      listener: Accepts the connections of the HTTP endpoint, which get its options.
    """

    def __init__(self, root: Path, **settings: Any) -> None:
        options = {
            "http_port": 0,
            "grpc_port": 0,
            "drain_delay_s": 0,
            "poll_interval_s": 0.05,
            "request_timeout_s": WAIT_S,
            "body_timeout_s": WAIT_S,
            "admin": False,
        }
        self.settings = ServiceSettings(root=root, **{**options, **settings})
        self._coordinator = Coordinator()
        self.worker = Worker(self.settings, self._coordinator, 0)
        certificates = self.worker.certificates
        config = uvicorn.Config(
            self.worker.asgi_app(),
            loop="uvloop",
            http=HttpProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=self.settings.keep_alive_s,
            timeout_graceful_shutdown=2,
            ssl_context_factory=None
            if certificates is None
            else lambda *_: certificates.ssl_context(),
        )
        self._server = uvicorn.Server(config)
        self._opened = contextlib.ExitStack()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="service", daemon=True)
        self._thread.start()
        until(
            lambda: (
                (self._server.started and self.worker.versions.settled)
                or not self._thread.is_alive()
            )
        )
        assert self._thread.is_alive(), "the service did not start"
        scheme = "http" if certificates is None else "https"
        self.http = f"{scheme}://127.0.0.1:{self.listener.getsockname()[1]}"
        self.grpc = f"127.0.0.1:{self.worker.bound_grpc_port}"

    @cached_property
    def admin(self) -> str:
        """The base URL of the admin API, which starts when it is first needed."""
        listener = socket.create_server(("127.0.0.1", 0))
        server = AdminServer(
            self.settings,
            self._coordinator,
            listener,
            self.worker.versions,
            self.worker.change_plane,
        )
        server.accept(True)
        self.worker.admin = server
        self._opened.callback(listener.close)
        scheme = "http" if on_loopback(self.settings.admin_host) else "https"
        return f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"

    @property
    def dataplane(self) -> Dataplane:
        return self.worker.dataplane

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine on the event loop of the service."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def execute(self, request: Any, call: str = "rank", timeout_s: float = WAIT_S) -> Any:
        """Computes a request by the engine."""
        context = RequestContext(call, "test-request", time.monotonic() + timeout_s)
        return self.call(self.dataplane.engine.execute(request, context))

    def scan(self) -> None:
        """Scans the root now."""
        self.worker.poller.scan()

    def current(self, model: str = "movies") -> ModelVersion:
        """Returns the current version of a model."""
        with self.worker.versions.acquire(model) as version:
            return version

    def states(self, model: str = "movies") -> dict[int, str]:
        return {
            state.version: state.state for state in self.worker.versions.models().get(model, ())
        }

    def problem(self, version: int, model: str = "movies") -> str:
        return next(
            state.problem
            for state in self.worker.versions.models()[model]
            if state.version == version
        )

    def value(self, metric: str, **labels: str) -> float:
        """Returns the sum of the samples of a metric that have these labels, and any others."""
        total = 0.0
        metrics = self.worker.metrics
        metrics.flush()
        # To collect all of them, again and again, would take longer than what is waited for.
        families = [*metrics.registry.restricted_registry([metric]).collect()]
        for family in families or DerivedMetrics(metrics.registry).collect():
            for sample in family.samples:
                if sample.name == metric and labels.items() <= sample.labels.items():
                    total += sample.value
        return total

    def with_network(
        self, tower: str, network: Tower, model: str = "movies", part: int = 0
    ) -> None:
        """Replaces one network of the current version, e.g. by one that waits or fails."""
        current = self.current(model)
        assert isinstance(current.towers, dict)
        parts = list(current.towers[tower].parts)
        parts[part] = replace(parts[part], network=network)
        current.towers[tower] = replace(current.towers[tower], parts=tuple(parts))

    def waiting(self, model: str = "movies") -> WaitingTower:
        """Makes the query tower wait; the service must compute in threads, inline_max_us=0."""
        tower = WaitingTower(self.current(model).towers["query"].parts[0].network)
        self.with_network("query", tower, model)
        return tower

    def close(self) -> None:
        self._stop()
        self._thread.join(WAIT_S)
        self.listener.close()
        self._opened.close()
        assert not self._thread.is_alive(), "the service did not stop"

    def _stop(self) -> None:
        self._server.should_exit = True

    def _run(self) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self.listener])

        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(serve())


class WaitingTower:
    """Runs another tower, but only once it is released; `entered` is set when it is called."""

    def __init__(self, network: Tower) -> None:
        self._network = network
        self.entered = threading.Event()
        self.release = threading.Event()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self._network.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self._network.outputs

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.entered.set()
        assert self.release.wait(WAIT_S), "the test never released the tower"
        return self._network.run(inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


class FailingTower(WaitingTower):
    """Fails as no tower should."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        raise RuntimeError("secret of the tower")


def flip(file: Path, position: int = 100) -> None:
    """Changes one bit."""
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


@contextlib.contextmanager
def log_lines() -> Iterator[io.StringIO]:
    """What the service logs meanwhile, as it writes it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines({}))
    logger = logging.getLogger("rowcast")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield written
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)

"""One worker process: builds the service, starts it in the lifespan of the HTTP application, and
drains it.

Shutdown order: health checks fail, requests are still accepted for `drain_delay_s`, both transports
stop accepting, requests in progress finish, model versions are unloaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from types import FrameType
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from bundle import native
from bundle.storage.residency import return_freed_memory
from service.admin.server import AdminServer
from service.admin.status import WorkerStatus
from service.bounded_pool import BoundedPool
from service.change_plane import ChangePlane
from service.changes.follower import Changes
from service.config import ServiceSettings
from service.coordinator import LATE_S, Coordinator
from service.dataplane import Dataplane
from service.engine.engine import COMPUTE, Engine
from service.errors import DeadlineExceeded, Overloaded
from service.exit_codes import EXIT_BUG, EXIT_REQUIRED_MODEL
from service.grpc_api.server import GrpcServer
from service.grpc_api.servicer import embedding_service
from service.http.app import create_http_app, create_http_front
from service.observability import logging
from service.observability.metrics import Metrics
from service.observability.tracing import Tracing
from service.protocols.enabled import (
    grpc_services,
    grpc_services_off,
    http_protocols,
    http_protocols_off,
)
from service.request_log.record import RequestLog
from service.request_log.replay import Replay
from service.resources import compute_threads, resident_bytes
from service.security.tls import Certificates
from service.shards import servicer
from service.shards.router import Shards
from service.versions.lifecycle import VersionManager
from service.versions.loader import Loader
from service.versions.poller import Poller
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
from service.warm_up import warm_up
from service.workers.sockets import listen_to_requests
from service.workers.worker_start import WorkerStart

log = logging.logger(__name__)

_HEARTBEAT_S = 1.0
"""Time between two reports of a worker to the coordinator and to its metrics, unless something
changes: a fifth of the time after which the other workers do not count on it (`LATE_S`).
"""
_TRIMMED_BYTES = 16 << 20
"""Growth after which a worker returns the memory that its allocator keeps: a flood of frames over
gRPC leaves up to 80 MiB.
"""
_TRIMS_MAX = 60
"""Reports in a row at which memory is returned, until what is left counts as in use."""
_NOT_LISTENING = "the worker does not listen yet"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def create_app(start: WorkerStart, coordinator: Coordinator, is_replacement: bool) -> ASGIApp:
    """Returns the application of this worker process.

    Args:
      start: What the supervisor has passed to this process.
      coordinator: The coordinator of the service.
      is_replacement: See Worker.
    """
    settings = ServiceSettings(**start.settings)
    logging.configure(settings.log_level, pid=os.getpid())
    try:
        worker = Worker(settings, coordinator, start.grpc_port, is_replacement)
        if start.admin is not None:
            worker.admin = AdminServer(
                settings, coordinator, start.admin, worker.versions, worker.change_plane
            )
        return worker.asgi_app()
    except Exception:
        log.exception("cannot_start")
        if is_replacement:
            # A file may be missing for a moment. The others serve, and another replacement comes.
            sys.exit(EXIT_BUG)
        coordinator.set_exit_code(EXIT_BUG)
        # With this status, uvicorn's supervisor does not start the worker again.
        sys.exit(STARTUP_FAILURE)


class Worker:
    """The parts of one serving process.

    Attributes:
      metrics: The metrics of the process.
      versions: The loaded versions of every model.
      engine: Computes the requests.
      shards: Reach the shards of a cluster; None: the service is no router.
      changes: Apply the changes of candidates and contexts.
      poller: Keeps the loaded versions up to date.
      certificates: The certificates of the endpoints; None: plain text.
      dataplane: The path of a request behind both transports.
      change_plane: The path of a change behind both transports and the admin API.
      grpc: The gRPC server.
      bound_grpc_port: The port of the gRPC server; 0: it does not listen.
      admin: The admin API; None: there is none.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        coordinator: Coordinator,
        grpc_port: int | None,
        is_replacement: bool = False,
    ) -> None:
        """Creates all parts and starts none.

        Args:
          settings: The settings of the service.
          coordinator: Knows the other workers.
          grpc_port: 0 for any free one; None: `grpc` is the caller's to start.
          is_replacement: Whether the service has listened before. Then this worker listens only
            when it can respond from the same versions as the others, so that the kernel passes it
            no requests that they could respond to.
        """
        self._settings = settings
        self._coordinator = coordinator
        self._grpc_port = grpc_port
        threads = compute_threads(settings.workers, settings.threads)
        self.metrics = Metrics(coordinator.metrics)
        self.versions = VersionManager()

        # A shard serves routers, which send other calls than clients.
        compute = COMPUTE
        if settings.shard is not None:
            compute = servicer.COMPUTE
        self.engine = Engine(self.versions, settings, self.metrics, threads, compute)
        self.shards = None
        reach = None
        if settings.shard_addresses:
            self.shards = Shards(settings, self.metrics, self._announce_shards)
            reach = self.shards.reach

        self._resident_after_trim = 0
        self._trims = 0
        self._request_log = None
        if settings.record_rate:
            self._request_log = RequestLog(settings, self.metrics)
        self._replay = Replay(settings, self.versions)
        self.changes = Changes(settings, self.versions, self.metrics, self._announce_changes)
        throttle = LoadThrottle(lambda: self.engine.inflight)
        self.poller = Poller(
            settings,
            Loader(settings, threads, self._warm_up, throttle, reach),
            self.versions,
            self.metrics,
            coordinator,
            attach=self.changes.attach,
        )

        self.certificates = Certificates.of(settings, self._report_expiry)
        self._tracing = None
        if settings.tracing:
            self._tracing = Tracing()
        self.dataplane = Dataplane(
            self.engine,
            settings,
            self.metrics,
            self._request_log,
            self.certificates,
            self._tracing,
            self._current_problem,
        )
        self.change_plane = ChangePlane(self.changes, self.dataplane)
        if settings.shard is not None:
            service = servicer.SHARD_SERVICE
        else:
            service = embedding_service(self.change_plane)
        self.grpc = GrpcServer(
            self.dataplane, [service, *grpc_services(settings)], grpc_services_off(settings)
        )
        self.bound_grpc_port = 0
        self.admin: AdminServer | None = None

        # Nothing else waits for this thread: without reports, the supervisor ends the worker.
        self._reports = BoundedPool("reports", 1)
        self._checked_required = False
        self._is_replacement = is_replacement
        self._listens = False
        self._problem = self._current_problem()

        # These belong to the event loop, which does not run yet: `lifespan` sets them.
        self._may_listen: asyncio.Event
        self._changed_event: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._stopping_grpc: asyncio.Task[None] | None = None

    def _warm_up(self, version: ModelVersion, throttle: LoadThrottle) -> None:
        """Serves requests of the bundle, synthetic and recorded ones with a version before clients
        can get it.

        Raises:
          Exception: The version cannot serve; it is not made available.
        """
        warm_up(self.engine, version, self._settings, throttle)
        # What clients sent may be of candidates and contexts that were added since, while the
        # requests of the bundle may be of some that were deleted since.
        with self.changes.prepared(version) as changed:
            self._replay.check(changed, throttle)

    def _report_expiry(self, certificate: str, unix_seconds: float) -> None:
        self.metrics.set("certificate_expiry_timestamp_seconds", unix_seconds, certificate)

    def http_app(self) -> FastAPI:
        """Returns the application of pages, whose lifespan is that of the worker."""
        settings = self._settings
        app = create_http_app(
            self.dataplane,
            self.change_plane,
            http_protocols(settings),
            http_protocols_off(settings),
        )
        app.router.lifespan_context = self.lifespan
        return app

    def http_front(self, pages: ASGIApp) -> ASGIApp:
        """Returns the HTTP server's application: admission, calls, and what `http_app` returned."""
        settings = self._settings
        return create_http_front(
            pages, self.dataplane, http_protocols(settings), http_protocols_off(settings)
        )

    def asgi_app(self) -> ASGIApp:
        """Returns the HTTP server's application, with pages of its own."""
        return self.http_front(self.http_app())

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Starts the worker, and unloads everything after the last request."""
        self._loop = asyncio.get_running_loop()
        self._changed_event = asyncio.Event()
        self._may_listen = asyncio.Event()
        self.change_plane.start()
        if not self._is_replacement:
            await self._listen()
        if native.MISSING:
            log.warning("native_extension_missing", extra=logging.fields(problem=native.MISSING))
        self._handle_signals()
        self.versions.subscribe(self._announce_versions)
        if self.shards is not None:
            await self.shards.start()
        # Imported objects stay until the end. Collections that looked at them took 30 to 46 ms
        # under load (ADR 20).
        gc.freeze()
        # Before the state file is read: commands from now on wait for this worker.
        await self._send_report()
        self.poller.start()
        self.changes.start()
        heartbeat = asyncio.create_task(self._heartbeat())
        try:
            if self._is_replacement:
                await self._may_listen.wait()
                await self._listen()
            yield
        finally:
            heartbeat.cancel()
            await self._stop()

    async def _listen(self) -> None:
        """Takes requests from now on, over both transports."""
        try:
            if self._grpc_port is not None:
                self.bound_grpc_port = await self.grpc.start(
                    self._settings.host, self._grpc_port, shared=self._grpc_port != 0
                )
            listen_to_requests()
        except Exception:
            log.exception("cannot_start")
            if not self._is_replacement:
                self._coordinator.set_exit_code(EXIT_BUG)
            raise
        self._listens = True
        self._announce()

    def _handle_signals(self) -> None:
        """Lets SIGTERM and SIGINT fail the health checks first, and reach uvicorn's own handler
        after the delay.
        """
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                stop = signal.getsignal(number)
                if callable(stop):
                    signal.signal(number, functools.partial(self._drain_on_signal, stop))

    def _drain_on_signal(
        self, stop: Callable[[int, FrameType | None], None], number: int, frame: FrameType | None
    ) -> None:
        # A terminal signals all processes of the service, and the supervisor signals its workers.
        # uvicorn would take a second SIGINT as a request to stop without waiting.
        if self.engine.shutting_down:
            return
        # Here, not on the event loop: the second signal may come before the loop runs.
        self.engine.shutting_down = True
        extra = logging.fields(
            signal=signal.Signals(number).name, drain_timeout_s=self._settings.drain_timeout_s
        )
        log.info("draining", extra=extra)
        self._loop.call_soon_threadsafe(self.drain, lambda: stop(number, frame))

    def drain(self, stop: Callable[[], None]) -> None:
        """Fails the health checks now, and calls `stop` after the delay. On the event loop."""
        self.engine.shutting_down = True
        # uvicorn stops only after it has started.
        self._may_listen.set()
        self._announce()

        def stop_accepting() -> None:
            self._stopping_grpc = self._loop.create_task(
                self.grpc.stop(self._settings.drain_timeout_s)
            )
            stop()

        self._loop.call_later(self._settings.drain_delay_s, stop_accepting)

    async def _stop(self) -> None:
        """Finishes what is in progress, then unloads."""
        if self.admin is not None:
            self.admin.accept(False)
        self.engine.drain()
        self.poller.stop()
        self.changes.stop()
        # Without a signal, as under Ray Serve, nothing has begun to stop the gRPC server.
        await (self._stopping_grpc or self.grpc.stop(self._settings.drain_timeout_s))
        drained = await self.engine.wait_until_drained(self._settings.drain_timeout_s)
        if self.shards is not None:
            await self.shards.stop()
        if not drained:
            log.warning("drain_incomplete", extra=logging.fields(inflight=self.engine.inflight))
        self.dataplane.close()
        self.change_plane.close()
        self._reports.close()
        self.engine.close()
        if self._request_log is not None:
            self._request_log.close()
        if self._tracing is not None:
            self._tracing.close()
        # A request that is still computed reads its tables: to unmap them would be a fault.
        if drained:
            self.versions.close()
        self.metrics.flush()
        log.info("stopped", extra=logging.fields(drained=drained))
        # Later lines are written at once: uvicorn and the event loop may still report something.
        logging.finish()
        is_waiting = bool(self.change_plane.calls or self._reports.calls)
        if (is_waiting or not drained) and threading.current_thread() is threading.main_thread():
            # A thread that computes or waits cannot be stopped, and would keep the process.
            os._exit(0)

    def _announce_versions(self) -> None:
        """Reports a change of the loaded versions, in the thread that made it."""
        if self.versions.settled and not self._checked_required:
            self._checked_required = True
            missing = sorted(set(self._settings.require) - self.versions.available())
            if missing:
                problem = self.versions.missing(missing)
                extra = logging.fields(models=missing, problem=problem)
                log.error("required_models_missing", extra=extra)
                # Each worker finds out; a second signal would interrupt the service.
                if self._coordinator.set_exit_code(EXIT_REQUIRED_MODEL):
                    self._loop.call_soon_threadsafe(self._stop_service)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._announce)

    def _announce_changes(self) -> None:
        """Reports that a copy of changes has caught up, in the thread that noticed it."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._announce)

    def _announce_shards(self) -> None:
        """Reports that other replicas of shards can be called. On the event loop."""
        if self._settings.ready_requires_shards:
            self._announce()

    def _announce(self) -> None:
        """Reports to health checks, metrics and the log whether the worker is ready. On the event
        loop.
        """
        # A replacement listens once it would respond from the same versions as the others.
        if self.versions.settled and not self.poller.disagreement():
            self._may_listen.set()

        problem = self._current_problem()
        before = self._problem
        self._problem = problem
        self.grpc.set_serving(not problem)
        self.metrics.set("ready", not problem)
        self._changed_event.set()
        if problem != before:
            if problem:
                log.warning("not_ready", extra=logging.fields(problem=problem))
            else:
                log.info("ready")

    def _current_problem(self) -> str:
        """Returns the reason why requests should not be sent here; "": they should."""
        problem = self.engine.problem or self.changes.problem
        if not problem and self.shards is not None and self._settings.ready_requires_shards:
            problem = self.shards.problem
        if self._listens:
            return problem
        return self.poller.disagreement() or problem or _NOT_LISTENING

    async def _heartbeat(self) -> None:
        """Reports what this worker serves to the coordinator, and its load to the metrics: on
        changes, and at least once per second.
        """
        # The parent as it was when this process began. Once the supervisor is gone, the process has
        # another one, and nothing would ever stop it.
        parent = multiprocessing.parent_process()
        while True:
            # Cleared before the report, so that a change while it is sent causes another report.
            self._changed_event.clear()
            if parent is not None and os.getppid() != parent.pid:
                os.kill(os.getpid(), signal.SIGTERM)
            self.engine.report_load()
            self.dataplane.report_load()
            self.metrics.flush()
            await self._send_report()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed_event.wait(), _HEARTBEAT_S)

    async def _send_report(self) -> None:
        # In a thread: the supervisor may be busy. It may be gone, too.
        with contextlib.suppress(EOFError, OSError, DeadlineExceeded, Overloaded):
            await self._reports.run(self._report, time.monotonic() + LATE_S)

    def _report(self) -> None:
        shards: Iterable[dict[str, Any]] = ()
        if self.shards is not None:
            shards = self.shards.status()
        resident = resident_bytes()
        if resident > self._resident_after_trim + _TRIMMED_BYTES:
            return_freed_memory()
            resident = resident_bytes()
            # What is in use now may be free at one of the next reports.
            self._trims += 1
            if self._trims == _TRIMS_MAX:
                self._resident_after_trim = resident
                self._trims = 0
        else:
            self._trims = 0
        # What was unloaded since does not count.
        self._resident_after_trim = min(resident, self._resident_after_trim)
        status = WorkerStatus.of(self.versions, self.poller, resident, shards)
        report = self.poller.report(self._current_problem(), self._listens, status.to_json())
        others_serve = self._coordinator.report(os.getpid(), report)
        # A worker that is still loading could not execute the commands of operators. If no other
        # one could either, it can at least return its status and change the desired state.
        if self.admin is not None and not self.engine.shutting_down:
            self.admin.accept(self._listens or not others_serve)

    def _stop_service(self) -> None:
        """Stops the whole service: its supervisor, or this process if it has none."""
        stopped_pid = os.getpid()
        if multiprocessing.parent_process() is not None:
            stopped_pid = os.getppid()
        os.kill(stopped_pid, signal.SIGTERM)

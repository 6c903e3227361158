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
from collections.abc import AsyncIterator, Callable
from types import FrameType

from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from bundle import native
from service.admin.server import serve_admin
from service.admin.status import WorkerStatus
from service.changes.follower import Changes
from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.dataplane import Dataplane
from service.engine.engine import COMPUTE, Engine
from service.exit_codes import EXIT_BUG, EXIT_REQUIRED_MODEL
from service.grpc_api.server import GrpcServer
from service.grpc_api.servicer import embedding_service
from service.http.app import create_http_app, create_http_front
from service.observability import logging
from service.observability.metrics import Metrics
from service.observability.tracing import Tracing
from service.protocols import grpc_services, http_protocols
from service.request_log.record import RequestLog
from service.request_log.replay import Replay
from service.resources import compute_threads, resident_bytes
from service.security.tls import Certificates
from service.serving_records.recordings import read_recordings
from service.serving_records.warm_up import compute_requests
from service.shards import servicer
from service.shards.router import Shards
from service.versions.lifecycle import VersionManager
from service.versions.loader import Loader
from service.versions.poller import Poller
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
from service.workers.sockets import listen_to_requests
from service.workers.worker_start import WorkerStart

log = logging.logger(__name__)

_HEARTBEAT_S = 1.0
_NOT_LISTENING = "the worker does not listen yet"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def create_app(start: WorkerStart, coordinator: Coordinator, *, is_replacement: bool) -> ASGIApp:
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
            serve_admin(settings, coordinator, start.admin, worker.changes)
        return worker.asgi_app()
    except Exception:
        log.exception("cannot_start")
        if is_replacement:
            # A file may be missing for a moment. The others serve, and another replacement comes.
            sys.exit(EXIT_BUG)
        coordinator.set_exit_code(EXIT_BUG)
        sys.exit(STARTUP_FAILURE)  # uvicorn's supervisor does not start the worker again


class Worker:
    """The parts of one serving process."""

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
        self.metrics = Metrics()
        self.versions = VersionManager()
        is_shard = settings.shard is not None
        compute = servicer.COMPUTE if is_shard else COMPUTE
        self.engine = Engine(self.versions, settings, self.metrics, threads, compute)
        self.shards = None
        if settings.shard_addresses:
            self.shards = Shards(settings, self.metrics, self._shards_changed)
        reach = None if self.shards is None else self.shards.reach
        self._request_log = RequestLog(settings, self.metrics) if settings.record_rate else None
        self._replay = Replay(settings, self.versions, functools.partial(read_recordings, settings))
        self.changes = Changes(settings, self.versions, self.metrics, self._changes_copied)
        self.poller = Poller(
            settings,
            Loader(
                settings, threads, self._warm_up, LoadThrottle(lambda: self.engine.inflight), reach
            ),
            self.versions,
            self.metrics,
            coordinator,
            attach=self.changes.attach,
        )
        self.certificates = Certificates.of(settings, self._report_expiry)
        self._tracing = Tracing() if settings.tracing else None
        self.dataplane = Dataplane(
            self.engine,
            settings,
            self.metrics,
            self._request_log,
            self.certificates,
            self._tracing,
        )
        service = servicer.SHARD_SERVICE if is_shard else embedding_service(self.changes)
        self.grpc = GrpcServer(self.dataplane, [service, *grpc_services(settings)])
        self.bound_grpc_port = 0
        self._checked_required = False
        self._is_replacement = is_replacement
        self._listens = False
        self._problem = self._current_problem()
        self._may_listen: asyncio.Event
        self._changed_event: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._stopping_grpc: asyncio.Task[None] | None = None

    def _warm_up(self, version: ModelVersion, throttle: LoadThrottle) -> None:
        self.engine.warm_up(version, throttle)
        compute_requests(version, self._settings, throttle)
        self._replay.check(version, throttle)

    def _report_expiry(self, certificate: str, unix_seconds: float) -> None:
        self.metrics.set("certificate_expiry_timestamp_seconds", unix_seconds, certificate)

    def http_app(self) -> FastAPI:
        """Returns the application of pages, whose lifespan is that of the worker."""
        app = create_http_app(self.dataplane, self.changes, http_protocols(self._settings))
        app.router.lifespan_context = self.lifespan
        return app

    def http_front(self, pages: ASGIApp) -> ASGIApp:
        """Returns the HTTP server's application: admission, calls, and what `http_app` returned."""
        return create_http_front(pages, self.dataplane, http_protocols(self._settings))

    def asgi_app(self) -> ASGIApp:
        """Returns the HTTP server's application, with pages of its own."""
        return self.http_front(self.http_app())

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Starts the worker, and unloads everything after the last request."""
        self._loop = asyncio.get_running_loop()
        self._changed_event = asyncio.Event()
        self._may_listen = asyncio.Event()
        if not self._is_replacement:
            await self._listen()
        if native.MISSING:
            log.warning("native_extension_missing", extra=logging.fields(problem=native.MISSING))
        self._handle_signals()
        self.versions.subscribe(self._versions_changed)
        if self.shards is not None:
            await self.shards.start()
        gc.freeze()  # what is imported stays: collections need not look at it
        # before the state file is read: commands from now on wait for this worker
        self._report()
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
        """Has SIGTERM and SIGINT fail the health checks first and reach uvicorn's own handler after
        the delay.
        """
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                stop = signal.getsignal(number)
                if callable(stop):
                    signal.signal(number, functools.partial(self._signalled, stop))

    def _signalled(
        self, stop: Callable[[int, FrameType | None], None], number: int, frame: FrameType | None
    ) -> None:
        if self.engine.shutting_down:  # both the terminal and the supervisor have signalled
            return
        self.engine.shutting_down = True  # now: the second signal may come before the loop runs
        extra = logging.fields(
            signal=signal.Signals(number).name, drain_timeout_s=self._settings.drain_timeout_s
        )
        log.info("draining", extra=extra)
        self._loop.call_soon_threadsafe(self.drain, lambda: stop(number, frame))

    def drain(self, stop: Callable[[], None]) -> None:
        """Fails the health checks now, and calls `stop` after the delay. On the event loop."""
        self.engine.shutting_down = True
        self._may_listen.set()  # uvicorn stops only after it has started
        self._announce()

        def stop_accepting() -> None:
            self._stopping_grpc = self._loop.create_task(
                self.grpc.stop(self._settings.drain_timeout_s)
            )
            stop()

        self._loop.call_later(self._settings.drain_delay_s, stop_accepting)

    async def _stop(self) -> None:
        """Finishes what is in progress, then unloads."""
        self.engine.drain()
        self.poller.stop()
        self.changes.stop()
        await (self._stopping_grpc or self.grpc.stop(self._settings.drain_timeout_s))
        drained = await self.engine.drained(self._settings.drain_timeout_s)
        if self.shards is not None:
            await self.shards.stop()
        if not drained:
            log.warning("drain_incomplete", extra=logging.fields(inflight=self.engine.inflight))
        self.dataplane.close()
        self.engine.close()
        if self._request_log is not None:
            self._request_log.close()
        if self._tracing is not None:
            self._tracing.close()
        if drained:
            self.versions.close()
        self.metrics.flush()
        log.info("stopped", extra=logging.fields(drained=drained))
        logging.finish()  # uvicorn and the event loop may still report something
        if not drained and threading.current_thread() is threading.main_thread():
            os._exit(0)  # a compute thread cannot be stopped, and would keep the process

    def _versions_changed(self) -> None:
        """Reports a change of the loaded versions, in the thread that made it."""
        if self.versions.settled and not self._checked_required:
            self._checked_required = True
            if missing := sorted(set(self._settings.require) - self.versions.available()):
                log.error("required_models_missing", extra=logging.fields(models=missing))
                # Each worker finds out; a second signal would interrupt the service.
                if self._coordinator.set_exit_code(EXIT_REQUIRED_MODEL):
                    self._loop.call_soon_threadsafe(self._stop_service)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._announce)

    def _changes_copied(self) -> None:
        """Reports that the copy of a change log has caught up, in the thread that made it."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._announce)

    def _shards_changed(self) -> None:
        """Reports that other replicas of shards can be called. On the event loop."""
        if self._settings.ready_requires_shards:
            self._announce()

    def _announce(self) -> None:
        """Reports to health checks, metrics and the log whether the worker is ready. On the event
        loop.
        """
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
        """Returns why requests should not be sent here; "": they should."""
        problem = self.engine.problem or self.changes.problem
        if not problem and self.shards is not None and self._settings.ready_requires_shards:
            problem = self.shards.problem
        if self._listens:
            return problem
        return self.poller.disagreement() or problem or _NOT_LISTENING

    async def _heartbeat(self) -> None:
        """Reports what this worker serves to the coordinator, and its load to the metrics: on
        changes, once a second.
        """
        parent = multiprocessing.parent_process()  # as it was when this process began
        while True:
            self._changed_event.clear()
            if parent is not None and os.getppid() != parent.pid:  # the supervisor is gone
                os.kill(os.getpid(), signal.SIGTERM)
            self.engine.report_load()
            self.metrics.flush()
            with contextlib.suppress(EOFError, OSError):  # the supervisor is about to be gone
                await asyncio.to_thread(self._report)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed_event.wait(), _HEARTBEAT_S)

    def _report(self) -> None:
        shards = () if self.shards is None else self.shards.status()
        status = WorkerStatus.of(self.versions, self.poller, resident_bytes(), shards)
        report = self.poller.report(self._current_problem(), self._listens, status.to_json())
        self._coordinator.report(os.getpid(), report)

    def _stop_service(self) -> None:
        """Stops the whole service: its supervisor, or this process if it has none."""
        parent = multiprocessing.parent_process()
        os.kill(os.getpid() if parent is None else os.getppid(), signal.SIGTERM)

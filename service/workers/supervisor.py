"""The supervisor: the first process of a service, which is always there and stays small
(`service/program.py`).

uvicorn's supervisor starts the workers, replaces those that have ended, and passes signals on. This
module adds what it lacks: it kills a worker whose event loop stands still, so that it is replaced,
reports how workers end, keeps what the workers must know of each other (`service/coordinator.py`),
and responds to health checks and scrapes (`health.py`). Nothing here waits for a worker.

What this module imports decides the size of the process: no settings, no FastAPI, no numpy, and
gRPC only for `health_grpc_port`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from bundle.storage.output_file import OutputFile, OutputRejected
from service import coordinator
from service.coordinator import Coordinator
from service.exit_codes import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from service.loopback import on_loopback
from service.observability import logging
from service.security.hosts import AllowedHosts
from service.workers.announcement import Announcement, admin_url, announce
from service.workers.health import Health, serve_grpc_health, serve_health
from service.workers.sockets import http_config, listen, listen_or_any, notify, port_of, reserve
from service.workers.supervisor_metrics import SupervisorMetrics
from service.workers.worker_start import WorkerStart

log = logging.logger(__name__)

_ADMIN_PORT = 8090
_HEALTH_PORT = 8081
_CHECK_S = 0.25
"""Time between two looks at the workers."""
_WATCHDOG_S = 5.0
"""Time between two signs of life for systemd. A unit's `WatchdogSec` must be longer."""
_REPLACEMENT_S = 600
"""Time in which the replacement of a worker must have loaded its models; the old worker serves
meanwhile. uvicorn waits as long for a sign of a worker that hangs, unless the worker is killed.
"""
_EXIT_S = 5.0
"""Time for a worker to exit after it has drained."""


class Supervisor:
    """One running service."""

    def __init__(
        self,
        settings: dict[str, Any],
        create_app: Callable[[WorkerStart, Coordinator, bool], Any],
    ) -> None:
        """Creates the supervisor of a service.

        Args:
          settings: The settings by name, as JSON values.
          create_app: See WorkerStart.

        Raises:
          OSError: There is no directory for temporary files.
        """
        self._settings = settings
        self._create_app = create_app
        self._opened = contextlib.ExitStack()
        self._stopping = False
        self._drain_s = settings["drain_delay_s"] + settings["drain_timeout_s"] + _EXIT_S
        self._watchdog_due = 0.0
        self._processes: Multiprocess
        self._workers: dict[int, Process] = {}
        """The workers that uvicorn counted on at the last look, by process id."""
        self._ended: set[int] = set()
        """The process ids of workers whose end was reported."""
        self._directory_problem = ""
        self._coordinator = Coordinator()
        self._metrics = SupervisorMetrics()
        self._opened.callback(self._metrics.close)
        self._health = Health(
            self._coordinator, self._metrics, settings["workers"], settings["worker_timeout_s"]
        )
        self._coordinator.share_metrics(self._health.render_metrics)

    def run(self) -> int:
        """Runs the service until a signal; returns the exit code."""
        try:
            with self._opened:
                return self._run()
        except OSError as problem:
            log.error("cannot_start", extra=logging.fields(problem=str(problem)))
            return EXIT_USAGE

    def _run(self) -> int:
        settings = self._settings
        sockets = self._bind()
        ports = {name: port_of(bound) for name, bound in sockets.items()}
        # prometheus_client reads the variable as soon as a worker imports it.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self._metrics.directory)
        address = coordinator.serve(self._coordinator)
        start = WorkerStart(
            settings, address, ports["grpc"], sockets.get("admin"), self._create_app
        )
        ssl_context_factory = None
        if settings["tls_cert"] is not None:
            ssl_context_factory = start.ssl_context
        config = http_config(
            start,
            keep_alive_s=settings["keep_alive_s"],
            drain_timeout_s=settings["drain_timeout_s"],
            max_connections=settings["max_connections"],
            ssl_context_factory=ssl_context_factory,
            factory=True,
            loop="uvloop",
            lifespan="on",
            workers=settings["workers"],
            timeout_worker_healthcheck=_REPLACEMENT_S,
        )
        self._processes = Multiprocess(config, [sockets["http"]])
        # After uvicorn's constructor, which sets handlers of its own.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop_on_signal)

        health_host = settings["health_host"] or settings["host"]
        hosts = AllowedHosts(health_host, settings["allowed_hosts"], accepts_addresses=True)
        serve_health(self._health, hosts, sockets["health"])
        if "health_grpc" in sockets:
            serve_grpc_health(self._health, health_host, ports["health_grpc"])
        threading.Thread(target=self._watch, args=(ports,), daemon=True).start()
        self._processes.run()
        return self._coordinator.exit_code(EXIT_OK)

    def _bind(self) -> dict[str, socket.socket]:
        """Binds the endpoints, by name.

        Raises:
          OSError: An address cannot be bound; the message names it.
        """
        settings = self._settings
        host = settings["host"]
        health_host = settings["health_host"] or host
        sockets: dict[str, socket.socket] = {}

        def close_at_end(name: str, bound: socket.socket) -> None:
            sockets[name] = self._opened.enter_context(bound)

        # Ports that all workers bind are reserved; the others have one socket each.
        close_at_end("http", reserve("HTTP", host, settings["http_port"]))
        close_at_end("grpc", reserve("gRPC", host, settings["grpc_port"]))
        if settings["admin"]:
            address = settings["admin_host"], settings["admin_port"]
            close_at_end("admin", listen_or_any("admin", *address, _ADMIN_PORT, listen))
        address = health_host, settings["health_port"]
        close_at_end("health", listen_or_any("health", *address, _HEALTH_PORT, listen))
        if settings["health_grpc_port"] is not None:
            bound = reserve("health gRPC", health_host, settings["health_grpc_port"])
            close_at_end("health_grpc", bound)
        return sockets

    def _stop_on_signal(self, number: int, _: FrameType | None) -> None:
        """Drains the workers at a first signal, and kills them at a second one."""
        if self._stopping:
            log.warning("interrupted", extra=logging.fields(signal=signal.Signals(number).name))
            self._kill([process.pid for process in self._processes.processes])
            # Nothing else runs after `os._exit`, which waits for no thread.
            self._metrics.close()
            logging.shutdown()
            os._exit(EXIT_INTERRUPTED)
        self._stopping = True
        self._health.stopping = True
        notify("STOPPING=1")
        # uvicorn's own handler has no effect while a worker is replaced, and uvicorn passes the
        # signal on only once the worker that it waits for has responded.
        self._processes.should_exit.set()
        for process in list(self._processes.processes):
            if process.pid is not None and not _has_ended(process):
                os.kill(process.pid, signal.SIGTERM)

    def _watch(self, ports: dict[str, int]) -> None:
        """Looks at the workers, for as long as the process lives."""
        announced = False
        while True:
            # First, since a worker that starts without the directory of metrics fails.
            self._restore_directory()
            running = self._observe_ends()
            hung = self._health.observe(running, _CHECK_S)
            if hung and not self._stopping:
                log.error("workers_hung", extra=logging.fields(pids=hung))
                self._kill(hung)
            if self._stopping:
                self._end_after_drain()
            self._release_pipes()

            if not announced and self._health.started:
                announced = True
                self._announce(ports)
            # systemd restarts a service whose supervisor no longer looks at the workers.
            if announced and time.monotonic() >= self._watchdog_due:
                self._watchdog_due = time.monotonic() + _WATCHDOG_S
                notify("WATCHDOG=1")
            time.sleep(_CHECK_S)

    def _restore_directory(self) -> None:
        problem = ""
        try:
            self._metrics.restore_directory()
        except OSError as error:
            problem = str(error)
        # Logged once, not at every look while it lasts.
        if problem and problem != self._directory_problem:
            log.error("run_directory_lost", extra=logging.fields(problem=problem))
        self._directory_problem = problem

    def _observe_ends(self) -> list[int]:
        """Reports the workers that have ended; returns the process ids of the running workers that
        uvicorn counts on.
        """
        # A copy: uvicorn replaces workers in another thread.
        processes = {
            process.pid: process for process in list(self._processes.processes) if process.pid
        }
        workers = self._workers | processes
        # A replacement is not among uvicorn's processes before it is ready, but may have reported.
        for pid in {*workers, *self._coordinator.reports()} - self._ended:
            reason = _end_of(pid, workers.get(pid))
            if reason is None:
                continue
            self._ended.add(pid)
            if not reason or self._stopping:
                self._coordinator.forget(pid)
                continue
            load = self._coordinator.worker_ended(pid, reason)
            # Exit statuses share one series, whatever their number.
            series = "exit"
            if reason in signal.Signals.__members__:
                series = reason
            self._metrics.worker_ended(series)
            log.error("worker_ended", extra=logging.fields(pid=pid, reason=reason, **load))
        self._workers = processes
        # A process id of a worker that uvicorn has replaced may be used again.
        self._ended &= processes.keys()
        return [pid for pid in processes if pid not in self._ended]

    def _announce(self, ports: dict[str, int]) -> None:
        """Reports where the service listens, once every worker does."""
        self._coordinator.set_started()
        admin = ""
        if "admin" in ports:
            host = self._settings["admin_host"]
            tls = self._settings["tls_cert"] is not None and not on_loopback(host)
            admin = admin_url(host, ports["admin"], tls)
        root = str(Path(self._settings["root"]).absolute())
        try:
            self._opened.enter_context(announce(Announcement(os.getpid(), root, admin)))
        except OSError as problem:
            # Only `rowcast-serve ctl` is affected: it needs --admin then.
            log.warning("not_announced", extra=logging.fields(problem=str(problem)))
        if self._settings["ports_file"] is not None:
            _write_ports(Path(self._settings["ports_file"]), ports)
        endpoints = {"host": self._settings["host"], **ports}
        about = logging.fields(**endpoints, workers=self._settings["workers"])
        log.info("listening", extra=about)
        notify("READY=1")

    def _release_pipes(self) -> None:
        """Shuts down the pipes of workers that have ended. uvicorn holds both ends of each and
        would wait `_REPLACEMENT_S` for a sign of a worker that was killed before it could reply.

        uvicorn alone closes them, in another thread: to close a descriptor twice could close a
        connection that has its number by then.
        """
        for process in list(self._processes.processes):
            if process.pid is not None and _has_ended(process):
                # OSError: uvicorn has closed it.
                with (
                    contextlib.suppress(OSError),
                    socket.socket(fileno=os.dup(process.child_conn.fileno())) as end,
                ):
                    end.shutdown(socket.SHUT_RDWR)

    def _end_after_drain(self) -> None:
        """Kills the workers that should have drained by now, such as one that hangs. Counts the
        time for which this process runs: the machine may have been suspended.
        """
        self._drain_s -= _CHECK_S
        if self._drain_s > 0:
            return
        processes = list(self._processes.processes)
        running = [process for process in processes if not _has_ended(process)]
        if running:
            pids = [process.pid for process in running]
            log.error("workers_hung", extra=logging.fields(pids=pids))
            self._kill(pids)

    def _kill(self, pids: list[int | None]) -> None:
        for process in list(self._processes.processes):
            if process.pid in pids:
                # uvicorn's method would also close the pipe, in this thread: see `_release_pipes`.
                process.process.kill()


def _has_ended(process: Process) -> bool:
    """Returns whether a worker has ended. The sentinel shows it without reaping the process, which
    uvicorn does in another thread.
    """
    return bool(wait([process.process.sentinel], timeout=0))


def _end_of(pid: int, process: Process | None) -> str | None:
    """Returns how a worker has ended: the name of a signal, or an exit status; "": by request, or
    in a way that can no longer be found; None: it runs.
    """
    try:
        # Without reaping it: uvicorn does in another thread, and would miss how it ended.
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if end is None:
            return None
        status = end.si_status
        # The number of the signal, which `exitcode` states as a negative number.
        if end.si_code != os.CLD_EXITED:
            status = -status
    except ChildProcessError:
        # uvicorn has reaped the process; a replacement that was never ready has no Process.
        status = 0
        if process is not None:
            status = process.exitcode or 0
    if status > 0:
        return f"exit status {status}"
    if status == 0 or -status in {signal.SIGTERM, signal.SIGINT}:
        return ""
    return signal.Signals(-status).name


def _write_ports(path: Path, ports: dict[str, int]) -> None:
    """Writes the bound ports in one rename, so that a reader never sees half of them."""
    try:
        OutputFile(path).write(orjson.dumps(ports))
    except (OutputRejected, OSError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        log.error("ports_file_unwritable", extra=logging.fields(file=str(path), problem=reason))

"""The parent of several workers: binds, forks, starts again what ends, passes signals on. It answers nothing itself.

All that workers need is imported before it forks and nothing is started: with one thread and no event loop a fork is
safe at any time, the pages of what is imported are shared, and a worker starts in no time.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service import logs
from service.control.listener import admin_listener, port_of
from service.exits import EXIT_BUG, EXIT_DONE, EXIT_INTERRUPTED, EXIT_REQUIRED
from service.ports_file import write_ports
from service.settings import ServiceSettings
from service.sockets import listen
from service.supervision import ALIVE, READY, STOPPING, tell
from service.workers.board import Board, Door, State
from service.workers.place import Place, ring

_log = logs.logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_LOOK_S = 1.0
_LOOK_AT_START_S = 0.01
_STUCK_LOOKS = 60
"""A worker whose event loop did not go round between so many looks is killed. Looks are counted, not seconds: a machine
that was suspended ends nobody."""
_BACKOFF_S, _BACKOFF_S_MAX = 0.1, 30.0
_SETTLED_S = 60.0
"""A worker that lived so long was no failed start."""
_PR_SET_PDEATHSIG = 1
_NAMES = {Door.HTTP: "HTTP", Door.GRPC: "gRPC"}

Run = Callable[[Place], int]


@dataclass
class _Worker:
    """One worker, with or without a process."""

    pid: int = 0
    started: float = 0.0
    failures: int = 0
    """In a row."""
    start_at: float = 0.0
    beats: int = -1
    looks: int = 0
    """In which it did not beat."""


class Parent:
    """Keeps the workers of one service running until a signal."""

    def __init__(self, settings: ServiceSettings, run: Run) -> None:
        """Serves with `settings.workers` processes, each of which calls `run` and ends with the code it returns."""
        self._settings, self._run = settings, run
        self._workers = [_Worker() for _ in range(settings.workers)]
        self._board = Board(settings.workers)
        self._code = EXIT_DONE
        self._opened = self._stopping = False
        self._looked = 0.0

    def run(self) -> int:
        """Serves until a signal, then waits until every worker has drained; returns the exit code.

        Raises:
          OSError: an address cannot be bound, or the ports file or the private directory cannot be written.
        """
        settings = self._settings
        ports = {Door.HTTP: settings.http_port, Door.GRPC: settings.grpc_port}
        self._listeners = {door: listen(_NAMES[door], settings.host, port) for door, port in ports.items()}
        self._admin = admin_listener(settings)
        self._directory = Path(tempfile.mkdtemp(prefix="rowcast-"))  # 0700
        self._bells = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in self._workers)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            while not self._stopping or any(each.pid for each in self._workers):
                self._start_due()
                received = signal.sigtimedwait(_SIGNALS, self._next_look_s())
                self._received(received.si_signo if received else 0)
                self._look()
        finally:
            self._kill()
            shutil.rmtree(self._directory, ignore_errors=True)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        _log.info("stopped", extra=logs.fields(code=self._code))
        return self._code

    def _next_look_s(self) -> float:
        if not self._opened:
            return _LOOK_AT_START_S
        due = [each.start_at - time.monotonic() for each in self._workers if not each.pid]
        return max(0.0, min([_LOOK_S, *due]))

    def _received(self, number: int) -> None:
        self._reap()
        if number == signal.SIGHUP:
            self._pass_on(signal.SIGHUP)
        elif number in (signal.SIGTERM, signal.SIGINT):
            name = signal.Signals(number).name
            if self._stopping:
                _log.warning("interrupted", extra=logs.fields(signal=name))
                self._code = EXIT_INTERRUPTED
                self._kill()
            else:
                _log.info("draining", extra=logs.fields(signal=name, drain_s=self._settings.drain_s))
                self._stop()

    def _start_due(self) -> None:
        now = time.monotonic()
        for index, worker in enumerate(self._workers):
            if not (self._stopping or worker.pid) and worker.start_at <= now:
                self._start(index, worker)

    def _start(self, index: int, worker: _Worker) -> None:
        place = Place(index, self._board, self._bells, self._directory, self._listeners, os.getpid(), self._admin)
        if worker.started:
            self._board.restarted(index)
        self._board.tell(index, State.STARTING)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self._become(place)
        worker.pid, worker.started, worker.beats, worker.looks = pid, time.monotonic(), -1, 0
        _log.info("worker_started", extra=logs.fields(worker=index, pid=pid))

    def _become(self, place: Place) -> None:
        """Runs in the new process, and never returns."""
        code = EXIT_BUG
        try:
            os.setpgid(0, 0)  # Ctrl-C is the parent's, which passes it on
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            if not place.orphaned:
                code = self._run(place)
        except BaseException:  # noqa: BLE001 - nothing may leave the new process into the parent's code
            _log.exception("crashed")
        finally:
            with contextlib.suppress(Exception):
                logging.shutdown()
            os._exit(code)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                for index, worker in enumerate(self._workers):
                    if worker.pid == pid:
                        self._ended(index, worker, os.waitstatus_to_exitcode(status))

    def _ended(self, index: int, worker: _Worker, code: int) -> None:
        now = time.monotonic()
        worker.pid = 0
        for door in Door:
            self._board.hold(index, door, 0)
        self._board.keep_at_work(index, 0)
        self._board.tell(index, State.DOWN)
        ring(self._bells)
        if self._stopping:
            untouched = code == -signal.SIGTERM  # asked before it could hear that, and before it had a call
            if code and not untouched and self._code == EXIT_DONE:
                self._code = max(code, EXIT_BUG)
            return
        never_ran = not self._opened and code > 0  # an address, a bug at start
        if never_ran or (code == EXIT_REQUIRED and not self._board.restarts(index)):
            self._code = code
            self._stop()
            return
        worker.failures = 0 if code == EXIT_DONE or now - worker.started > _SETTLED_S else worker.failures + 1
        delay_s = min(_BACKOFF_S * 2 ** max(0, worker.failures - 1), _BACKOFF_S_MAX) if worker.failures else 0.0
        worker.start_at = now + delay_s
        told = {"signal": signal.Signals(-code).name} if code < 0 else {"code": code}
        _log.error("worker_ended", extra=logs.fields(worker=index, **told, restart_in_s=delay_s))

    def _look(self) -> None:
        states = [self._board.state(each) for each in range(len(self._workers))]
        if not self._opened and not self._stopping and all(each in (State.OPEN, State.READY) for each in states):
            self._opened = True
            self._tell_ports()
        if time.monotonic() - self._looked < _LOOK_S:  # a signal came between
            return
        self._looked = time.monotonic()
        tell(ALIVE)
        for index, worker in enumerate(self._workers):
            beats = self._board.beats(index)
            worker.looks = 0 if beats != worker.beats or not self._opened else worker.looks + 1
            worker.beats = beats
            if worker.pid and worker.looks >= _STUCK_LOOKS:
                worker.looks = 0
                _log.error("worker_stuck", extra=logs.fields(worker=index, pid=worker.pid))
                os.kill(worker.pid, signal.SIGKILL)

    def _tell_ports(self) -> None:
        settings = self._settings
        http, grpc = (int(self._listeners[door].getsockname()[1]) for door in (Door.HTTP, Door.GRPC))
        if settings.ports_file is not None:
            write_ports(settings.ports_file, http, grpc, port_of(self._admin))
        ports = {"http": http, "grpc": grpc, "admin": port_of(self._admin)}
        extra = logs.fields(host=settings.host, **ports, workers=settings.workers)
        _log.info("listening", extra=extra)
        tell(READY)

    def _stop(self) -> None:
        """Has every worker drain; new connections are refused once all of them have closed their doors."""
        self._stopping = True
        tell(STOPPING)
        for listener in self._listeners.values():
            listener.close()
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)

    def _kill(self) -> None:
        """Ends every process now."""
        self._stopping = True
        self._pass_on(signal.SIGKILL)
        for worker in self._workers:
            if worker.pid:
                os.waitpid(worker.pid, 0)
                worker.pid = 0

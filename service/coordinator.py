"""What the processes of a service tell each other, kept in the memory of the supervisor.

A fact that lay in one worker would be gone with it, and one in a file with the file. The workers
reach the coordinator over a local connection (`multiprocessing.managers`); a process without a
supervisor, such as a replica of Ray Serve, has a coordinator of its own.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.managers import BaseManager
from typing import Any

Versions = Mapping[str, Collection[int]]
"""Numbers of versions by model."""

LATE_S = 5.0
"""A worker without a report for so long is not counted on; reports come once a second."""
_DEATHS_MAX = 4
"""Deaths after which a version is not tried again until its files change."""
_RETRY_S = 60.0
"""Until a version that ended a process is tried again; twice as long after each further death."""
_PAUSE_MAX_S = 60.0
"""The longest pause before the start of a worker whose predecessors ended while they started."""


@dataclass(frozen=True)
class Report:
    """What a worker serves.

    Attributes:
      problem: Why requests should not be sent to the worker; "": they should.
      listens: Whether requests can reach the worker.
      settled: Whether the worker has scanned the root once.
      known: The versions under the root.
      loaded: The loaded versions.
      failed: The versions that the worker cannot load.
      starved: Those of them for which memory was missing; other workers may free it.
      status: What operators are shown of the worker, as JSON.
    """

    problem: str
    listens: bool = False
    settled: bool = False
    known: Versions = field(default_factory=dict)
    loaded: Versions = field(default_factory=dict)
    failed: Versions = field(default_factory=dict)
    starved: Versions = field(default_factory=dict)
    status: bytes = b""

    @property
    def serves(self) -> bool:
        """Whether the others must agree with the worker: it responds from what it has loaded."""
        return self.listens and self.settled


@dataclass(frozen=True)
class Peers:
    """What the other workers of the service serve.

    Attributes:
      shared: By model, the versions that each of the others has loaded that take requests; models
        of which they have none are left out.
      lacking: By model, versions that one worker has loaded and another cannot load.
    """

    shared: Mapping[str, frozenset[int]] = field(default_factory=dict)
    lacking: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Permission:
    """Whether a worker may load a version.

    Attributes:
      granted: It may, now.
      problem: Why it must not; "" and not granted: another worker loads, ask again.
      retry_s: When to ask again despite the problem; infinite: once the files have changed.
    """

    granted: bool
    problem: str = ""
    retry_s: float = math.inf


@dataclass(frozen=True)
class Start:
    """How a worker begins.

    Attributes:
      is_replacement: Whether the service has listened before.
      pause_s: How long to wait first, because others ended while they started.
    """

    is_replacement: bool
    pause_s: float


@dataclass(frozen=True)
class _Load:
    pid: int
    model: str
    version: int
    files: str


@dataclass
class _Fatality:
    """A version whose load has ended processes.

    Attributes:
      files: The fingerprint of its files.
      deaths: The number of processes.
      retry_at: On the clock of the coordinator.
    """

    files: str
    deaths: int
    problem: str
    retry_at: float


@dataclass
class _Worker:
    """A worker that has reported.

    Attributes:
      reports: Their number.
      reported_at: On the clock of the coordinator.
    """

    report: Report
    reports: int
    reported_at: float


class Coordinator:
    """The facts of a running service. Safe to call from any thread and, as a proxy, from any of its
    processes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Creates the coordinator of a service that starts; `clock`: returns seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._workers: dict[int, _Worker] = {}
        self._load: _Load | None = None
        self._fatalities: dict[tuple[str, int], _Fatality] = {}
        self._started = False
        self._failed_starts = 0
        self._exit_code: int | None = None

    def begin_start(self) -> Start:
        """Tells a worker how to begin."""
        with self._lock:
            pauses = self._failed_starts - 1
            pause_s = 0.0 if pauses < 1 else min(_PAUSE_MAX_S, 2.0 ** (pauses - 1))
            return Start(self._started, pause_s)

    def set_started(self) -> None:
        """Notes that every worker has listened once: from now on, workers are replacements."""
        with self._lock:
            self._started = True

    def set_exit_code(self, code: int) -> bool:
        """Records the exit code of the service, of which the first one counts; returns whether this
        is it.
        """
        with self._lock:
            is_first = self._exit_code is None
            if is_first:
                self._exit_code = code
            return is_first

    def exit_code(self, default: int) -> int:
        """Returns the recorded exit code."""
        with self._lock:
            return default if self._exit_code is None else self._exit_code

    def report(self, pid: int, report: Report) -> None:
        """Takes the report of a worker."""
        with self._lock:
            before = self._workers.get(pid)
            reports = 1 if before is None else before.reports + 1
            self._workers[pid] = _Worker(report, reports, self._clock())
            if report.serves and (before is None or not before.report.serves):
                self._failed_starts = 0

    def peers(self, pid: int) -> Peers:
        """Returns what the workers beside one serve."""
        with self._lock:
            return self._peers_of(pid)

    def reports(self) -> dict[int, tuple[int, str]]:
        """Returns the number of reports of each worker, and its problem."""
        with self._lock:
            return {
                pid: (worker.reports, worker.report.problem)
                for pid, worker in self._workers.items()
            }

    def statuses(self) -> list[bytes]:
        """Returns what operators are shown of each worker, by process id."""
        with self._lock:
            return [self._workers[pid].report.status for pid in sorted(self._workers)]

    def begin_load(self, pid: int, model: str, version: int, files: str) -> Permission:
        """Asks whether a worker may load a version. One worker loads at a time: parts of a load
        hold the GIL, and if all workers loaded at once, none would respond.

        Args:
          pid: The worker.
          model: The model.
          version: Its version.
          files: The fingerprint of its files.
        """
        with self._lock:
            if self._load is not None and self._load.pid != pid:
                return Permission(granted=False)
            fatality = self._fatalities.get((model, version))
            if fatality is not None and fatality.files == files:
                retry_s = fatality.retry_at - self._clock()
                if retry_s > 0:
                    return Permission(False, fatality.problem, retry_s)
            self._load = _Load(pid, model, version, files)
            return Permission(granted=True)

    def end_load(self, pid: int, loaded: bool) -> None:
        """Notes that a worker has ended its load, and survived it."""
        with self._lock:
            load = self._load
            if load is None or load.pid != pid:
                return
            self._load = None
            if loaded:
                self._fatalities.pop((load.model, load.version), None)

    def worker_ended(self, pid: int, reason: str) -> dict[str, Any]:
        """Forgets a worker that has ended, unasked. What it was loading is not loaded again soon.

        Args:
          pid: The worker.
          reason: How it ended, such as "SIGSEGV".

        Returns:
          What it did, for the log.
        """
        with self._lock:
            worker = self._workers.pop(pid, None)
            if worker is None or not worker.report.serves:
                self._failed_starts += 1
            load = self._load
            if load is None or load.pid != pid:
                return {}
            self._load = None
            before = self._fatalities.get((load.model, load.version))
            deaths = 1 if before is None or before.files != load.files else before.deaths + 1
            retry_s = _RETRY_S * 2 ** (deaths - 1) if deaths < _DEATHS_MAX else math.inf
            problem = f"process {pid} ended ({reason}) while it loaded this version"
            if deaths > 1:
                problem = f"{problem}, as {deaths - 1} did before it"
            self._fatalities[load.model, load.version] = _Fatality(
                load.files, deaths, problem, self._clock() + retry_s
            )
            return {"model": load.model, "version": load.version}

    def forget(self, pid: int) -> None:
        """Forgets a worker that has ended as it was asked to."""
        with self._lock:
            self._workers.pop(pid, None)
            if self._load is not None and self._load.pid == pid:
                self._load = None

    def _peers_of(self, pid: int) -> Peers:
        now = self._clock()
        fresh = [
            worker
            for other, worker in self._workers.items()
            if other != pid and now - worker.reported_at < LATE_S and worker.report.settled
        ]
        serving = [worker.report for worker in fresh if worker.report.listens]
        shared = {}
        for model in {model for report in serving for model in report.loaded}:
            sets = [
                _of(report.loaded, model) | _of(report.starved, model)
                for report in serving
                if report.loaded.get(model)
            ]
            if sets:
                shared[model] = frozenset.intersection(*sets)
        reports = [worker.report for worker in fresh]
        if pid in self._workers and self._workers[pid].report.settled:
            reports.append(self._workers[pid].report)
        return Peers(shared, _lacking(reports))


def _lacking(reports: Collection[Report]) -> dict[str, frozenset[int]]:
    """Returns the versions that are loaded in one worker and cannot be in another: it failed to
    load them, or they are gone from the root. What a worker that takes no requests yet failed to
    load does not count: it waits until it can serve what the others do.
    """
    lacking = {}
    for model in {model for report in reports for model in report.loaded}:
        loaded = _union(_of(report.loaded, model) for report in reports)
        gone = loaded - _union(_of(report.known, model) for report in reports)
        missing = frozenset[int]()
        for report in reports:
            failed = _of(report.failed, model) - _of(report.starved, model)
            unable = (failed | gone) if report.listens else gone
            missing |= (loaded & unable) - _of(report.loaded, model)
        if missing:
            lacking[model] = missing
    return lacking


def _of(versions: Versions, model: str) -> frozenset[int]:
    return frozenset(versions.get(model, ()))


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*sets)


_METHODS = (
    "begin_start",
    "set_exit_code",
    "report",
    "peers",
    "statuses",
    "begin_load",
    "end_load",
)
"""What workers call."""


class _Client(BaseManager):
    """Knows the coordinator of another process."""


_Client.register("coordinator", exposed=_METHODS)


def serve(coordinator: Coordinator) -> str:
    """Serves a coordinator to the processes that this one starts, in threads that live as long as
    it does. Returns the address, a Unix socket of Linux's abstract namespace, for `connect`: there
    is no file. Connections need the key that multiprocessing passes to its processes.
    """

    class Server(BaseManager):
        """Knows this coordinator."""

    Server.register("coordinator", lambda: coordinator, exposed=_METHODS)
    address = f"\0rowcast-coordinator-{secrets.token_hex(8)}"
    server = Server(address).get_server()
    threading.Thread(target=server.serve_forever, name="coordinator", daemon=True).start()
    return address


def connect(address: str) -> Coordinator:
    """Returns the coordinator at an address, as a proxy.

    Raises:
      OSError: The supervisor is gone; so do the methods of the proxy, or EOFError.
    """
    manager = _Client(address)
    manager.connect()
    proxy: Coordinator = manager.coordinator()  # type: ignore[attr-defined]
    return proxy

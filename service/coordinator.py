"""The facts that the processes of a service share, in the memory of the supervisor.

A fact in one worker would be gone with it, and a fact in a file with the file. The workers
reach the coordinator over a local connection (`multiprocessing.managers`); a process without a
supervisor, such as a replica of Ray Serve, has a coordinator of its own.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.managers import BaseManager
from typing import Any, Literal

Versions = Mapping[str, Collection[int]]
"""Numbers of versions by model."""

LATE_S = 5.0
"""Maximum age of the last report of a worker that is still counted on; reports come at least every
second.
"""
_NEWS_S = 1.0
"""Maximum time for which a worker waits for news of the others: a report that is late by then is
none.
"""
_DEATHS_MAX = 4
"""Number of deaths after which a version is not tried again until its files change."""
_RETRY_S = 60.0
"""Time until a version that ended a process is tried again; doubled by each further death. The
process may have died of something else, such as a lack of memory, but each attempt costs a worker.
"""
_PAUSE_MAX_S = 60.0
"""The longest pause before the start of a worker whose predecessors ended while they started."""


@dataclass(frozen=True)
class Report:
    """What a worker serves.

    Attributes:
      problem: Why requests should not be sent to the worker; "": they should.
      listens: Whether requests can reach the worker.
      settled: Whether the worker has scanned the root once.
      root_versions: The versions under the root.
      loaded: The loaded versions.
      failed: The versions that the worker cannot load.
      starved: The failed versions for which memory was missing; other workers may free it.
      status: The status of the worker that operators see, as JSON.
    """

    problem: str
    listens: bool = False
    settled: bool = False
    root_versions: Versions = field(default_factory=dict)
    loaded: Versions = field(default_factory=dict)
    failed: Versions = field(default_factory=dict)
    starved: Versions = field(default_factory=dict)
    # Not compared: it changes with every report, and no other worker decides by it.
    status: bytes = field(default=b"", compare=False)

    @property
    def serves(self) -> bool:
        """Whether the others must agree with the worker: it responds from what it has loaded."""
        return self.listens and self.settled


@dataclass(frozen=True)
class Peers:
    """What the other workers of the service serve.

    Attributes:
      shared: The versions by model that all other workers that take requests have loaded; models of
        which they have none are left out.
      lacking: The versions by model that one worker has loaded and another cannot load.
      other_roots: What others found under the root that differs from what this worker found.
    """

    shared: Mapping[str, frozenset[int]] = field(default_factory=dict)
    lacking: Mapping[str, frozenset[int]] = field(default_factory=dict)
    other_roots: Sequence[Versions] = ()


@dataclass(frozen=True)
class Permission:
    """Whether a worker may load a version.

    Attributes:
      granted: Whether it may, now.
      problem: Why it must not; "" and not granted: another worker loads, and the worker tries again
        soon.
      retry_s: The time until the worker may try again despite the problem; infinite: it may once
        the files have changed.
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
    """A load in progress. See `Coordinator.begin_load`.

    Attributes:
      began: When it began, by the clock of the coordinator.
    """

    model: str
    version: int
    files: str
    began: float


@dataclass
class _Fatality:
    """A version whose load has ended processes.

    Attributes:
      files: The fingerprint of its files.
      deaths: The number of processes.
      problem: What happened, for operators.
      ended_at: When the last of them ended, by the clock of the coordinator.
      retry_at: The time from which on it may be loaded again, by the clock of the coordinator.
    """

    files: str
    deaths: int
    problem: str
    ended_at: float
    retry_at: float


@dataclass
class _Worker:
    """A worker that has reported.

    Attributes:
      report: Its last report.
      report_count: The number of its reports.
      reported_at: The time of its last report, by the clock of the coordinator.
    """

    report: Report
    report_count: int
    reported_at: float


class Coordinator:
    """The facts of a running service. Safe to call from any thread and, as a proxy, from any of its
    processes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Creates the coordinator of a service that starts.

        Args:
          clock: Returns the current monotonic time in seconds.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._has_news = threading.Condition(self._lock)
        self._workers: dict[int, _Worker] = {}
        self._loads: dict[int, _Load] = {}
        """The loads in progress, by the process id of the worker."""
        self._verifications: dict[int, tuple[str, int, str]] = {}
        """The model, version and fingerprint of what a worker compares with its signature, by its
        process id."""
        self._verified: dict[tuple[str, int], str] = {}
        """The fingerprint of the files of each version that were as they were signed."""
        self._fatalities: dict[tuple[str, int], _Fatality] = {}
        self._started = False
        self._failed_starts = 0
        self._exit_code: int | None = None
        self._render_metrics: Callable[[], bytes] = bytes

    def begin_start(self) -> Start:
        """Returns how a worker begins."""
        with self._lock:
            # One failed start may be an accident, such as a file that was missing for a moment: the
            # next worker begins at once.
            pauses = self._failed_starts - 1
            pause_s = 0.0
            if pauses >= 1:
                pause_s = min(_PAUSE_MAX_S, 2.0 ** (pauses - 1))
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
            if self._exit_code is None:
                return default
            return self._exit_code

    def report(self, pid: int, report: Report) -> bool:
        """Takes the report of a worker; returns whether another worker serves."""
        with self._lock:
            before = self._workers.get(pid)
            served_before = before is not None and before.report.serves
            report_count = 1
            if before is not None:
                report_count = before.report_count + 1
            self._workers[pid] = _Worker(report, report_count, self._clock())
            # A worker that gets as far as serving shows that starts succeed.
            if report.serves and not served_before:
                self._failed_starts = 0
            if before is None or report != before.report:
                self._has_news.notify_all()
            return any(fresh.serves for fresh in self._fresh_reports(besides=pid))

    def peers(self, pid: int) -> Peers:
        """Returns what the other workers serve."""
        with self._lock:
            return self._peers_of(pid)

    def await_peers(self, pid: int, last_peers: Peers) -> bool:
        """Waits until the other workers serve something else than `last_peers`, at most a second;
        returns whether they do.
        """
        with self._has_news:
            return self._has_news.wait_for(lambda: self._peers_of(pid) != last_peers, _NEWS_S)

    def reports(self) -> dict[int, tuple[int, str]]:
        """Returns the number of reports of each worker, and its problem."""
        with self._lock:
            return {
                pid: (worker.report_count, worker.report.problem)
                for pid, worker in self._workers.items()
            }

    def statuses(self) -> list[bytes]:
        """Returns the status of each worker that operators see, by process id."""
        with self._lock:
            return [self._workers[pid].report.status for pid in sorted(self._workers)]

    def share_metrics(self, render: Callable[[], bytes]) -> None:
        """Sets what renders the metrics of all workers for `metrics`."""
        self._render_metrics = render

    def metrics(self) -> bytes:
        """Returns the text of `/metrics` for all workers; empty without a supervisor.

        Raises:
          MetricsMissing: The files of a worker's metrics are gone.
        """
        return self._render_metrics()

    def begin_load(self, pid: int, model: str, version: int, files: str) -> Permission:
        """Gives a worker the turn to load a version, unless it must not. One worker loads at a
        time: parts of a load hold the GIL, and if all workers loaded at once, none would respond.
        Until one has loaded a version, none does in any case, and all load side by side.

        Args:
          pid: The worker.
          model: The model.
          version: Its version.
          files: The fingerprint of its files.
        """
        with self._lock:
            has_loaded = any(
                any(worker.report.loaded.values()) for worker in self._workers.values()
            )
            if has_loaded and self._loads.keys() - {pid}:
                return Permission(granted=False)

            # Other files under the same number are another version, with which nothing happened.
            fatality = self._fatalities.get((model, version))
            if fatality is not None and fatality.files == files:
                retry_s = fatality.retry_at - self._clock()
                if retry_s > 0:
                    return Permission(False, fatality.problem, retry_s)
            self._loads[pid] = _Load(model, version, files, self._clock())
            return Permission(granted=True)

    def end_load(self, pid: int, loaded: bool) -> None:
        """Notes that a worker has ended its load, and survived it."""
        with self._lock:
            load = self._loads.pop(pid, None)
            # A version that was rejected has not shown that it can be loaded.
            if loaded and load is not None:
                self._fatalities.pop((load.model, load.version), None)

    def begin_verification(
        self, pid: int, model: str, version: int, files: str
    ) -> Literal["verify", "wait", "verified"]:
        """Gives a worker the turn to compare the files of a version with its signature, unless a
        worker has done so and found nothing. All workers would read the same bytes, which may take
        minutes.

        Args:
          pid: The worker.
          model: The model.
          version: Its version.
          files: The fingerprint of its files.
        """
        with self._lock:
            if self._verified.get((model, version)) == files:
                return "verified"
            if self._verifications.keys() - {pid}:
                return "wait"
            self._verifications[pid] = (model, version, files)
            return "verify"

    def end_verification(self, pid: int, verified: bool) -> None:
        """Notes that a worker has ended its comparison, and whether all files are as signed."""
        with self._lock:
            model, version, files = self._verifications.pop(pid)
            if verified:
                self._verified[model, version] = files

    def worker_ended(self, pid: int, reason: str) -> dict[str, Any]:
        """Forgets a worker that ended by itself. What it was loading is not loaded again soon.

        Args:
          pid: The worker.
          reason: How it ended, such as "SIGSEGV".

        Returns:
          The model and version that it was loading, for the log.
        """
        with self._lock:
            worker = self._workers.pop(pid, None)
            self._verifications.pop(pid, None)
            self._has_news.notify_all()
            if worker is None or not worker.report.serves:
                self._failed_starts += 1

            load = self._loads.pop(pid, None)
            if load is None:
                return {}

            # Without this, the worker that replaces it would load the version next and end, too,
            # and so would all the others, one after the other.
            deaths = 1
            before = self._fatalities.get((load.model, load.version))
            if before is not None and before.files == load.files:
                # Loads side by side fail alike, and count once.
                deaths = before.deaths + (load.began > before.ended_at)
            retry_s = math.inf
            if deaths < _DEATHS_MAX:
                retry_s = _RETRY_S * 2 ** (deaths - 1)
            problem = f"process {pid} ended ({reason}) while it loaded this version"
            if deaths > 1:
                problem = f"{problem}, as {deaths - 1} did before it"
            now = self._clock()
            self._fatalities[load.model, load.version] = _Fatality(
                load.files, deaths, problem, now, now + retry_s
            )
            return {"model": load.model, "version": load.version}

    def forget(self, pid: int) -> None:
        """Forgets a worker that has ended because the supervisor stopped it."""
        with self._lock:
            self._workers.pop(pid, None)
            self._loads.pop(pid, None)
            self._verifications.pop(pid, None)
            self._has_news.notify_all()

    def _fresh_reports(self, besides: int) -> list[Report]:
        """Returns the reports of the workers that can be counted on, without that of one worker.

        A worker that hangs must not hold up a switch of the others, nor must one that starts.
        """
        now = self._clock()
        return [
            worker.report
            for pid, worker in self._workers.items()
            if pid != besides and now - worker.reported_at < LATE_S and worker.report.settled
        ]

    def _peers_of(self, pid: int) -> Peers:
        fresh = self._fresh_reports(besides=pid)
        serving = [report for report in fresh if report.listens]
        shared = {}
        for model in _loaded_models(serving):
            # A worker that lacks memory for a version is not waited for: the others free memory
            # when they switch.
            sets = [
                _of(report.loaded, model) | _of(report.starved, model)
                for report in serving
                if report.loaded.get(model)
            ]
            if sets:
                shared[model] = frozenset.intersection(*sets)

        # What this worker lacks counts, too: all workers decide by the same facts.
        reports = fresh
        other_roots: list[Versions] = []
        if pid in self._workers and self._workers[pid].report.settled:
            own_report = self._workers[pid].report
            reports = [*fresh, own_report]
            for report in fresh:
                if report.root_versions not in (own_report.root_versions, *other_roots):
                    other_roots.append(report.root_versions)
        return Peers(shared, _lacking(reports), other_roots)


def _lacking(reports: Collection[Report]) -> dict[str, frozenset[int]]:
    """Returns the versions that are loaded in one worker and cannot be in another: it failed to
    load them, or they are gone from the root. What a worker that takes no requests yet failed to
    load does not count: it waits until it can serve what the others do.
    """
    lacking = {}
    for model in _loaded_models(reports):
        loaded = _union(_of(report.loaded, model) for report in reports)
        gone = loaded - _union(_of(report.root_versions, model) for report in reports)
        missing = frozenset[int]()
        for report in reports:
            unable = gone
            if report.listens:
                unable |= _of(report.failed, model) - _of(report.starved, model)
            missing |= (loaded & unable) - _of(report.loaded, model)
        if missing:
            lacking[model] = missing
    return lacking


def _loaded_models(reports: Collection[Report]) -> set[str]:
    """Returns the models of which some worker has loaded a version."""
    return {model for report in reports for model in report.loaded}


def _of(versions: Versions, model: str) -> frozenset[int]:
    return frozenset(versions.get(model, ()))


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*sets)


_METHODS = (
    "begin_start",
    "set_exit_code",
    "report",
    "peers",
    "await_peers",
    "statuses",
    "metrics",
    "begin_load",
    "begin_verification",
    "end_load",
    "end_verification",
)
"""The methods that workers call."""


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

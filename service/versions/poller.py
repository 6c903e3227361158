"""Keeps the loaded versions up to date with the root and the desired state, and has the loaded
versions maintained.

What needs no load (a rollback, a label, a drain) takes effect at once, also while a version is
being loaded. The workers of a service switch together: a new version is current once all of them
have loaded it. A version that cannot be loaded is reported once and tried again when its files have
changed, or later where the machine was at fault; a current version stays until another replaces it,
even when it is gone from the root. Nothing under the root keeps the rest of it from being served.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from bundle.format import paths
from bundle.storage import catalog
from service.config import ServiceSettings
from service.coordinator import Coordinator, Peers, Permission, Report
from service.observability.logging import fields, logger, set_level
from service.observability.metrics import Metrics
from service.versions.desired_state import Desired
from service.versions.failures import LoadFailure, fingerprint, is_expected
from service.versions.lifecycle import VersionManager
from service.versions.loader import InsufficientMemory, Loader
from service.versions.maintenance import Maintenance
from service.versions.policy import arrangement, chosen, named, ranked
from service.versions.state_file import StateFile
from service.versions.version import ModelVersion, stamp_of

log = logger(__name__)

DRAINED = "the service is drained; `rowcast-serve ctl undrain` makes it accept calls again"
_MISSING = "the desired state names it (in a pin, a label or a load), and it is not under the root"
FOLLOW_S = 0.1
"""Between two reads of the state file, and two looks at what the other workers serve."""
_TURN_S = 0.05
"""Between two requests for the turn to load."""


Attach = Callable[[ModelVersion, Callable[..., object]], object]


class Poller:
    """Scans the root, follows the desired state, and maintains what is loaded, each in a thread of
    its own.

    Attributes:
      known: the versions under the root by model, as last scanned; a model may be gone since.
      revision: of the desired state that the loaded versions were last arranged by.
      state: the desired state.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        loader: Loader,
        manager: VersionManager,
        metrics: Metrics,
        coordinator: Coordinator,
        worker: int | None = None,
        attach: Attach | None = None,
    ) -> None:
        """Creates a poller; `start` runs it.

        Args:
          settings: The settings of the service.
          loader: Loads a version.
          manager: Receives the loaded versions.
          metrics: Counts the loads.
          coordinator: Knows what the other workers serve, and gives the turn to load.
          worker: The process id that the coordinator knows this worker by; None: its own.
          attach: Has a loaded version served with its changes: takes it, and what adds it to the
            manager; None: there are no changes.
        """
        self._attach = attach or _serve_as_loaded
        self._coordinator = coordinator
        self._worker = os.getpid() if worker is None else worker
        self._peers = Peers()
        self._settings = settings
        self._loader = loader
        self._manager = manager
        self._metrics = metrics
        self.state = StateFile.of(settings)
        self._lock = threading.RLock()
        self._peers_lock = threading.Lock()
        self.known: Mapping[str, list[int]] = {}
        self.revision = 0
        self._failures: dict[tuple[str, int], LoadFailure] = {}
        self._problems: dict[str, str] = {}
        self._stopping = threading.Event()
        self._scan_lock = threading.Lock()
        self._wake = threading.Event()
        self.maintenance = Maintenance(settings, manager, metrics, self._stopping, self._damaged)
        manager.subscribe(self._report_versions)

    def start(self) -> None:
        """Scans at once and then every `poll_interval_s`; reads the state file every `FOLLOW_S`."""
        self._wake.set()
        loops: list[tuple[str, Callable[[], object], float]] = [
            ("rowcast-poller", self._scan_when_due, 0),
            ("rowcast-desired-state", self.follow, FOLLOW_S),
        ]
        for name, run, pause_s in loops + self.maintenance.loops:
            threading.Thread(
                target=self._repeat, args=(run, pause_s), name=name, daemon=True
            ).start()

    def stop(self) -> None:
        """Ends the threads; a load in progress is abandoned with the process."""
        self._stopping.set()
        self._wake.set()

    def look_again(self) -> None:
        """Scans the root now, and tries every failed version again."""
        for failure in list(self._failures.values()):
            failure.retry_at = 0.0
        self._wake.set()

    def report(self, problem: str, listens: bool, status: bytes = b"") -> Report:
        """Returns what the other workers are told of this one.

        Args:
          problem: See Report.
          listens: See Report.
          status: See Report.
        """
        settled = self._manager.settled  # before the versions, which are then at least as new
        models = self._manager.models()
        loaded = {
            model: frozenset(version.version for version in versions if version.is_loaded)
            for model, versions in models.items()
        }
        failed = {
            model: frozenset(version.version for version in versions if version.state == "failed")
            for model, versions in models.items()
        }
        starved: dict[str, set[int]] = {}
        for (model, version), failure in list(self._failures.items()):
            if failure.starved:
                starved.setdefault(model, set()).add(version)
        return Report(problem, listens, settled, self.known, loaded, failed, starved, status)

    def disagreement(self) -> str:
        """Returns why this worker would respond from another version than the others; "": it would
        not.
        """
        desired = self.state.desired or Desired()
        for model, shared in self._peers.shared.items():
            lacking = self._peers.lacking.get(model, ())
            version = chosen(desired.of(model), shared, lacking)
            if version not in {None, self._manager.arranged(model)[1].current}:
                return (
                    f"version {version} of model {model!r} is current in the other workers, and "
                    "this one has not loaded it"
                )
        return ""

    def follow(self) -> None:
        """Reads the desired state and what the other workers serve, and arranges what is loaded by
        them if they have changed. Loads are left to `scan`.
        """
        self._follow_state()
        self._follow_peers()

    def _follow_peers(self) -> None:
        # Two threads follow: what one of them asked for earlier must not replace newer peers.
        with self._peers_lock:
            try:
                peers = self._coordinator.peers(self._worker)
            except (EOFError, OSError):  # the supervisor is gone, and this worker drains
                return
            self._arrange_by(peers)

    def _arrange_by(self, peers: Peers) -> None:
        with self._lock:
            before = self._peers
            if peers == before:
                return
            self._peers = peers
            for model in self._manager.models():
                self._arrange(model)
        if peers.lacking != before.lacking:
            self._wake.set()
        self._manager.notify()

    def _follow_state(self) -> None:
        with self._lock:
            if not self.state.refresh():
                return
            desired = self.state.desired
            problem = self.state.problem
            if problem:
                log.error("state_unreadable", extra=fields(problem=problem))
            self._metrics.set("desired_state_revision", desired.revision if desired else 0)
            self._metrics.set("desired_state_readable", not problem)
            if desired is None:
                self._manager.suspend(problem)
                return
            if desired.revision != self.revision:
                log.info("state_followed", extra=fields(revision=desired.revision))
            set_level(desired.log_level or self._settings.log_level)
            for version in self._manager.loaded():
                self._deny(version)
            self._manager.suspend(DRAINED if desired.draining else "")
            for model in self._manager.models():
                self._arrange(model)
            self.revision = desired.revision
        self._wake.set()

    def scan(self) -> None:
        """Scans the root once: loads, model by model, what the desired state and the policy ask
        for. One thread at a time, so that no version is loaded twice.
        """
        with self._scan_lock:
            self._scan()

    def _scan(self) -> None:
        self.follow()
        if self.state.desired is None:
            return
        root = self._settings.root
        readable = False
        models = {name for name, _ in self._failures}
        with self._reporting(""):
            models.update(
                name
                for name in os.listdir(root)
                if paths.is_name(name) and os.path.isdir(root / name)
            )
            readable = True
        self._metrics.root_scanned(readable)
        for model in sorted(models):
            if self._stopping.is_set():
                break
            with self._reporting(model):
                self._scan_model(model)
        if not self._manager.settled:
            self._manager.settle()

    @contextmanager
    def _reporting(self, model: str) -> Iterator[None]:
        """Logs why a model's directory, or the root (""), cannot be scanned; again only when the
        reason changes.
        """
        try:
            yield
        except Exception as problem:
            if self._problems.get(model) != repr(problem):
                self._problems[model] = repr(problem)
                unexpected = not isinstance(problem, OSError)
                if unexpected:
                    event = "scan_failed"
                else:
                    event = "model_unreadable" if model else "root_unreadable"
                about = fields(model=model, problem=str(problem))
                log.error(event, extra=about, exc_info=problem if unexpected else None)
        else:
            self._problems.pop(model, None)

    def _scan_model(self, model: str) -> None:
        desired = (self.state.desired or Desired()).of(model)
        versions = sorted(catalog.committed_versions(self._settings.root, model), reverse=True)
        self.known = {**self.known, model: versions}
        known = {*versions, *self._manager.arranged(model)[0]}
        missing = set(named(desired)) - known
        for key in [
            key
            for key in list(self._failures)
            if key[0] == model and key[1] not in {*versions, *missing}
        ]:
            self._failures.pop(key, None)
            self._manager.mark(*key, None)
        for version in missing:
            self._fail(model, version, LoadFailure("", _MISSING, retry_at=0.0))
        lacking = self._peers.lacking.get(model, frozenset())
        available = 0
        for version in ranked(desired, known):
            if available == self._settings.latest_versions:
                break
            # What another worker cannot load will not become current.
            if version not in lacking:
                available += self._ensure_loaded(model, version)
        for version in named(desired):
            self._ensure_loaded(model, version)
        self._arrange(model)

    def _ensure_loaded(self, model: str, version: int) -> bool:
        """Loads a version unless it is loaded as it is on disk; returns whether it is loaded."""
        directory = self._settings.root / model / str(version)
        found = stamp_of(directory / paths.MANIFEST)
        loaded = [
            each
            for each in self._manager.loaded()
            if (each.model, each.version) == (model, version)
        ]
        if loaded and found in {None, loaded[0].stamp}:
            return True
        failure = self._failures.get((model, version))
        if found is None or (failure and not failure.should_retry(directory)):
            return bool(loaded)
        return self._load(model, version, fingerprint(directory)) or bool(loaded)

    def _load(self, model: str, version: int, files: str) -> bool:
        self._manager.mark(model, version, "loading")
        permission = self._wait_for_turn(model, version, files)
        if not permission.granted:
            if permission.problem:
                retry_at = time.monotonic() + permission.retry_s
                self._fail(model, version, LoadFailure(files, permission.problem, retry_at, files))
            return False
        loaded = False
        try:
            loaded = self._load_now(model, version, files)
        finally:
            self._coordinator.end_load(self._worker, loaded)
        return loaded

    def _load_now(self, model: str, version: int, files: str) -> bool:
        began = time.monotonic()
        try:
            loaded = self._make_room_and_load(model, version)
            self._serve(loaded)
        # whatever a bundle does to its libraries, the old version stays
        except Exception as problem:  # noqa: BLE001
            if not self._stopping.is_set():  # else the threads that warm up are gone
                self._fail(
                    model,
                    version,
                    LoadFailure.of(files, problem),
                    None if is_expected(problem) else problem,
                )
                self._metrics.load_finished(model, "failed", None)
            return False
        self._failures.pop((model, version), None)
        self._arrange(model)
        seconds = time.monotonic() - began
        self._metrics.load_finished(model, "available", seconds)
        about = fields(
            model=model,
            version=version,
            seconds=round(seconds, 3),
            memory_mib=loaded.memory_bytes >> 20,
        )
        log.info("version_available", extra=about)
        return True

    def _serve(self, loaded: ModelVersion) -> None:
        """Has requests get a version.

        Raises:
          BundleError, OSError: Its changes cannot be read; the version is closed.
        """
        try:
            with self._lock:  # so that no revision is followed in between
                self._deny(loaded)
                self._attach(loaded, self._manager.add)
        except BaseException:
            loaded.close()
            raise

    def _wait_for_turn(self, model: str, version: int, files: str) -> Permission:
        """Waits until this worker may load a version, must not, or stops."""
        while True:
            permission = self._coordinator.begin_load(self._worker, model, version, files)
            if permission.granted or permission.problem or self._stopping.wait(_TURN_S):
                return permission

    def _make_room_and_load(self, model: str, version: int) -> ModelVersion:
        """Loads a version; gives up those kept for a rollback if it must, and if their memory may
        be enough.
        """
        try:
            return self._loader.load(model, version)
        except InsufficientMemory as problem:
            models = self._manager.models()
            kept = [
                (name, each)
                for name, versions in models.items()
                for each in versions
                if each.state == "kept"
            ]
            if not kept or sum(each.memory_bytes for _, each in kept) < problem.missing_bytes:
                raise
        for name, each in kept:
            log.warning(
                "previous_dropped", extra=fields(model=name, version=each.version, to_load=model)
            )
            self._manager.arrange(name, replace(self._manager.arranged(name)[1], previous=None))
        self._manager.wait_closed()
        return self._loader.load(model, version)

    def _deny(self, version: ModelVersion) -> None:
        """Brings the deny list of a version up to date."""
        ids = (self.state.desired or Desired()).of(version.model).denied
        version.deny(ids)
        self._metrics.set("denied_ids", len(ids), version.model)

    def _arrange(self, model: str) -> None:
        """Arranges what is loaded of a model by the desired state."""
        with self._lock:
            desired = self.state.desired
            if desired is None:
                return
            loaded, before = self._manager.arranged(model)
            failed = {version for name, version in list(self._failures) if name == model}
            after = arrangement(
                desired.of(model),
                self._settings,
                self.known.get(model, ()),
                loaded,
                failed,
                before,
                self._peers.shared.get(model),
                self._peers.lacking.get(model, ()),
            )
            if after != before or loaded - {*after.loaded, after.previous}:
                self._manager.arrange(model, after)

    def _fail(
        self, model: str, version: int, failure: LoadFailure, unexpected: Exception | None = None
    ) -> None:
        """Remembers a failure, and logs it unless the version failed for the same reason before."""
        before = self._failures.get((model, version))
        self._failures[model, version] = failure
        self._manager.mark(model, version, "failed", failure.problem)
        if before is None or before.problem != failure.problem:
            about = fields(model=model, version=version, problem=failure.problem)
            log.error("version_failed", extra=about, exc_info=unexpected)

    def _damaged(self, version: ModelVersion, problem: Exception) -> None:
        self._failures[version.model, version.version] = LoadFailure.of(
            fingerprint(version.directory), problem
        )
        if self._manager.damage(version, str(problem)):
            self._arrange(version.model)
            self._metrics.load_finished(version.model, "damaged", None)
            about = fields(model=version.model, version=version.version, problem=str(problem))
            log.critical("version_damaged", extra=about)
            self._wake.set()

    def _report_versions(self) -> None:
        models = self._manager.models()
        states = {
            name: Counter[str](each.state for each in versions) for name, versions in models.items()
        }
        current = {
            name: each.version
            for name, versions in models.items()
            for each in versions
            if each.current
        }
        self._metrics.versions(states, current)

    def _scan_when_due(self) -> None:
        self._wake.wait(self._settings.poll_interval_s)
        self._wake.clear()
        if not self._stopping.is_set():
            self.scan()

    def _repeat(self, run: Callable[[], object], pause_s: float) -> None:
        while not self._stopping.is_set():
            try:
                run()
            except Exception:
                log.exception("poller_failed")
            self._stopping.wait(pause_s)


def _serve_as_loaded(loaded: ModelVersion, serve: Callable[..., object]) -> None:
    serve(loaded)

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
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from bundle.format import paths
from bundle.storage import catalog
from service.config import ServiceSettings
from service.coordinator import Coordinator, Peers, Permission, Report
from service.observability.logging import fields, logger, set_level
from service.observability.metrics import Metrics
from service.versions.desired_state import Desired
from service.versions.failures import LoadFailure, fingerprint, is_expected
from service.versions.lifecycle import VersionManager, VersionState
from service.versions.loader import Loader, Once
from service.versions.maintenance import Maintenance
from service.versions.policy import arrange, choose_current, named_versions, rank_versions
from service.versions.rejections import InsufficientMemory, LoadRejected
from service.versions.state_file import StateFile
from service.versions.version import ModelVersion, stamp_of

log = logger(__name__)

DRAINED = "the service is drained; `rowcast-serve ctl undrain` makes it accept calls again"
_MISSING = "the desired state names it (in a pin, a label or a load), and it is not under the root"
FOLLOW_S = 0.1
"""Time between two reads of the state file, and between two waits for what the other workers serve:
within it a command takes effect, and workers switch versions together.
"""
_LISTED_MAX = 10
"""Number of ids that a line of the log lists."""
_TURN_S = 0.05
"""Time between two requests for the turn to load, a small part of what a load takes."""

Attach = Callable[[ModelVersion, Callable[..., object]], object]


class Poller:
    """Scans the root, follows the desired state, and maintains what is loaded, each in a thread of
    its own.

    Attributes:
      root_versions: The versions under the root by model, as last scanned; a model may be gone
        since.
      revision: The revision of the desired state by which the loaded versions were last arranged.
      state: The desired state.
      maintenance: Scrubs and prefetches the loaded versions.
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
          worker: The process id by which the coordinator knows this worker; None: this process.
          attach: Has a loaded version served with its changes: takes it, and what adds it to the
            manager; None: there are no changes.
        """
        self._attach = attach or _serve_as_loaded
        self._coordinator = coordinator
        self._worker = os.getpid() if worker is None else worker
        self._settings = settings
        self._loader = loader
        self._manager = manager
        self._metrics = metrics

        # Guards the desired state and the peers, by which versions are arranged. Reentrant: all
        # models are arranged, each under the lock, before a revision or peers are replaced again.
        self._lock = threading.RLock()
        self.state = StateFile.of(settings)
        self.revision = 0
        self._peers = Peers()
        self._peers_lock = threading.Lock()

        # Ray's reconfigure scans, too: two scans at once would load a version twice.
        self._scan_lock = threading.Lock()
        self.root_versions: Mapping[str, list[int]] = {}
        self._failures: dict[tuple[str, int], LoadFailure] = {}
        self._problems: dict[str, str] = {}
        self._ignored: Mapping[str, str] = {}

        self._stopping = threading.Event()
        self._wake = threading.Event()
        self.maintenance = Maintenance(settings, manager, metrics, self._stopping, self._damaged)
        manager.subscribe(self._report_versions)

    def start(self) -> None:
        """Scans at once and then every `poll_interval_s`; reads the state file every `FOLLOW_S`."""
        self._wake.set()
        loops: list[tuple[str, Callable[[], object], float]] = [
            ("rowcast-poller", self._scan_when_due, 0),
            ("rowcast-desired-state", self._follow_state, FOLLOW_S),
            ("rowcast-peers", self._await_peers, FOLLOW_S),
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
        """Returns the report about this worker for the other ones.

        Args:
          problem: See Report.
          listens: See Report.
          status: See Report.
        """
        # Before the versions, which are then at least as new: a first scan that is reported as done
        # is never reported without what it has loaded.
        settled = self._manager.settled
        models = self._manager.models()
        loaded: dict[str, frozenset[int]] = {}
        failed: dict[str, frozenset[int]] = {}
        for model, versions in models.items():
            loaded[model] = frozenset(version.version for version in versions if version.is_loaded)
            failed[model] = frozenset(
                version.version for version in versions if version.state == "failed"
            )

        # A copy, since scans change the failures in another thread.
        starved: dict[str, set[int]] = {}
        for (model, version_number), failure in list(self._failures.items()):
            if failure.starved:
                starved.setdefault(model, set()).add(version_number)
        return Report(
            problem, listens, settled, self.root_versions, loaded, failed, starved, status
        )

    def disagreement(self) -> str:
        """Returns why this worker would respond from another version than the others; "": it would
        not.
        """
        desired = self.state.desired or Desired()
        for model, shared in self._peers.shared.items():
            lacking = self._peers.lacking.get(model, ())
            version = choose_current(desired.of(model), shared, lacking)
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

    def _await_peers(self) -> None:
        """Waits for news of the other workers, for a moment, and follows them."""
        with suppress(EOFError, OSError):  # the supervisor is gone, and this worker drains
            if self._coordinator.await_peers(self._worker, self._peers):
                self._follow_peers()

    def _follow_peers(self) -> None:
        # Two threads follow: peers that one of them has fetched earlier must not replace newer
        # ones.
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
        # What another worker cannot load will not become current: an older version may be needed.
        # What another worker finds under the root, such as one that was started meanwhile, waits
        # for this one: versions become current once all workers have loaded them.
        has_news = any(root_versions != self.root_versions for root_versions in peers.other_roots)
        if peers.lacking != before.lacking or has_news:
            self._wake.set()
        # Whether this worker agrees with the others may have changed without any of its versions.
        self._manager.notify()

    def _follow_state(self) -> None:
        with self._lock:
            if not self.state.refresh():
                return
            desired = self.state.desired
            problem = self.state.problem
            if problem:
                log.error("state_unreadable", extra=fields(problem=problem))
            self._metrics.set("desired_state_readable", not problem)
            # Never read since the start: the process cannot know which versions it must not serve.
            if desired is None:
                self._metrics.set("desired_state_revision", 0)
                self._manager.suspend(problem)
                return

            self._metrics.set("desired_state_revision", desired.revision)
            if desired.revision != self.revision:
                log.info("state_followed", extra=fields(revision=desired.revision))
            set_level(desired.log_level or self._settings.log_level)
            for version in self._manager.loaded():
                self._deny(version)
            suspension = ""
            if desired.draining:
                suspension = DRAINED
            self._manager.suspend(suspension)
            for model in self._manager.models():
                self._arrange(model)

            # Last: commands wait for the revision, and are then in effect.
            self.revision = desired.revision
        self._wake.set()

    def scan(self) -> None:
        """Scans the root once: loads, model by model, what the desired state and the policy
        require. One thread at a time, so that no version is loaded twice.
        """
        with self._scan_lock:
            self._scan()

    def _scan(self) -> None:
        self.follow()
        if self.state.desired is None:
            return
        root = self._settings.root
        is_readable = False
        # Models that are gone from the root, too: their failures end.
        models = {name for name, _ in self._failures}
        with self._reporting(""):
            for name in os.listdir(root):
                if paths.is_name(name) and os.path.isdir(root / name):
                    models.add(name)
            is_readable = True
            self._report_ignored(catalog.ignored_directories(root))
        self._metrics.root_scanned(is_readable)

        # One at a time: a directory that cannot be read does not keep the others from being served.
        for model in sorted(models):
            if self._stopping.is_set():
                break
            with self._reporting(model):
                self._scan_model(model)
        if not self._manager.settled:
            self._manager.settle()

    def _report_ignored(self, ignored: Mapping[str, str]) -> None:
        """Logs the directories in which no version is looked for, each once."""
        for directory, expected in sorted(ignored.items()):
            if self._ignored.get(directory) != expected:
                about = fields(directory=directory, expected=expected)
                log.warning("directory_ignored", extra=about)
        self._ignored = ignored

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
                about = fields(model=model, problem=str(problem))
                if not isinstance(problem, OSError):
                    log.error("scan_failed", extra=about, exc_info=problem)
                elif model:
                    log.error("model_unreadable", extra=about)
                else:
                    log.error("root_unreadable", extra=about)
        else:
            self._problems.pop(model, None)

    def _scan_model(self, model: str) -> None:
        desired = (self.state.desired or Desired()).of(model)
        versions = sorted(catalog.committed_versions(self._settings.root, model), reverse=True)
        # A new mapping, not a change of the old one: other threads read it.
        self.root_versions = {**self.root_versions, model: versions}
        existing = {*versions, *self._manager.arranged(model)[0]}
        missing = set(named_versions(desired)) - existing

        # Failures of versions that are neither there nor named any more are no longer reported.
        for failed_model, version in list(self._failures):
            if failed_model == model and version not in {*versions, *missing}:
                self._failures.pop((model, version), None)
                self._manager.mark(model, version, None)
        for version in missing:
            self._fail(model, version, LoadFailure("", _MISSING, retry_at=0.0))

        # First the version that the others respond from: a worker that starts takes no requests
        # before it can, and they may have yet to load a newer one.
        lacking = self._peers.lacking.get(model, frozenset())
        agreed = choose_current(desired, self._peers.shared.get(model, ()), lacking)
        if agreed is not None:
            self._ensure_loaded(model, agreed)

        # The newest that can be loaded; one that fails gives its turn to the next.
        available = 0
        for version in rank_versions(desired, existing):
            if available == self._settings.latest_versions:
                break
            # What another worker cannot load will not become current.
            if version not in lacking:
                available += self._ensure_loaded(model, version)
        for version in named_versions(desired):
            self._ensure_loaded(model, version)
        self._arrange(model)

    def _ensure_loaded(self, model: str, version: int) -> bool:
        """Loads a version unless it is loaded as it is on disk; returns whether it is loaded."""
        directory = self._settings.root / model / str(version)
        stamp = stamp_of(directory / paths.MANIFEST)
        loaded = [
            loaded_version
            for loaded_version in self._manager.loaded()
            if (loaded_version.model, loaded_version.version) == (model, version)
        ]
        # Without a manifest the version was removed: it is served until another one replaces it.
        if loaded and stamp in {None, loaded[0].stamp}:
            return True
        failure = self._failures.get((model, version))
        if stamp is None or (failure and not failure.should_retry(directory)):
            return bool(loaded)
        return self._load(model, version, fingerprint(directory)) or bool(loaded)

    def _load(self, model: str, version: int, files: str) -> bool:
        """Loads a version when it is this worker's turn; returns whether it is loaded.

        Args:
          model: The model.
          version: The version.
          files: The fingerprint of its files.
        """
        self._manager.mark(model, version, "loading")
        permission = self._wait_for_turn(model, version, files)
        if not permission.granted:
            # A load of the version has ended another worker: this one must not repeat it.
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
            run_once = partial(self._verify_once, model, version, files)
            loaded = self._make_room_and_load(model, version, run_once)
            self._serve(loaded)
        # Whatever a bundle does to its libraries, the old version stays.
        except Exception as problem:  # noqa: BLE001
            # In a service that stops, the threads that warm up are gone. That is no fault of the
            # bundle.
            if not self._stopping.is_set():
                unexpected = None
                if not is_expected(problem):
                    unexpected = problem
                self._fail(model, version, LoadFailure.of(files, problem), unexpected)
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
        """Makes a version available to requests.

        Raises:
          BundleError: Its changes are damaged; the version is closed.
          OSError: Its changes cannot be read; the version is closed.
        """
        try:
            # No revision is followed in between: its deny list would miss this version.
            with self._lock:
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

    def _verify_once(
        self, model: str, version: int, files: str, compare: Callable[[], object]
    ) -> None:
        """Compares a version with its signature when it is this worker's turn, unless a worker has
        found the same files to be as they were signed.
        """
        while True:
            turn = self._coordinator.begin_verification(self._worker, model, version, files)
            if turn == "verified":
                return
            if turn == "verify":
                break
            if self._stopping.wait(_TURN_S):
                raise LoadRejected("the service stops")
        verified = False
        try:
            compare()
            verified = True
        finally:
            self._coordinator.end_verification(self._worker, verified)

    def _make_room_and_load(self, model: str, version: int, run_once: Once) -> ModelVersion:
        """Loads a version; gives up those kept for a rollback if it must, and if their memory may
        be enough.
        """
        try:
            return self._loader.load(model, version, run_once)
        except InsufficientMemory as problem:
            previous_versions: list[tuple[str, VersionState]] = []
            freed_bytes = 0
            for name, states in self._manager.models().items():
                for state in states:
                    if state.state == "kept":
                        previous_versions.append((name, state))
                        freed_bytes += state.memory_bytes
            # Given up in vain, they could not serve a rollback any more.
            if not previous_versions or freed_bytes < problem.missing_bytes:
                raise
        for name, state in previous_versions:
            about = fields(model=name, version=state.version, to_load=model)
            log.warning("previous_dropped", extra=about)
            _, arranged = self._manager.arranged(name)
            self._manager.arrange(name, replace(arranged, previous=None))
        # Their memory is free once they are closed.
        self._manager.wait_closed()
        return self._loader.load(model, version, run_once)

    def _deny(self, version: ModelVersion) -> None:
        """Brings the deny list of a version up to date."""
        ids = (self.state.desired or Desired()).of(version.model).denied
        misfits = version.deny(ids)
        if misfits:
            about = fields(
                model=version.model,
                version=version.version,
                ids=misfits[:_LISTED_MAX],
                count=len(misfits),
            )
            log.warning("denied_ids_invalid", extra=about)
        self._metrics.set("denied_ids", len(ids), version.model)

    def _arrange(self, model: str) -> None:
        """Arranges what is loaded of a model by the desired state."""
        with self._lock:
            desired = self.state.desired
            if desired is None:
                return
            loaded, before = self._manager.arranged(model)
            # A copy, since scans change the failures in another thread.
            failed = {version for name, version in list(self._failures) if name == model}
            after = arrange(
                desired.of(model),
                self._settings,
                self.root_versions.get(model, ()),
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
        counts_by_state: dict[str, Counter[str]] = {}
        current: dict[str, int] = {}
        for name, versions in models.items():
            counts_by_state[name] = Counter(version.state for version in versions)
            for version in versions:
                if version.current:
                    current[name] = version.version
        self._metrics.versions(counts_by_state, current)

    def _scan_when_due(self) -> None:
        self._wake.wait(self._settings.poll_interval_s)
        # Cleared before the scan, so that a wake-up during the scan causes another scan.
        self._wake.clear()
        if not self._stopping.is_set():
            self.scan()

    def _repeat(self, run: Callable[[], object], pause_s: float) -> None:
        while not self._stopping.is_set():
            # A bug in one round must not end the thread, which would go unnoticed.
            try:
                run()
            except Exception:
                log.exception("poller_failed")
            self._stopping.wait(pause_s)


def _serve_as_loaded(loaded: ModelVersion, serve: Callable[..., object]) -> None:
    serve(loaded)

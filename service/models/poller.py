"""Keeps the loaded versions up to date with the root and the desired state, and scrubs what is served.

What needs no load (a rollback, a label, a drain) takes effect at once, also while a version is being loaded. A version
that cannot be loaded is reported once and tried again when its files have changed, or later where the machine was at
fault; a current version stays until another replaces it, even when it is gone from the root. Nothing under the root
keeps the rest of it from being served.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from weakref import WeakSet

from bundle import paths, staging
from bundle.errors import DigestMismatch
from service.models.desired_state import Desired
from service.models.failures import LoadFailure, fingerprint, is_expected
from service.models.integrity import scrub
from service.models.loader import InsufficientMemory, Loader
from service.models.manager import VersionManager
from service.models.policy import Policy, arrangement, named, ranked
from service.models.state_file import Follower, StateFile
from service.models.version import ModelVersion, stamp_of
from service.observability.logging import fields, logger
from service.observability.metrics import Metrics

log = logger(__name__)

DRAINED = "the service is drained; `rowcast-serve ctl undrain` makes it accept calls again"
_MISSING = "the desired state names it (in a pin, a label or a load), and it is not under the root"
FOLLOW_S = 0.1
"""Between two looks at the state file."""
CHECK_S = 15.0
"""Between two reports of memory, which look at samples of every table, and between two scrubs."""


class Poller:
    """Scans the root, follows the desired state and scrubs, each in a thread of its own.

    Attributes:
      known: the versions under the root by model, as last scanned; a model may be gone since.
      revision: of the desired state that the loaded versions were last arranged by.
      state_problem: why the desired state cannot be read now; empty: it can.
    """

    def __init__(
        self,
        root: Path,
        loader: Loader,
        manager: VersionManager,
        metrics: Metrics,
        *,
        state: StateFile,
        policy: Policy,
        poll_interval_s: float,
        scrub_bytes_per_s: int,
        desired_changed: Callable[[Desired], object],
    ) -> None:
        """Looks at nothing yet.

        Args:
          scrub_bytes_per_s: 0: nothing is scrubbed.
          desired_changed: called with each new desired state.
        """
        self._root, self._loader, self._manager, self._metrics = root, loader, manager, metrics
        self._policy, self._desired_changed = policy, desired_changed
        self._poll_interval_s, self._scrub_bytes_per_s = poll_interval_s, scrub_bytes_per_s
        self._follower = Follower(state)
        self._lock = threading.RLock()
        self.known: Mapping[str, list[int]] = {}
        self.revision, self.state_problem = 0, ""
        self._failures: dict[tuple[str, int], LoadFailure] = {}
        self._problems: dict[str, str] = {}
        self._scrubbed: WeakSet[ModelVersion] = WeakSet()
        self._stopping, self._wake = threading.Event(), threading.Event()
        manager.subscribe(self._report_versions)

    def start(self) -> None:
        """Scans at once and then every `poll_interval_s`; reads the state file every `FOLLOW_S`."""
        self._wake.set()
        loops: list[tuple[str, Callable[[], object], float]] = [
            ("rowcast-poller", self._scan_when_due, 0),
            ("rowcast-desired-state", self.follow, FOLLOW_S),
            ("rowcast-memory", self.report_memory, CHECK_S),
        ]
        if self._scrub_bytes_per_s:
            loops.append(("rowcast-scrub", self.scrub, CHECK_S))
        for name, run, pause_s in loops:
            threading.Thread(target=self._repeat, args=(run, pause_s), name=name, daemon=True).start()

    def stop(self) -> None:
        """Ends the threads; a load in progress is abandoned with the process."""
        self._stopping.set()
        self._wake.set()

    def look_again(self) -> None:
        """Scans the root now, and tries every failed version again."""
        for failure in list(self._failures.values()):
            failure.retry_at = 0.0
        self._wake.set()

    def follow(self) -> None:
        """Reads the desired state if it has changed, and arranges what is loaded by it. Loads are left to `scan`."""
        with self._lock:
            before = self._follower.desired
            if not self._follower.refresh():
                return
            desired, problem = self._follower.desired, self._follower.problem
            if problem and problem != self.state_problem:
                log.error("state_unreadable", extra=fields(problem=problem))
            self.state_problem = problem
            self._metrics.desired_state(desired.revision if desired else 0, readable=not problem)
            if desired is None:
                self._manager.suspend(problem)
                return
            if desired.revision != (before.revision if before else 0):
                log.info("state_followed", extra=fields(revision=desired.revision))
            self._desired_changed(desired)
            self._manager.suspend(DRAINED if desired.draining else "")
            for model in self._manager.models():
                self._arrange(model)
            self.revision = desired.revision
        self._wake.set()

    def scan(self) -> None:
        """Scans the root once: loads, model by model, what the desired state and the policy ask for."""
        self.follow()
        if self._follower.desired is None:
            return
        for model in sorted({*self._models(), *(name for name, _ in self._failures)}):
            if self._stopping.is_set():
                break
            try:
                self._scan_model(model)
            except Exception as problem:  # noqa: BLE001 - one model's trouble is not another's
                self._log_once(model, problem)
            else:
                self._problems.pop(model, None)
        if not self._manager.settled:
            self._manager.settle()

    def scrub(self) -> None:
        """Scrubs every loaded version that was not scrubbed yet; tries again next time where files cannot be read."""
        for version in self._manager.loaded():
            if version in self._scrubbed:
                continue
            self._scrubbed.add(version)
            try:
                if scrub(version, partial(self._proceed, version)):
                    log.info("version_scrubbed", extra=fields(model=version.model, version=version.version))
            except DigestMismatch as problem:
                self._damaged(version, problem)
            except OSError as problem:
                self._scrubbed.discard(version)
                about = fields(model=version.model, version=version.version, problem=str(problem))
                log.warning("scrub_unreadable", extra=about)

    def _models(self) -> list[str]:
        try:
            names = [name for name in os.listdir(self._root) if paths.is_name(name)]
        except OSError as problem:
            self._log_once("", problem)
            self._metrics.root_scanned(readable=False)
            return []
        self._problems.pop("", None)
        self._metrics.root_scanned(readable=True)
        return [name for name in names if os.path.isdir(self._root / name)]

    def _log_once(self, model: str, problem: Exception) -> None:
        """Logs why a model's directory, or the root (""), cannot be scanned; again only when the reason changes."""
        if self._problems.get(model) == repr(problem):
            return
        self._problems[model] = repr(problem)
        event = ("model_unreadable" if model else "root_unreadable") if isinstance(problem, OSError) else "scan_failed"
        unexpected = None if isinstance(problem, OSError) else problem
        log.error(event, extra=fields(model=model, problem=str(problem)), exc_info=unexpected)

    def _scan_model(self, model: str) -> None:
        desired = (self._follower.desired or Desired()).of(model)
        versions = sorted(staging.committed_versions(self._root, model), reverse=True)
        self.known = {**self.known, model: versions}
        known = {*versions, *self._manager.arranged(model)[0]}
        missing = set(named(desired)) - known
        for key in [key for key in list(self._failures) if key[0] == model and key[1] not in {*versions, *missing}]:
            self._failures.pop(key, None)
            self._manager.forget(*key)
        for version in missing:
            self._fail(model, version, LoadFailure(0, _MISSING, retry_at=0.0))
        available = 0
        for version in ranked(desired, known):
            if available == self._policy.latest:
                break
            available += self._ensure_loaded(model, version)
        for version in named(desired):
            self._ensure_loaded(model, version)
        self._arrange(model)

    def _ensure_loaded(self, model: str, version: int) -> bool:
        """Loads a version unless it is loaded as it is on disk; returns whether it is loaded."""
        directory = self._root / model / str(version)
        found = stamp_of(directory / paths.MANIFEST)
        loaded = [each for each in self._manager.loaded() if (each.model, each.version) == (model, version)]
        if loaded and found in {None, loaded[0].stamp}:
            return True
        failure = self._failures.get((model, version))
        if found is None or (failure and not failure.should_retry(directory)):
            return bool(loaded)
        return self._load(model, version, fingerprint(directory)) or bool(loaded)

    def _load(self, model: str, version: int, files: int) -> bool:
        began = time.monotonic()
        self._manager.begin(model, version)
        try:
            loaded = self._make_room_and_load(model, version)
        except Exception as problem:  # noqa: BLE001 - whatever a bundle does to its libraries, the old version stays
            if not self._stopping.is_set():  # else the threads that warm up are gone
                self._fail(model, version, LoadFailure.of(files, problem), problem)
                self._metrics.load_finished(model, "failed", None)
            return False
        self._failures.pop((model, version), None)
        self._manager.add(loaded)
        self._arrange(model)
        seconds = time.monotonic() - began
        self._metrics.load_finished(model, "available", seconds)
        about = fields(model=model, version=version, seconds=round(seconds, 3), memory_mib=loaded.memory_bytes >> 20)
        log.info("version_available", extra=about)
        return True

    def _make_room_and_load(self, model: str, version: int) -> ModelVersion:
        """Loads a version; gives up those kept for a rollback if it must, and if their memory may be enough."""
        try:
            return self._loader.load(model, version)
        except InsufficientMemory as problem:
            models = self._manager.models()
            kept = [(name, each) for name, versions in models.items() for each in versions if each.state == "kept"]
            if not kept or sum(each.memory_bytes for _, each in kept) < problem.missing_bytes:
                raise
        for name, each in kept:
            log.warning("previous_dropped", extra=fields(model=name, version=each.version, to_load=model))
            self._manager.arrange(name, replace(self._manager.arranged(name)[1], previous=None))
        self._manager.wait_closed()
        return self._loader.load(model, version)

    def _arrange(self, model: str) -> None:
        """Arranges what is loaded of a model by the desired state."""
        with self._lock:
            desired = self._follower.desired
            if desired is None:
                return
            loaded, before = self._manager.arranged(model)
            failed = {version for name, version in list(self._failures) if name == model}
            after = arrangement(desired.of(model), self._policy, self.known.get(model, ()), loaded, failed, before)
            if after != before or loaded - {*after.loaded, after.previous}:
                self._manager.arrange(model, after)

    def _fail(self, model: str, version: int, failure: LoadFailure, unexpected: Exception | None = None) -> None:
        """Remembers a failure, and logs it unless the version failed for the same reason before."""
        before = self._failures.get((model, version))
        self._failures[model, version] = failure
        self._manager.fail(model, version, failure.problem)
        if before is None or before.problem != failure.problem:
            if unexpected is not None and is_expected(unexpected):
                unexpected = None
            about = fields(model=model, version=version, problem=failure.problem)
            log.error("version_failed", extra=about, exc_info=unexpected)

    def _damaged(self, version: ModelVersion, problem: DigestMismatch) -> None:
        key = version.model, version.version
        self._failures[key] = LoadFailure.of(fingerprint(version.directory), problem)
        if self._manager.damage(version, str(problem)):
            self._arrange(version.model)
            self._metrics.load_finished(version.model, "damaged", None)
            log.critical("version_damaged", extra=fields(model=key[0], version=key[1], problem=str(problem)))
            self._wake.set()

    def _proceed(self, version: ModelVersion, size: int) -> bool:
        self._metrics.scrubbed(version.model, size)
        return not self._stopping.wait(size / self._scrub_bytes_per_s) and version in self._manager.loaded()

    def _report_versions(self) -> None:
        models = self._manager.models()
        states = {name: Counter[str](each.state for each in versions) for name, versions in models.items()}
        current = {name: each.version for name, versions in models.items() for each in versions if each.current}
        self._metrics.versions(states, current)

    def report_memory(self) -> None:
        """Reports the memory of the loaded versions, and how much of their tables is in memory."""
        loaded = self._manager.loaded()
        for model in self.known:
            versions = [version for version in loaded if version.model == model]
            tables = [table for version in versions for table in version.manifest.tables.values()]
            readers = [reader for version in versions for reader in version.tables.values()]
            self._metrics.model_memory(
                model,
                sum(version.memory_bytes for version in versions),
                sum(table.bytes for table in tables),
                sum(reader.resident_bytes() for reader in readers),
            )

    def _scan_when_due(self) -> None:
        self._wake.wait(self._poll_interval_s)
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

"""Looks at the root and at what is wanted of it, loads what is new, switches, and checks what is served.

What needs no load (a rollback, a label, a drain) is done at once, also while a version is being loaded. What is refused
is reported once and tried again when its files have changed, or later where the machine was to blame; what is served
stays until something replaces it, even when it is gone from the root. Nothing in the root keeps the rest of it from
being served.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from weakref import WeakSet

from bundle import paths, staging
from bundle.errors import BundleError, DigestMismatch
from service import logs
from service.generations.block_checks import check_mapped
from service.generations.desired import Desired
from service.generations.generation import Generation
from service.generations.loader import Loader, LoadRefused, NoMemory
from service.generations.policy import Policy, arrangement, named, ranked
from service.generations.refusals import RETRY_S, Refusal, files_of, refusal_of
from service.generations.state_file import NAME, Follower, Stamp, StateFile
from service.generations.switch import Switch
from service.metrics import Metrics

log = logs.logger(__name__)

DRAINED = "the service is drained; `rowcast-serve ctl undrain` has it take calls again"
_MISSING = "an operator's order wants it (a pin, a label or a load), and it is not in the root"
FOLLOW_S = 0.1
"""Pause between two looks at the state file, seconds."""
SOONER = 4
"""Times the rate of tables at which vectors are checked: a call reads hundreds of them, which may lie on the disk."""


class Watcher:
    """Keeps the switch up to date with the root, in threads of its own."""

    def __init__(
        self,
        root: Path,
        loader: Loader,
        switch: Switch,
        metrics: Metrics,
        *,
        poll_s: float,
        verify_bytes_per_s: int,
        policy: Policy | None = None,
        state: StateFile | None = None,
        wanted: Callable[[Desired], None] | None = None,
    ) -> None:
        """Looks at nothing yet.

        Args:
          policy: what is loaded where nothing is wanted.
          state: what is wanted; left out: the file of that name under the root.
          wanted: told of each change of it.
        """
        self._root, self._loader, self._switch, self._metrics = root, loader, switch, metrics
        self._poll_s, self._verify_bytes_per_s = poll_s, verify_bytes_per_s
        self._policy, self._wanted = policy or Policy(), wanted
        self._follower = Follower(state or StateFile(root / NAME))
        self._following, self._arranging = threading.Lock(), threading.Lock()
        self._known: dict[str, list[int]] = {}
        self._stamps: dict[tuple[str, int], Stamp] = {}
        self._refused: dict[tuple[str, int], Refusal] = {}
        self._missing: dict[str, set[int]] = {}
        self._told: dict[str, str] = {}
        self._checked: WeakSet[Generation] = WeakSet()
        self.revision = 0
        """Of what was wanted when what is loaded was last arranged."""
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begins to look, at once and then every `poll_s` seconds; at the state file every `FOLLOW_S`."""
        looks = [("rowcast-watcher", self._look_for_ever), ("rowcast-state", self._follow_for_ever)]
        if self._verify_bytes_per_s:
            looks.append(("rowcast-block-checks", self._check_for_ever))
        self._threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in looks]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads; a load that is under way is abandoned with the process."""
        self._stopping.set()
        self._wake.set()

    def look_again(self) -> None:
        """Has the root looked at now, and every refused version tried again."""
        for refusal in list(self._refused.values()):
            refusal.again_at = 0.0
        self._wake.set()

    @property
    def desired(self) -> Desired | None:
        """What is wanted, as last read; None: it could not be read since the start."""
        return self._follower.desired

    @property
    def state_problem(self) -> str:
        """Why what is wanted cannot be read now; empty: it can."""
        return self._follower.problem

    @property
    def known(self) -> dict[str, list[int]]:
        """The versions in the root by model, as it was last looked at; a model may be gone since."""
        return dict(self._known)

    def follow(self) -> None:
        """Reads what is wanted if that has changed, and has what is loaded arranged so. Loads are left to `scan`."""
        with self._following:
            before, told = self._follower.desired, self._follower.problem
            if not self._follower.refresh():
                return
            desired, problem = self._follower.desired, self._follower.problem
            if problem and problem != told:
                log.error("state_unreadable", extra=logs.fields(problem=problem))
            self._metrics.state(desired.revision if desired else 0, readable=not problem)
            if desired is None:
                self._switch.suspend(problem)
                return
            if desired.revision != (before.revision if before else 0):
                log.info("state_followed", extra=logs.fields(revision=desired.revision))
            if self._wanted is not None:
                self._wanted(desired)
            self._switch.suspend(DRAINED if desired.draining else "")
            for model in self._switch.models():
                self._arrange(model)
            self.revision = desired.revision
        self._wake.set()

    def scan(self) -> None:
        """Looks through the root once: loads and switches to what is best of what may be served, model by model."""
        self.follow()
        if self._follower.desired is None:
            return
        for model in sorted({*self._models(), *(name for name, _ in self._refused)}):
            if self._stopping.is_set():
                break
            try:
                self._look(model)
            except Exception as problem:  # noqa: BLE001 - one model's trouble is not another's
                self._tell_once(model, problem)
            else:
                self._told.pop(model, None)
        if not self._switch.settled:
            self._switch.settle()

    def _models(self) -> list[str]:
        try:
            names = [name for name in os.listdir(self._root) if paths.is_name(name)]
        except OSError as problem:
            self._tell_once("", problem)
            self._metrics.root(readable=False)
            return []
        self._told.pop("", None)
        self._metrics.root(readable=True)
        return [name for name in names if os.path.isdir(self._root / name)]

    def _tell_once(self, model: str, problem: Exception) -> None:
        """Logs why a model's directory, or the root (""), cannot be looked at; again only when the reason changes."""
        told = f"{type(problem).__name__}: {problem}"
        if self._told.get(model) == told:
            return
        self._told[model] = told
        if isinstance(problem, OSError):
            event = "model_unreadable" if model else "root_unreadable"
            log.error(event, extra=logs.fields(model=model, problem=str(problem)))
        else:
            log.error("look_failed", extra=logs.fields(model=model), exc_info=problem)

    def check(self) -> bool:
        """Compares the mapped files of every served generation that was not yet compared with their checksums.

        Returns:
          Whether all could be read; if not, the log says why, and the next check begins with those.
        """
        readable = True
        for generation in self._switch.loaded():
            if generation in self._checked:
                continue
            self._checked.add(generation)
            model = generation.model
            try:
                if check_mapped(generation, partial(self._paced, generation)):
                    log.info("tables_checked", extra=logs.fields(model=model, version=generation.version))
            except DigestMismatch as problem:
                self._damaged(generation, problem)
            except OSError as problem:
                readable = False
                self._checked.discard(generation)
                extra = logs.fields(model=model, version=generation.version, problem=str(problem))
                log.warning("tables_unchecked", extra=extra)
        return readable

    def _look(self, model: str) -> None:
        versions = sorted(staging.committed_versions(self._root, model), reverse=True)
        self._known[model] = versions
        for gone in [key for key in list(self._refused) if key[0] == model and key[1] not in versions]:
            self._refused.pop(gone, None)
            self._switch.forget(*gone)
        desired = self._follower.desired
        if desired is None:
            return
        wanted = desired.of(model)
        self._tell_missing(model, {*named(wanted)} - {*versions, *self._switch.arranged(model)[0]})
        had = 0
        for version in ranked(wanted, {*versions, *self._switch.arranged(model)[0]}):
            if had == self._policy.latest:
                break
            had += self._have(model, version)
        for version in named(wanted):
            self._have(model, version)
        self._arrange(model)

    def _tell_missing(self, model: str, missing: set[int]) -> None:
        """Tells once of versions that an operator wants and that are neither loaded nor in the root."""
        before = self._missing.get(model, set())
        self._missing[model] = missing
        for version in before - missing:
            self._switch.forget(model, version)
        for version in sorted(missing - before):
            self._switch.refuse(model, version, _MISSING)
            log.error("version_refused", extra=logs.fields(model=model, version=version, problem=_MISSING))

    def _have(self, model: str, version: int) -> bool:
        """Loads a version unless it is loaded as it lies there; tells whether it is loaded."""
        directory = self._root / model / str(version)
        stamp = _stamp(directory / paths.MANIFEST)
        loaded = version in self._switch.arranged(model)[0]
        if loaded and stamp in {None, self._stamps.get((model, version))}:
            return True
        refusal = self._refused.get((model, version))
        if stamp is None or (refusal and not refusal.worth_another_try(stamp, directory)):
            return loaded
        return self._load(model, version, stamp, files_of(directory)) or loaded

    def _load(self, model: str, version: int, stamp: Stamp, files: int) -> bool:
        began = time.monotonic()
        self._switch.begin(model, version)
        try:
            generation = self._opened(model, version)
        except Exception as problem:  # noqa: BLE001 - whatever a bundle does to its libraries, the old version stays
            if self._stopping.is_set():  # the threads that warm up are gone
                return False
            self._refuse(model, version, refusal_of(stamp, files, problem), problem)
            self._metrics.loaded(model, "refused", None)
            return False
        self._stamps[model, version] = stamp
        self._refused.pop((model, version), None)
        self._switch.add(generation)
        self._arrange(model)
        seconds = time.monotonic() - began
        self._metrics.loaded(model, "available", seconds)
        extra = logs.fields(
            model=model, version=version, seconds=round(seconds, 3), memory_mib=generation.memory_bytes >> 20
        )
        log.info("version_available", extra=extra)
        return True

    def _opened(self, model: str, version: int) -> Generation:
        """Loads a version; what is kept only to go back to makes room for it if it must, and if that may be enough."""
        try:
            return self._loader.load(model, version)
        except NoMemory as problem:
            arranged = {name: self._switch.arranged(name)[1] for name in self._switch.models()}
            kept = [each for each in self._switch.loaded() if arranged[each.model].previous == each.version]
            if not kept or sum(each.memory_bytes for each in kept) < problem.missing_bytes:
                raise
        for each in kept:
            log.warning("previous_dropped", extra=logs.fields(model=each.model, version=each.version, to_load=model))
            self._switch.arrange(each.model, replace(arranged[each.model], previous=None))
        return self._loader.load(model, version)

    def _arrange(self, model: str) -> None:
        """Has what is loaded of a model as it is wanted now."""
        with self._arranging:
            desired = self._follower.desired
            if desired is None:
                return
            loaded, before = self._switch.arranged(model)
            refused = {version for name, version in list(self._refused) if name == model}
            known = self._known.get(model, ())
            wanted = arrangement(desired.of(model), self._policy, known, loaded, refused, before)
            self._switch.arrange(model, wanted)
            for gone in loaded - {*wanted.loaded, wanted.previous}:
                self._stamps.pop((model, gone), None)

    def _refuse(self, model: str, version: int, refusal: Refusal, problem: Exception) -> None:
        """Remembers a refusal, and logs it unless it was refused for the same reason before."""
        known = isinstance(problem, BundleError | LoadRefused | OSError | MemoryError)
        if not known:
            refusal.problem = f"unexpected {type(problem).__name__} while loading; the log has it"
        before = self._refused.get((model, version))
        self._refused[model, version] = refusal
        self._switch.refuse(model, version, refusal.problem)
        if before is None or before.problem != refusal.problem:
            extra = logs.fields(model=model, version=version, problem=refusal.problem)
            log.error("version_refused", extra=extra, exc_info=None if known else problem)

    def _damaged(self, generation: Generation, problem: DigestMismatch) -> None:
        model, version = generation.model, generation.version
        stamp = self._stamps.get((model, version))
        if stamp is not None:
            self._refused[model, version] = refusal_of(stamp, files_of(generation.directory), problem)
        if not self._switch.damage(generation, str(problem)):
            return
        self._arrange(model)
        self._metrics.loaded(model, "damaged", None)
        log.critical("version_damaged", extra=logs.fields(model=model, version=version, problem=str(problem)))
        self._wake.set()

    def _paced(self, generation: Generation, size: int, soon: bool) -> bool:
        self._metrics.checked(generation.model, size)
        rate = self._verify_bytes_per_s * (SOONER if soon else 1)
        pause_s = size / rate if rate else 0
        return not self._stopping.wait(pause_s) and generation in self._switch.loaded()

    def _look_for_ever(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self.scan()
            self._wake.wait(self._poll_s)

    def _follow_for_ever(self) -> None:
        while not self._stopping.wait(FOLLOW_S):
            try:
                self.follow()
            except Exception:
                log.exception("follow_failed")

    def _check_for_ever(self) -> None:
        while not self._stopping.is_set():
            try:
                readable = self.check()
            except Exception:
                log.exception("check_failed")
                readable = False
            self._stopping.wait(self._poll_s if readable else RETRY_S)


def _stamp(manifest: Path) -> Stamp | None:
    try:
        found = manifest.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # there, but not for us: loading it tells why
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino

"""Looks at the root, loads what is new, switches to it, and checks in the background what is served.

What is refused is reported and tried again only when its manifest changes (touch it to have it tried again); what is
served stays until something replaces it, even when it is gone from the root.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path

from bundle import paths, staging
from bundle.errors import BundleError, DigestMismatch
from service import logs
from service.generations.block_checks import check_tables
from service.generations.generation import Generation
from service.generations.loader import Loader, LoadRefused
from service.generations.switch import Switch
from service.metrics import Metrics

log = logs.logger(__name__)

Stamp = tuple[int, int, int]
"""What tells one manifest file from another: time of change (ns), bytes, inode."""


class Watcher:
    """Keeps the switch up to date with the root, in threads of its own."""

    def __init__(
        self, root: Path, loader: Loader, switch: Switch, metrics: Metrics, *, poll_s: float, verify_bytes_per_s: int
    ) -> None:
        self._root, self._loader, self._switch, self._metrics = root, loader, switch, metrics
        self._poll_s, self._verify_bytes_per_s = poll_s, verify_bytes_per_s
        self._lock = threading.Lock()
        self._served: dict[str, tuple[int, Stamp]] = {}
        self._refused: dict[tuple[str, int], Stamp] = {}
        self._checked: dict[str, Generation] = {}
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begins to look, at once and then every `poll_s` seconds."""
        looks = [("rowcast-watcher", self._look_for_ever)]
        if self._verify_bytes_per_s:
            looks.append(("rowcast-block-checks", self._check_for_ever))
        self._threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in looks]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads; a load that is under way is abandoned with the process."""
        self._stopping.set()
        self._wake.set()

    def scan(self) -> None:
        """Looks through the root once: loads and switches to what is newest and valid, model by model."""
        try:
            models = sorted(
                entry.name for entry in os.scandir(self._root) if paths.is_name(entry.name) and entry.is_dir()
            )
        except OSError as problem:
            log.warning("root_unreadable", extra=logs.fields(problem=str(problem)))
            models = []
        for model in sorted({*models, *(name for name, _ in self._refused)}):
            if not self._stopping.is_set():
                self._look(model)
        if not self._switch.settled:
            self._switch.settle()

    def check(self) -> None:
        """Compares the tables of every served generation that was not yet compared with their checksums."""
        for model in self._switch.available():
            generation = self._switch.current(model)
            if generation is None or self._checked.get(model) is generation:
                continue
            self._checked[model] = generation
            try:
                if check_tables(generation, partial(self._paced, generation)):
                    log.info("tables_checked", extra=logs.fields(model=model, version=generation.version))
            except DigestMismatch as problem:
                self._damaged(generation, str(problem))

    def _look(self, model: str) -> None:
        versions = sorted(staging.committed_versions(self._root, model), reverse=True)
        for gone in [key for key in self._refused if key[0] == model and key[1] not in versions]:
            self._refused.pop(gone, None)
            self._switch.forget(*gone)
        for version in versions:
            stamp = _stamp(self._root / model / str(version) / paths.MANIFEST)
            with self._lock:
                served = self._served.get(model)
            if served and (version < served[0] or (version, stamp) == served):
                return
            if stamp is None or self._refused.get((model, version)) == stamp:
                continue
            if self._load(model, version, stamp):
                return

    def _load(self, model: str, version: int, stamp: Stamp) -> bool:
        began = time.monotonic()
        self._switch.begin(model, version)
        try:
            generation = self._loader.load(model, version)
        except (BundleError, LoadRefused) as problem:
            self._refuse(model, version, stamp, str(problem))
        except Exception as problem:
            if self._stopping.is_set():  # the threads that warm up are gone
                return False
            log.exception("load_failed", extra=logs.fields(model=model, version=version))
            self._refuse(model, version, stamp, f"unexpected {type(problem).__name__} while loading; the log has it")
        else:
            with self._lock:
                self._served[model] = (version, stamp)
                self._refused.pop((model, version), None)
            self._switch.put(generation)
            seconds = time.monotonic() - began
            self._metrics.loaded(model, "available", seconds)
            log.info("version_available", extra=logs.fields(model=model, version=version, seconds=round(seconds, 3)))
            return True
        self._metrics.loaded(model, "refused", None)
        return False

    def _refuse(self, model: str, version: int, stamp: Stamp, problem: str) -> None:
        self._refused[model, version] = stamp
        self._switch.refuse(model, version, problem)
        log.error("version_refused", extra=logs.fields(model=model, version=version, problem=problem))

    def _damaged(self, generation: Generation, problem: str) -> None:
        model, version = generation.model, generation.version
        with self._lock:
            served = self._served.get(model)
            if served and served[0] == version:
                self._refused[model, version] = served[1]
                del self._served[model]
        if not self._switch.damage(generation, problem):
            return
        self._metrics.loaded(model, "damaged", None)
        log.critical("version_damaged", extra=logs.fields(model=model, version=version, problem=problem))
        self._wake.set()

    def _paced(self, generation: Generation, size: int) -> bool:
        self._metrics.checked(generation.model, size)
        pause_s = size / self._verify_bytes_per_s if self._verify_bytes_per_s else 0
        return not self._stopping.wait(pause_s) and self._switch.current(generation.model) is generation

    def _look_for_ever(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                self.scan()
            except Exception:
                log.exception("look_failed")
            self._wake.wait(self._poll_s)

    def _check_for_ever(self) -> None:
        while not self._stopping.is_set():
            try:
                self.check()
            except Exception:
                log.exception("check_failed")
            self._stopping.wait(self._poll_s)


def _stamp(manifest: Path) -> Stamp | None:
    try:
        found = manifest.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

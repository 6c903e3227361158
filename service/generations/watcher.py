"""Looks at the root, loads what is new, switches to it, and checks in the background what is served.

What is refused is reported once and tried again when its files have changed, or later where the machine was to blame;
what is served stays until something replaces it, even when it is gone from the root. Nothing that lies in the root
keeps the rest of it from being served.
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
from service.generations.refusals import RETRY_S, Refusal, files_of, refusal_of
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
        self._refused: dict[tuple[str, int], Refusal] = {}
        self._told: dict[str, str] = {}
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

    def look_again(self) -> None:
        """Has the root looked at now, and every refused version tried again."""
        with self._lock:
            for refusal in list(self._refused.values()):
                refusal.again_at = 0.0
        self._wake.set()

    def scan(self) -> None:
        """Looks through the root once: loads and switches to what is newest and valid, model by model."""
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
            return []
        self._told.pop("", None)
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
        """Compares the tables of every served generation that was not yet compared with their checksums.

        Returns:
          Whether all could be read; if not, the log says why, and the next check begins with those.
        """
        readable = True
        for gone in self._checked.keys() - self._switch.available():
            del self._checked[gone]
        for model in self._switch.available():
            generation = self._switch.current(model)
            if generation is None or self._checked.get(model) is generation:
                continue
            self._checked[model] = generation
            try:
                if check_tables(generation, partial(self._paced, generation)):
                    log.info("tables_checked", extra=logs.fields(model=model, version=generation.version))
            except DigestMismatch as problem:
                self._damaged(generation, problem)
            except OSError as problem:
                readable = False
                del self._checked[model]
                extra = logs.fields(model=model, version=generation.version, problem=str(problem))
                log.warning("tables_unchecked", extra=extra)
        return readable

    def _look(self, model: str) -> None:
        versions = sorted(staging.committed_versions(self._root, model), reverse=True)
        for gone in [key for key in list(self._refused) if key[0] == model and key[1] not in versions]:
            self._refused.pop(gone, None)
            self._switch.forget(*gone)
        for version in versions:
            directory = self._root / model / str(version)
            stamp = _stamp(directory / paths.MANIFEST)
            with self._lock:
                served = self._served.get(model)
            if served and (version < served[0] or (version, stamp) == served):
                return
            refusal = self._refused.get((model, version))
            if stamp is None or (refusal and not refusal.worth_another_try(stamp, directory)):
                continue
            if self._load(model, version, stamp, files_of(directory)):
                return

    def _load(self, model: str, version: int, stamp: Stamp, files: int) -> bool:
        began = time.monotonic()
        self._switch.begin(model, version)
        try:
            generation = self._loader.load(model, version)
        except Exception as problem:  # noqa: BLE001 - whatever a bundle does to its libraries, the old version stays
            if self._stopping.is_set():  # the threads that warm up are gone
                return False
            self._refuse(model, version, refusal_of(stamp, files, problem), problem)
            self._metrics.loaded(model, "refused", None)
            return False
        with self._lock:
            self._served[model] = (version, stamp)
            self._refused.pop((model, version), None)
        self._switch.put(generation)
        seconds = time.monotonic() - began
        self._metrics.loaded(model, "available", seconds)
        log.info("version_available", extra=logs.fields(model=model, version=version, seconds=round(seconds, 3)))
        return True

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
        with self._lock:
            served = self._served.get(model)
            if served and served[0] == version:
                self._refused[model, version] = refusal_of(served[1], files_of(generation.directory), problem)
                del self._served[model]
        if not self._switch.damage(generation, str(problem)):
            return
        self._metrics.loaded(model, "damaged", None)
        log.critical("version_damaged", extra=logs.fields(model=model, version=version, problem=str(problem)))
        self._wake.set()

    def _paced(self, generation: Generation, size: int) -> bool:
        self._metrics.checked(generation.model, size)
        pause_s = size / self._verify_bytes_per_s if self._verify_bytes_per_s else 0
        return not self._stopping.wait(pause_s) and self._switch.current(generation.model) is generation

    def _look_for_ever(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self.scan()
            self._wake.wait(self._poll_s)

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

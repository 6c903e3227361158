"""Serves versions with deltas from whole files.

A version with deltas is mapped as it comes: its base and its deltas. One process per host then
writes base and deltas as whole files beside the version, and every process that serves the version
maps these in their place. They have the same rows, so that no request notices.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from weakref import WeakKeyDictionary

from bundle.errors import BundleError, DigestMismatch, VersionBusy
from bundle.format import paths
from bundle.storage import lock, retention
from bundle.tables.whole_segments import unmerged_segments, with_whole_files
from service.config import ServiceSettings
from service.observability.logging import fields, logger
from service.observability.metrics import Metrics
from service.versions import segment_merging
from service.versions.lifecycle import VersionManager
from service.versions.version import ModelVersion

log = logger(__name__)

LOCK = ".rowcast-merging.lock"
"""The file under the root whose lock the process has that writes whole files."""
RETRY_S = 60.0
"""Time until a version that could not be merged is tried again; doubled by each further failure."""
RETRY_S_MAX = 3600.0
UNUSED_S = 600.0
"""Time for which a version must not be loaded until its whole files are removed: a service that
starts again loads it soon.
"""
_POLL_S = 0.5
"""Time between two looks at the process that writes whole files."""
_MAP_S = 10.0
"""Time between two searches for tables that it has merged."""


@dataclass
class _Failure:
    """A version that could not be merged.

    Attributes:
      pause_s: The time until the next attempt, from the last one.
      retry_at: The time of the next attempt, by the clock of the merger.
    """

    pause_s: float
    retry_at: float


class Merger:
    """Has the loaded versions merged, and maps what is merged."""

    def __init__(
        self,
        settings: ServiceSettings,
        manager: VersionManager,
        metrics: Metrics,
        stopping: Event,
        damaged: Callable[[ModelVersion, Exception], object],
        replaced: Callable[[ModelVersion], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a merger; `run` does the work.

        Args:
          settings: The settings: the root, and the rate.
          manager: Knows the loaded versions.
          metrics: Reports what is not merged yet.
          stopping: Ends what is in progress.
          damaged: Called with a version whose files differ from their checksums.
          replaced: Called with a version some of whose tables have been mapped anew.
          clock: Returns the current monotonic time in seconds.
        """
        self._settings = settings
        self._manager = manager
        self._metrics = metrics
        self._stopping = stopping
        self._damaged = damaged
        self._replaced = replaced
        self._clock = clock
        self._failures = WeakKeyDictionary[ModelVersion, _Failure]()
        self._unused_since: dict[Path, float] = {}
        self._reported = set[str]()
        self._lock_failed = False

    def run(self) -> None:
        """Maps what is merged, and merges what is not, unless another process does."""
        self._map_merged()
        if not self._settings.merge_bytes_per_s:
            return
        # A root without deltas gets no file of the lock.
        has_deltas = any(map(_unmerged_bytes, self._manager.loaded()))
        if not has_deltas and not any(self._whole_directories()):
            return
        with self._turn() as descriptor:
            if descriptor is None:
                return
            for version in self._manager.loaded():
                failure = self._failures.get(version)
                if failure is None or failure.retry_at <= self._clock():
                    self._merge(version, descriptor)
            self._remove_unused()

    def _map_merged(self) -> None:
        """Maps the tables anew all of whose segments have been merged, and reports the others."""
        loaded = self._manager.loaded()
        for version in loaded:
            is_replaced = False
            for table in version.tables.values():
                if not any(unmerged_segments(table.table)):
                    continue
                merged = with_whole_files(version.directory, table.table)
                # At once: each time, all files of the table are mapped anew.
                if any(unmerged_segments(merged)):
                    continue
                # The version may just have been removed.
                with suppress(BundleError, OSError):
                    table.replace_files(version.directory, merged)
                    is_replaced = True
            if is_replaced:
                version.reader.forget_files()
                self._replaced(version)

        # A model that was reported once is reported with 0 when it has no version left.
        self._reported.update(version.model for version in loaded)
        for model in self._reported:
            versions = [version for version in loaded if version.model == model]
            unmerged_bytes = sum(_unmerged_bytes(version) for version in versions)
            self._metrics.set("model_unmerged_bytes", unmerged_bytes, model)

    @contextmanager
    def _turn(self) -> Iterator[int | None]:
        """Yields a descriptor that holds the lock of the root; None: another process has it, or the
        root has no locks.
        """
        descriptor = None
        try:
            descriptor = lock.acquire(self._settings.root / LOCK, "what is merged under the root")
            self._lock_failed = False
        except VersionBusy:
            pass
        except OSError as problem:
            if not self._lock_failed and any(map(_unmerged_bytes, self._manager.loaded())):
                self._lock_failed = True
                log.warning("merge_impossible", extra=fields(problem=str(problem)))
        try:
            yield descriptor
        finally:
            # The file stays: a process that merges may hold its lock for longer.
            if descriptor is not None:
                os.close(descriptor)

    def _merge(self, version: ModelVersion, lock_descriptor: int) -> None:
        """Merges what is not merged of a version."""
        unmerged = [
            segment
            for table in version.tables.values()
            for segment in unmerged_segments(table.table)
        ]
        if not unmerged:
            return
        segment_files = {segment.segment.file for segment in unmerged}
        began = self._clock()
        try:
            code, problem = self._run_process(version, segment_files, lock_descriptor)
        except OSError as failure:  # there is no memory for a process, or no descriptor
            code = segment_merging.EXIT_DISK
            problem = str(failure)
        # A version that was unloaded or removed meanwhile needs nothing any more.
        is_loaded = version in self._manager.loaded() and version.directory.is_dir()
        if self._stopping.is_set() or not is_loaded:
            return
        if code == segment_merging.EXIT_DAMAGED:
            self._damaged(version, DigestMismatch(problem))
        elif code:
            if code < 0:
                problem = f"the process ended by {signal.Signals(-code).name}"
            self._postpone(version, problem)
        else:
            self._map_merged()
            # It would be merged again and again.
            if _unmerged_bytes(version):
                self._postpone(version, "what was merged cannot be mapped")
                return
            self._failures.pop(version, None)
            about = fields(
                model=version.model,
                version=version.version,
                bytes=sum(segment.bytes for segment in unmerged),
                seconds=round(self._clock() - began, 3),
            )
            log.info("version_merged", extra=about)

    def _postpone(self, version: ModelVersion, problem: str) -> None:
        """Has a version merged later that could not be merged now."""
        before = self._failures.get(version)
        pause_s = RETRY_S
        if before is None:
            about = fields(model=version.model, version=version.version, problem=problem)
            log.warning("merge_postponed", extra=about)
        else:
            pause_s = min(2 * before.pause_s, RETRY_S_MAX)
        self._failures[version] = _Failure(pause_s, self._clock() + pause_s)

    def _run_process(
        self, version: ModelVersion, segment_files: set[str], lock_descriptor: int
    ) -> tuple[int, str]:
        """Has segments merged by another process; returns its exit code and what it says. It is
        killed when the service stops, or the version is unloaded.
        """
        command = [sys.executable, "-P", "-m", segment_merging.__name__]
        command += [str(version.directory), str(os.getpid())]
        command += [str(self._settings.merge_bytes_per_s)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # It holds the lock, too: should this process die first, no other one begins beside it.
            pass_fds=[lock_descriptor],
            # Ctrl-C in a terminal ends this process, which ends that one.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        text: str | None = "\n".join(sorted(segment_files))
        map_at = self._clock() + _MAP_S
        try:
            while True:
                try:
                    _, problem = process.communicate(text, timeout=_POLL_S)
                except subprocess.TimeoutExpired:
                    text = None
                    if self._clock() >= map_at:
                        self._map_merged()
                        map_at = self._clock() + _MAP_S
                    if self._stopping.is_set() or version not in self._manager.loaded():
                        process.kill()
                else:
                    return process.returncode, problem.strip()
        except BaseException:
            process.kill()
            process.wait()
            raise

    def _whole_directories(self) -> Iterator[Path]:
        """Yields the directories of whole files under the root, with those whose removal was
        interrupted.
        """
        return self._settings.root.glob(f"*/*/{paths.WHOLE}*")

    def _remove_unused(self) -> None:
        """Removes the whole files of versions that no process has loaded for a while."""
        loaded = {version.directory for version in self._manager.loaded()}
        unused = {path.parent for path in self._whole_directories()} - loaded
        now = self._clock()
        self._unused_since = {path: self._unused_since.get(path, now) for path in unused}
        due = [path for path, since in self._unused_since.items() if now - since >= UNUSED_S]
        for path in due:
            # Counted anew: another process may have it loaded.
            self._unused_since[path] = now
            # Without locks, nobody knows who uses it.
            with suppress(OSError):
                if retention.remove_whole_files(path):
                    log.info("merged_files_removed", extra=fields(directory=str(path)))


def _unmerged_bytes(version: ModelVersion) -> int:
    """Returns the size of the segments of a version that are read through deltas."""
    return sum(
        unmerged.bytes
        for table in version.tables.values()
        for unmerged in unmerged_segments(table.table)
    )

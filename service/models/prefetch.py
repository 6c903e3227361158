"""Reads tables into memory while their version is served already, at a bounded rate, ahead of requests.

A row that is still on disk delays its request. Whole tables are read, the smallest first: requests soon read every row
of a small one, and few of the rows that would fit of a large one.
"""

from __future__ import annotations

import threading
import time
from weakref import WeakSet

from service.models.manager import VersionManager
from service.models.version import ModelVersion
from service.observability.logging import fields, logger
from service.observability.metrics import Metrics

log = logger(__name__)

CHECK_S = 1.0
"""Between two looks for versions that came."""


class Prefetcher:
    """Prefetches the tables of each version once, in a thread of its own."""

    def __init__(self, manager: VersionManager, metrics: Metrics, max_bytes: int, bytes_per_s: int) -> None:
        """Reads nothing yet.

        Args:
          max_bytes: of the tables of one version; 0: none are read.
          bytes_per_s: of all versions together.
        """
        self._manager, self._metrics = manager, metrics
        self._max_bytes, self._bytes_per_s = max_bytes, bytes_per_s
        self._done: WeakSet[ModelVersion] = WeakSet()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begins with what is loaded, and continues with each version that comes."""
        if self._max_bytes:
            threading.Thread(target=self._run, name="rowcast-prefetch", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread after the chunk it is reading."""
        self._stopping.set()

    def prefetch(self) -> None:
        """Reads the tables of every loaded version of which that was not done yet."""
        for version in self._manager.loaded():
            if version not in self._done:
                self._done.add(version)
                self._read(version)

    def _read(self, version: ModelVersion) -> None:
        began, done, skipped = time.monotonic(), 0, 0
        entries = version.manifest.tables
        for name in sorted(entries, key=lambda name: entries[name].bytes):
            if done + entries[name].bytes > self._max_bytes:
                skipped += 1
                continue
            for size in version.tables[name].warm():
                done += size
                self._metrics.prefetched(version.model, size)
                if self._stopping.wait(size / self._bytes_per_s) or version not in self._manager.loaded():
                    return
        seconds = round(time.monotonic() - began, 3)
        about = fields(model=version.model, version=version.version, seconds=seconds, mib=done >> 20, skipped=skipped)
        log.info("version_prefetched", extra=about)

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_S):
            try:
                self.prefetch()
            except Exception:
                log.exception("prefetch_failed")

"""What is done to versions while they are served: the integrity scrub, the prefetch, reports of
their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate
from threading import Event
from weakref import WeakSet

from bundle.arithmetic import ceil_div
from bundle.errors import BundleError
from bundle.format.checksums import PIECE_BYTES
from bundle.storage import integrity
from bundle.storage.mapped_files import checked_later
from service.config import ServiceSettings
from service.observability.logging import fields, logger
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.version import ModelVersion

log = logger(__name__)

CHECK_S = 15.0
"""Time between two reports of memory, which look at samples of every table, and between two
searches for versions to scrub.
"""
PREFETCH_S = 1.0
"""Time between two searches for versions to prefetch: a new version is soon read from memory."""


class _Ended(Exception):
    """The version that is worked on was unloaded, or the service stops."""


class Maintenance:
    """Scrubs and prefetches each loaded version once, at a bounded rate.

    Attributes:
      loops: The names of threads, what they repeat, and the seconds between.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        manager: VersionManager,
        metrics: Metrics,
        stopping: Event,
        damaged: Callable[[ModelVersion, Exception], object],
    ) -> None:
        """Creates the maintenance; its `loops` do the work.

        Args:
          settings: The settings: the rates of the scrub and of the prefetch.
          manager: Knows the loaded versions.
          metrics: Counts the bytes, and reports the memory.
          stopping: Ends what is in progress.
          damaged: Called with a version whose files differ from their checksums.
        """
        self._settings = settings
        self._manager = manager
        self._metrics = metrics
        self._stopping = stopping
        self._damaged = damaged
        self._scrubbed = WeakSet[ModelVersion]()
        self._prefetched = WeakSet[ModelVersion]()
        self._reported = set[str]()
        self.loops: list[tuple[str, Callable[[], object], float]] = [
            ("rowcast-memory", self.report_memory, CHECK_S),
            ("rowcast-scrub", self.scrub, CHECK_S),
            ("rowcast-prefetch", self.prefetch, PREFETCH_S),
        ]

    def scrub(self) -> None:
        """Compares what was verified by its size before it was served with its checksums: tables,
        large vectors, keys.

        The files are read, not the maps of them, so that a truncated file is a short read and not a
        fault.
        """
        # The setting is for the machine: the workers share its disk.
        bytes_per_s = ceil_div(self._settings.scrub_bytes_per_s, self._settings.workers)
        if not bytes_per_s:
            return
        for version in self._not_in(self._scrubbed):
            about = {"model": version.model, "version": version.version}
            later = checked_later(version.files)
            mapped = version.files.model_copy(update={"files": later})
            pause = partial(self._pause, version, PIECE_BYTES, bytes_per_s)
            try:
                integrity.check_files(version.directory, mapped, "full", pause)
            except _Ended:
                continue
            except (BundleError, OSError) as problem:
                reason = problem.__cause__ or problem
                # A version that was removed from the root is served from its maps, which are whole.
                if not version.directory.is_dir():
                    continue
                is_missing = isinstance(reason, FileNotFoundError | NotADirectoryError)
                if isinstance(reason, OSError) and not is_missing:
                    # The file cannot be read now. Its bytes may be sound: a later scrub will see.
                    self._scrubbed.discard(version)
                    log.warning("scrub_unreadable", extra=fields(**about, problem=str(problem)))
                else:
                    self._damaged(version, problem)
                continue
            tables_bytes = sum(
                size for table in version.files.tables.values() for _, size in table.extents()
            )
            scrubbed_bytes = tables_bytes + sum(file.bytes for file in later)
            self._metrics.count("scrubbed_bytes", scrubbed_bytes, version.model)
            log.info("version_scrubbed", extra=fields(**about))

    def prefetch(self) -> None:
        """Reads whole tables into memory, the smallest first.

        A row that is still on disk delays its request. Requests soon read every row of a small
        table, and few of the rows that would fit of a large one.
        """
        limit_bytes = self._settings.prefetch_max_bytes
        if not limit_bytes:
            return
        for version in self._not_in(self._prefetched):
            sizes = sorted((table.bytes, name) for name, table in version.files.tables.items())
            totals = accumulate(size for size, _ in sizes)
            fitting = [
                name for (_, name), total in zip(sizes, totals, strict=True) if total <= limit_bytes
            ]
            with suppress(_Ended):
                for name in fitting:
                    for size in version.tables[name].warm():
                        self._metrics.count("prefetched_bytes", size, version.model)
                        self._pause(version, size, self._settings.prefetch_bytes_per_s)
                skipped = len(sizes) - len(fitting)
                about = fields(model=version.model, version=version.version, tables_skipped=skipped)
                log.info("version_prefetched", extra=about)

    def report_memory(self) -> None:
        """Reports the memory of the loaded versions, and how much of their tables is in memory."""
        loaded = self._manager.loaded()
        # A model that was reported once is reported with 0 when it has no version left.
        self._reported.update(version.model for version in loaded)
        for model in self._reported:
            versions = [version for version in loaded if version.model == model]
            tables = [table for version in versions for table in version.tables.values()]
            table_bytes = sum(size for table in tables for _, size in table.table.extents())
            resident_bytes = sum(table.resident_bytes() for table in tables)
            self._metrics.set(
                "model_memory_bytes", sum(version.memory_bytes for version in versions), model
            )
            self._metrics.set("model_table_bytes", table_bytes, model)
            self._metrics.set("model_resident_table_bytes", resident_bytes, model)

    def _not_in(self, done: WeakSet[ModelVersion]) -> Iterator[ModelVersion]:
        """Yields the loaded versions that are not in a set yet, and adds them to it."""
        for version in self._manager.loaded():
            if version not in done:
                done.add(version)
                yield version

    def _pause(self, version: ModelVersion, size: int, bytes_per_s: int) -> None:
        if self._stopping.wait(size / bytes_per_s) or version not in self._manager.loaded():
            raise _Ended

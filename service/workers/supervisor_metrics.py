"""The metrics of a service: what its workers write to files of the run directory, and what the
supervisor counts itself.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Collection
from pathlib import Path

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry

from service.observability import merged_metrics

COUNTERS = {
    "worker_ends": (
        "Workers that ended unasked",
        ("reason",),
    )
}
ENDS = ("exit", "SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL")
"""Ends of workers that nobody requested, which are counted from the start: an alert watches for an
increase, which the first count would not be without a zero. Other signals have series of their own
once they occur.
"""
_LOCK_S = 1.0
"""Time for which the lock of a new run directory is waited for: systemd-tmpfiles, while it looks at
a directory, has it.
"""
_LOCK_PAUSE_S = 0.01


class SupervisorMetrics:
    """The run directory, which holds nothing but the files of prometheus_client.

    Attributes:
      directory: The directory; its mode is 0700.
    """

    def __init__(self) -> None:
        """Creates the run directory.

        Raises:
          OSError: There is no directory for temporary files.
        """
        self.directory = Path(tempfile.mkdtemp(prefix="rowcast-"))
        self._lock = _lock_directory(self.directory)
        self._closed = False
        # A second signal closes while the first one's close is in progress, in the same thread.
        self._closing = threading.RLock()
        self._rendering = threading.Lock()
        self._registry = CollectorRegistry()
        text, labels = COUNTERS["worker_ends"]
        self._ends = prometheus.Counter(
            "rowcast_worker_ends", text, labels, registry=self._registry
        )
        for reason in ENDS:
            self._ends.labels(reason)

    def worker_ended(self, reason: str) -> None:
        """Counts a worker that ended unasked; `reason`: see ENDS."""
        self._ends.labels(reason).inc()

    def restore_directory(self) -> None:
        """Creates the run directory again if somebody has removed it: workers that start need it.
        Does nothing once the metrics are closed.

        Raises:
          OSError: The directory cannot be created, is no directory, or belongs to another user.
        """
        with self._closing:
            if self._closed:
                return
            try:
                self.directory.mkdir(mode=0o700)
            except FileExistsError:
                if not self.directory.is_dir():
                    raise NotADirectoryError(f"{self.directory} is not a directory") from None
                # Anyone may create the name in /tmp, and read what is written there.
                if self.directory.stat().st_uid != os.geteuid():
                    raise PermissionError(f"{self.directory} is another user's") from None
            else:
                # The lock was that of the directory that is gone.
                os.close(self._lock)
                self._lock = _lock_directory(self.directory)

    def render(self, running: Collection[int]) -> bytes:
        """Returns the text of `/metrics`, without the gauges of workers that have ended.

        Args:
          running: The workers that have reported, by process id.

        Raises:
          MetricsMissing: The files of a worker are gone.
        """
        # prometheus_client's metrics of a process, such as its memory, are those of one process.
        only_pid = next(iter(running)) if len(running) == 1 else None
        # One scrape at a time: `forget_ended` moves counts from one file to another.
        with self._rendering:
            merged_metrics.check_files(self.directory, running)
            merged_metrics.forget_ended(self.directory)
            merged = merged_metrics.render(self.directory, only_pid)
        return merged + prometheus.generate_latest(self._registry)

    def close(self) -> None:
        """Removes the run directory; may be called again."""
        with self._closing:
            if not self._closed:
                self._closed = True
                os.close(self._lock)
        shutil.rmtree(self.directory, ignore_errors=True)


def _lock_directory(directory: Path) -> int:
    """Locks a directory and returns its open descriptor. systemd-tmpfiles removes nothing from a
    directory that is locked.

    Raises:
      OSError: Another program has locked it for `_LOCK_S`.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() < end:
                time.sleep(_LOCK_PAUSE_S)
                continue
            os.close(descriptor)
            raise
        return descriptor

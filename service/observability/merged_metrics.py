"""The metrics of all workers, from the files that each writes to the run directory.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from service.observability.derived_metrics import DerivedMetrics

CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_0_0_4
_ENDED = "ended"
"""The name in place of a process id of the files with the sums of all workers that have ended."""


class MetricsMissing(Exception):
    """The files of a worker's metrics are gone; the message says what to do."""


def check_files(directory: Path, running: Collection[int]) -> None:
    """Checks that the metrics of each worker exist. A scrape without them would show that nothing
    happens.

    Raises:
      MetricsMissing: The metrics of a worker do not exist.
    """
    for pid in running:
        if not (directory / f"counter_{pid}.db").exists():
            raise MetricsMissing(
                f"the metrics of worker {pid} are gone: something has cleaned its directory for "
                "temporary files; replace the workers by SIGHUP to the service, and set TMPDIR to "
                "a directory that nobody cleans"
            )


def render(directory: Path, process: int | None = None) -> bytes:
    """Returns the text of `/metrics`, of content type CONTENT_TYPE; takes milliseconds.

    Args:
      directory: The directory to which the workers write their metrics.
      process: The only worker, whose memory and CPU time are added; None: there are several.
    """
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(directory))  # type: ignore[no-untyped-call]
    if process is not None:
        prometheus.ProcessCollector(pid=lambda: process, registry=registry)
    return prometheus.generate_latest(DerivedMetrics(registry))


def forget_ended(directory: Path) -> None:
    """Removes the files of the children of this process that have ended; their counts are added to
    those of one file, so that no counter decreases and no files pile up.
    """
    pids = set[int]()
    for file in directory.glob("*_*.db"):
        name = file.stem.rpartition("_")[2]
        if name.isdecimal():
            pids.add(int(name))
    for pid in pids:
        if not _has_ended(pid):
            continue
        # `mark_process_dead` removes gauges alone, and prometheus_client has no function that adds
        # the counts of one file to another.
        mark_process_dead(pid, str(directory))  # type: ignore[no-untyped-call]
        for kind in ("counter", "histogram"):
            _add_to_ended(directory, kind, pid)


def _has_ended(pid: int) -> bool:
    try:
        # Not reaped: a worker that ended is there until uvicorn does so, in another thread.
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        # It was reaped. Another program may have the number by now.
        return True


def _add_to_ended(directory: Path, kind: str, pid: int) -> None:
    file = directory / f"{kind}_{pid}.db"
    # A process that observed no value of this kind has no file.
    with contextlib.suppress(FileNotFoundError):
        values = MmapedDict.read_all_values_from_file(str(file))  # type: ignore[no-untyped-call]
        sums = MmapedDict(str(directory / f"{kind}_{_ENDED}.db"))  # type: ignore[no-untyped-call]
        for key, value, timestamp, _ in values:
            before, _ = sums.read_value(key)  # type: ignore[no-untyped-call]
            sums.write_value(key, before + value, timestamp)  # type: ignore[no-untyped-call]
        sums.close()  # type: ignore[no-untyped-call]
        file.unlink()

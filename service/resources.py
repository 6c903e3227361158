"""What this process may use of the machine: memory, cores and threads, within the limits of its
cgroups (v1 or v2).
"""

from __future__ import annotations

import math
import mmap
import os
import resource
from collections.abc import Iterator, MutableMapping
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")
_MEMORY_FILES = (
    ("", "memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
"""Of cgroups v2 and v1: controller, limit, usage, and what of the usage are pages of files."""
_OPEN_FILES = 1 << 16
_QUOTA_FILES = (("", ("cpu.max",)), ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")))


def free_bytes(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Returns how much memory this process may still take.

    Pages of files count as free: a cgroup whose tables are larger than its limit is always full of
    them, and the kernel gives them up for anything else.

    Args:
      mount: where cgroup file systems are mounted.
      own: file that names the cgroups of the process.
    """
    free = _number(_table(_MEMINFO)["MemAvailable:"]) << 10
    for controller, limit_name, usage_name, file_pages in _MEMORY_FILES:
        for directory in _cgroups(controller, mount, own):
            try:
                limit, usage = (
                    (directory / name).read_text().strip() for name in (limit_name, usage_name)
                )
                parts = _table(directory / "memory.stat")
            except OSError:
                continue
            if limit.isdecimal():  # "max": no limit
                reclaimable = sum(_number(parts.get(name, "0")) for name in file_pages)
                free = min(free, max(0, int(limit) - int(usage) + reclaimable))
    return free


def memory_bytes(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Returns the memory of this machine or, if that is less, the smallest limit of the process'
    cgroups. `mount`, `own`: as for `free_bytes`.
    """
    total = _number(_table(_MEMINFO)["MemTotal:"]) << 10
    for controller, limit_name, _, _ in _MEMORY_FILES:
        for directory in _cgroups(controller, mount, own):
            try:
                limit = (directory / limit_name).read_text().strip()
            except OSError:
                continue
            if limit.isdecimal():  # "max": no limit
                total = min(total, int(limit))
    return total


def open_files_max() -> int:
    """Returns how many files this process may open once it has raised its own limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)


def raise_open_files_limit() -> None:
    """Raises the soft limit on open files towards the hard one: many systems begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = open_files_max()
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def resident_bytes() -> int:
    """Returns the resident memory of this process, pages of mapped files included."""
    return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE


def usable_cores(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Returns how many cores this process may use: its affinity, limited by the smallest CPU quota
    of its cgroups.

    A part of a core counts as one. `mount`, `own`: as for `free_bytes`.
    """
    return max(
        1, min([len(os.sched_getaffinity(0)), *(math.ceil(quota) for quota in _quotas(mount, own))])
    )


def limit_blas(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keeps numpy from starting threads, unless the environment sets their number; call before
    importing it.
    """
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")


def compute_threads(
    workers: int,
    threads: int,
    environment: MutableMapping[str, str] = os.environ,
    cores: int | None = None,
) -> int:
    """Returns the number of compute threads of one process, and sets TensorFlow's variables where
    they are not set.

    Requests run in parallel, not the operations of one; call before TensorFlow is loaded.

    Args:
      workers: processes that share the cores.
      threads: of each process; 0: an equal share of the cores.
      environment: of the process.
      cores: that all processes may use; None: `usable_cores()`.
    """
    count = threads or max(1, (cores or usable_cores()) // workers)
    environment.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    environment.setdefault("TF_NUM_INTEROP_THREADS", str(count))
    return count


def _quotas(mount: Path, own: Path) -> Iterator[float]:
    for controller, names in _QUOTA_FILES:
        for directory in _cgroups(controller, mount, own):
            try:
                quota, period = " ".join((directory / name).read_text() for name in names).split()[
                    :2
                ]
            except (OSError, ValueError):
                continue
            if quota.isdecimal() and period.isdecimal() and int(period):  # "max", "-1": no quota
                yield int(quota) / int(period)


def _cgroups(controller: str, mount: Path, own: Path) -> Iterator[Path]:
    """Yields the directories of the process' cgroup and of all above it; `controller`: of v1; "":
    the tree of v2.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        lines = []
    path = next(
        (line[2] for line in lines if len(line) == 3 and controller in line[1].split(",")), "/"
    )
    root = mount / controller
    directory = root / path.strip("/")
    if (
        ".." in directory.parts
    ):  # outside of what is mounted here: in a container, its own cgroup is the mount
        directory = root
    while directory != root:
        yield directory
        directory = directory.parent
    yield root


def _table(file: Path) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in file.read_text().splitlines())


def _number(text: str) -> int:
    return int(text.split(maxsplit=1)[0])

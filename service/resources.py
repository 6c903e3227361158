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
"""The directory where cgroup file systems are mounted."""
MEMBERSHIP = Path("/proc/self/cgroup")
"""The file that names the cgroups of the process."""
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
"""The files of cgroups v2 and v1: controller, limit, usage, and the parts of the usage that are
pages of files.
"""
_OPEN_FILES = 1 << 16
"""Number of files that a process may open at most, where the hard limit is higher or infinite."""
_QUOTA_FILES = (("", ("cpu.max",)), ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")))
"""The files of cgroups v2 and v1: controller, and the files with the quota and its period."""


def free_bytes(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> int:
    """Returns how much memory this process may still take.

    Pages of files count as free: a cgroup whose tables are larger than its limit is always full of
    them, and the kernel gives them up for anything else.

    Args:
      mount: The directory where cgroup file systems are mounted.
      membership: The file that names the cgroups of the process.
    """
    free = _number(_table(_MEMINFO)["MemAvailable:"]) << 10
    # A cgroup cannot use more than any of those above it, so that the smallest rest counts.
    for controller, limit_name, usage_name, file_pages in _MEMORY_FILES:
        for directory in _cgroups(controller, mount, membership):
            try:
                limit = (directory / limit_name).read_text().strip()
                usage = (directory / usage_name).read_text().strip()
                parts = _table(directory / "memory.stat")
            except OSError:
                # The machine has the other version of cgroups, or the root has no limit.
                continue
            # Without a limit, the file says "max".
            if limit.isdecimal():
                reclaimable = sum(_number(parts.get(name, "0")) for name in file_pages)
                free = min(free, max(0, int(limit) - int(usage) + reclaimable))
    return free


def memory_bytes(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> int:
    """Returns the memory of this machine or, if that is less, the smallest limit of the process'
    cgroups.

    Args:
      mount: See `free_bytes`.
      membership: See `free_bytes`.
    """
    total = _number(_table(_MEMINFO)["MemTotal:"]) << 10
    for controller, limit_name, _, _ in _MEMORY_FILES:
        for directory in _cgroups(controller, mount, membership):
            try:
                limit = (directory / limit_name).read_text().strip()
            except OSError:
                continue
            # Without a limit, the file says "max".
            if limit.isdecimal():
                total = min(total, int(limit))
    return total


def open_files_max() -> int:
    """Returns how many files this process may open once it has raised its own limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return _OPEN_FILES
    return min(hard, _OPEN_FILES)


def raise_open_files_limit() -> None:
    """Raises the soft limit on open files towards the hard one: many systems begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = open_files_max()
    if soft != resource.RLIM_INFINITY and soft < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


def resident_bytes() -> int:
    """Returns the resident memory of this process, pages of mapped files included."""
    return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE


def usable_cores(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> int:
    """Returns how many cores this process may use: its affinity, limited by the smallest CPU quota
    of its cgroups. A part of a core counts as one.

    Args:
      mount: See `free_bytes`.
      membership: See `free_bytes`.
    """
    limits = [len(os.sched_getaffinity(0))]
    limits += [math.ceil(quota) for quota in _quotas(mount, membership)]
    return max(1, min(limits))


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
      workers: The number of processes that share the cores.
      threads: The number of threads of each process; 0: an equal share of the cores.
      environment: The environment of the process.
      cores: The number of cores that all processes may use; None: `usable_cores()`.
    """
    count = threads or max(1, (cores or usable_cores()) // workers)
    environment.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    environment.setdefault("TF_NUM_INTEROP_THREADS", str(count))
    return count


def _quotas(mount: Path, membership: Path) -> Iterator[float]:
    """Yields the CPU quotas of the process' cgroups, in cores."""
    for controller, names in _QUOTA_FILES:
        for directory in _cgroups(controller, mount, membership):
            # Quota and period are in one file, or in one each.
            try:
                text = " ".join((directory / name).read_text() for name in names)
                quota, period = text.split()[:2]
            except (OSError, ValueError):
                continue
            # Without a quota, v2 says "max" and v1 says -1.
            if quota.isdecimal() and period.isdecimal() and int(period):
                yield int(quota) / int(period)


def _cgroups(controller: str, mount: Path, membership: Path) -> Iterator[Path]:
    """Yields the directories of the process' cgroup and of all above it.

    Args:
      controller: The controller of v1; "": the tree of v2.
      mount: See `free_bytes`.
      membership: See `free_bytes`.
    """
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        lines = []
    # Lines have the form "4:cpu,cpuacct:/path", and "0::/path" for v2.
    path = "/"
    for line in lines:
        if len(line) == 3 and controller in line[1].split(","):
            path = line[2]
            break
    root = mount / controller
    directory = root / path.strip("/")
    # A path outside of what is mounted here: in a container, its own cgroup is the mount.
    if ".." in directory.parts:
        directory = root
    while directory != root:
        yield directory
        directory = directory.parent
    yield root


def _table(file: Path) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in file.read_text().splitlines())


def _number(text: str) -> int:
    return int(text.split(maxsplit=1)[0])

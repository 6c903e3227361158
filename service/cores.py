"""How many cores this process may really use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """Counts the cores that this process may use: affinity, cut by the CPU quota of its cgroups (v2 or v1); at least 1.

    A quota holds for a cgroup and all below it, so that the least one on the way up counts: of a unit of systemd, of
    its slice, of a container. Parts of a core count as one.

    Args:
      cgroups: where the file system of cgroups is mounted.
      own: tells the process' own, `0::/path` in v2.
    """
    cores = len(os.sched_getaffinity(0))
    quotas = [quota / period for quota, period in _quotas(cgroups, own) if period]
    return max(1, min([cores, *(-int(-cut // 1) for cut in quotas)]))


def _quotas(cgroups: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Tells every quota and its period, in microseconds."""
    for directory in _upwards(cgroups, own):
        try:
            quota, period = (directory / "cpu.max").read_text().split()[:2]
        except (OSError, ValueError):
            continue
        if quota.isdecimal() and period.isdecimal():  # "max": none
            yield int(quota), int(period)
    try:
        quota = (cgroups / "cpu" / "cpu.cfs_quota_us").read_text().strip()
        period = (cgroups / "cpu" / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return
    if quota.isdecimal() and period.isdecimal():  # "-1": none
        yield int(quota), int(period)


def _upwards(cgroups: Path, own: Path) -> Iterator[Path]:
    """The directories of the process' cgroup and of all above it. In a container its own is often the mount itself."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    directory = cgroups / path.strip("/")
    if ".." in directory.parts:  # outside of what is mounted here
        directory = cgroups
    while directory != cgroups and cgroups in directory.parents:
        yield directory
        directory = directory.parent
    yield cgroups

"""How many cores this process may really use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from service.cgroups import MOUNT, OWN, groups_of


def usable_cores(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Counts the cores that this process may use: affinity, cut by the CPU quota of its cgroups (v2 or v1); at least 1.

    A quota holds for a cgroup and all below it, so that the least one on the way up counts: of a unit of systemd, of
    its slice, of a container. Parts of a core count as one.

    Args:
      mount: where the file systems of cgroups are mounted.
      own: tells the process' own cgroup.
    """
    cores = len(os.sched_getaffinity(0))
    quotas = [quota / period for quota, period in _quotas(mount, own) if period]
    return max(1, min([cores, *(-int(-cut // 1) for cut in quotas)]))


def _quotas(mount: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Tells every quota and its period, in microseconds."""
    told: list[tuple[Path, tuple[str, ...]]] = [(directory, ("cpu.max",)) for directory in groups_of("", mount, own)]
    told += [(directory, ("cpu.cfs_quota_us", "cpu.cfs_period_us")) for directory in groups_of("cpu", mount, own)]
    for directory, files in told:
        try:
            quota, period = " ".join((directory / file).read_text() for file in files).split()[:2]
        except (OSError, ValueError):
            continue
        if quota.isdecimal() and period.isdecimal():  # "max", "-1": none
            yield int(quota), int(period)

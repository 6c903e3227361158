"""How much memory this process has, and may still take: what the machine has, cut by its cgroups."""

from __future__ import annotations

import mmap
from pathlib import Path

from service.cgroups import MOUNT, OWN, groups_of

_MEMINFO, _STATM = Path("/proc/meminfo"), Path("/proc/self/statm")
_FILES = (
    ("", "memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)
"""Of cgroups v2 and v1: controller, limit, what is used, and what of that are pages of files."""


def free_bytes(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Tells the memory that this process may still take, in bytes: the machine's, cut by the limits of its cgroups.

    Pages of files count as free. A cgroup whose tables are larger than its limit is always full of them, and they
    give way to whatever else is wanted.

    Args:
      mount: where the file systems of cgroups are mounted.
      own: tells the process' own cgroup.
    """
    free = _number(_lines(_MEMINFO)["MemAvailable:"]) << 10
    for controller, limit, used, files in _FILES:
        for directory in groups_of(controller, mount, own):
            try:
                most, now = ((directory / name).read_text().strip() for name in (limit, used))
                parts = _lines(directory / "memory.stat")
            except OSError:
                continue
            if most.isdecimal():  # "max": none
                given_back = sum(_number(parts.get(each, "0")) for each in files)
                free = min(free, max(0, int(most) - int(now) + given_back))
    return free


def resident_bytes() -> int:
    """Tells how much memory this process has, pages of mapped files among it, bytes."""
    return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE


def _lines(file: Path) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in file.read_text().splitlines())


def _number(text: str) -> int:
    return int(text.split(maxsplit=1)[0])

"""Where the limits stand that the kernel holds this process to: the directories of its cgroup and of all above it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def groups_of(controller: str, mount: Path = MOUNT, own: Path = OWN) -> Iterator[Path]:
    """Yields the directories in which a controller's files may stand, those of the process' own cgroup first.

    In a container its own is often the mount itself, whatever path it is told.

    Args:
      controller: of cgroups v1, as `cpu`; "": v2, which has one tree for all.
      mount: where the file systems of cgroups are mounted.
      own: tells the process' own, `0::/path` in v2.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        lines = []
    path = next((line[2] for line in lines if len(line) == 3 and controller in line[1].split(",")), "/")
    root = mount / controller
    directory = root / path.strip("/")
    if ".." in directory.parts:  # outside of what is mounted here
        directory = root
    while directory != root:
        yield directory
        directory = directory.parent
    yield root

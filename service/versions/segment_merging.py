"""The process that writes segments with their deltas as whole files, at the lowest priority.

    python -m service.versions.segment_merging BUNDLE PARENT BYTES_PER_S

It reads the names of the segments' files from its input, one a line, and ends with the process
`PARENT`. What it prints on stderr is why it failed.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from bundle.errors import BundleError, DigestMismatch
from bundle.storage import catalog, retention
from bundle.tables.whole_segments import remove_others, unmerged_segments, write_whole

EXIT_DAMAGED = 5
"""A segment or a delta is damaged."""
EXIT_DISK = 6
"""The disk is full, broken or read-only, or the version is gone."""
RESERVE_BYTES = 1 << 30
"""What stays free on the disk, in bytes; of a small disk, a twentieth."""
_RESERVE_SHARE = 20
_SLEEP_S_MAX = 1.0
"""Time between two looks at whether the parent lives."""


def merge(
    bundle: Path,
    segment_files: Collection[str],
    pause: Callable[[int], object],
    reserve_bytes: int | None = None,
) -> None:
    """Writes the whole files of some segments that have none.

    Args:
      bundle: The directory of a committed version.
      segment_files: The files of the segments.
      pause: A function that is called after each piece, with its number of bytes.
      reserve_bytes: What stays free on the disk, in bytes; None: RESERVE_BYTES.

    Raises:
      BundleError: A file is damaged, or the version is gone.
      OSError: The disk is full, broken or read-only; nothing unfinished stays.
    """
    hold_descriptor = retention.hold(bundle)
    try:
        manifest = catalog.read_manifest(bundle)
        remove_others(bundle, manifest)
        for table in manifest.tables.values():
            for unmerged in unmerged_segments(table):
                if unmerged.segment.file in segment_files:
                    _check_space(bundle, unmerged.bytes, reserve_bytes)
                    write_whole(bundle, unmerged, pause)
    finally:
        if hold_descriptor is not None:
            os.close(hold_descriptor)


def main() -> int:
    """Runs the process; returns its exit code."""
    bundle, parent, bytes_per_s = sys.argv[1:]
    os.nice(19)
    # Linux then lets others read and write the disk first, too.
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    def pause(size: int) -> None:
        end = time.monotonic() + size / int(bytes_per_s)
        while True:
            if os.getppid() != int(parent):
                sys.exit(0)
            rest_s = end - time.monotonic()
            if rest_s <= 0:
                return
            time.sleep(min(rest_s, _SLEEP_S_MAX))

    try:
        merge(Path(bundle), set(sys.stdin.read().splitlines()), pause)
    except DigestMismatch as problem:
        sys.stderr.write(str(problem))
        return EXIT_DAMAGED
    except (BundleError, OSError) as problem:
        sys.stderr.write(str(problem))
        return EXIT_DISK
    return 0


def _check_space(bundle: Path, size: int, reserve_bytes: int | None) -> None:
    """Checks that a file fits the disk.

    Raises:
      OSError: It does not.
    """
    disk = shutil.disk_usage(bundle)
    if reserve_bytes is None:
        reserve_bytes = min(RESERVE_BYTES, disk.total // _RESERVE_SHARE)
    if disk.free < size + reserve_bytes:
        problem = f"{disk.free} bytes are free, {size} and {reserve_bytes} in reserve are needed"
        raise OSError(errno.ENOSPC, problem, str(bundle))


if __name__ == "__main__":
    sys.exit(main())

"""Which versions were refused, and when one is worth another try: its files changed, or its machine was to blame."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

from service.generations.loader import NoMemory

RETRY_S = 60.0
"""Pause before the next try where the machine was to blame: memory, permission, too many open files, a disk."""
FILES_MAX = 100_000
"""Files of one version that are looked at for changes."""

Files = int
"""What tells one state of a version's files from another."""


@dataclass
class Refusal:
    """One refused version, as it lay there."""

    manifest: tuple[int, int, int]
    files: Files
    problem: str
    again_at: float
    """On the clock of `time.monotonic()`; infinity: only another state of the files can help."""
    seen: Files

    def worth_another_try(self, manifest: tuple[int, int, int], directory: Path) -> bool:
        """Tells whether to load the version again.

        A changed manifest is tried at once. Other files may still be on their way, so a change of theirs is tried once
        two looks in a row have found the same: a copy that brings the manifest first is refused once, then served.
        """
        if manifest != self.manifest or time.monotonic() >= self.again_at:
            return True
        before, self.seen = self.seen, files_of(directory)
        return self.seen != self.files and self.seen == before


def refusal_of(manifest: tuple[int, int, int], files: Files, problem: Exception) -> Refusal:
    """Returns the refusal of a version whose files were `files` before it was tried."""
    again_at = time.monotonic() + RETRY_S if machine_to_blame(problem) else math.inf
    wordless = "memory ran out" if isinstance(problem, MemoryError) else type(problem).__name__
    return Refusal(manifest, files, str(problem) or wordless, again_at, files)


def machine_to_blame(problem: BaseException | None) -> bool:
    """Tells whether the same files may load another time."""
    while problem is not None:
        if isinstance(problem, OSError | MemoryError | NoMemory):
            return True
        problem = problem.__cause__
    return False


def files_of(directory: Path) -> Files:
    """Looks at the names, sizes and times of a version's files; reads none."""
    found: list[tuple[str, int, int, int]] = []
    for place, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(place, name)
            try:
                status = os.stat(path)
            except OSError:
                continue
            found.append((path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        if len(found) > FILES_MAX:
            break
    return hash(tuple(sorted(found)))

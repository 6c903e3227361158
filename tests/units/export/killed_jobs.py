"""Jobs that are killed and begun again: what they had finished, and what was done twice."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from bundle.storage import journal

KILLED = (-signal.SIGKILL, -signal.SIGALRM)


def noted_steps(parent: Path) -> dict[str, journal.Finished]:
    """Returns the steps that a killed run of version 1 noted as finished.

    Args:
      parent: The directory of the model.
    """
    noted = parent / ".staging-1.journal"
    if not noted.exists():
        return {}
    copied = parent.parent.parent / "journal"
    shutil.copy(noted, copied)  # reading it truncates a torn tail
    return journal.read(copied)


def journaled(parent: Path) -> Mapping[str, tuple[int, int]]:
    """Returns the files that a killed run noted as finished, each with what changes when it is
    written again.
    """
    staged = parent / ".staging-1"
    steps = noted_steps(parent).values()
    return {file.path: _seen(staged / file.path) for step in steps for file in step.files}


def rewritten(finished: Mapping[str, tuple[int, int]], directory: Path) -> set[str]:
    """Returns the files of `journaled` that were written again, where they are now."""
    return {path for path, seen in finished.items() if _seen(directory / path) != seen}


def _seen(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns

"""Versions that could not be loaded, and when to try again: their files changed, or the machine was
at fault.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import time
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import (
    BundleError,
    ChangesDamaged,
    ChangesLocked,
    ChangesReplaced,
    ChangesUnavailable,
    SignatureRejected,
)
from service.versions.rejections import (
    InsufficientMemory,
    KeysUnusable,
    LoadRejected,
    ShardsMissing,
)

RETRY_S = 60.0
"""Time until the next attempt where the machine was at fault: memory, permissions, open files, a
disk, the keys of signatures. Shorter waits repeat an expensive load in vain; longer ones leave a
mended machine unused.
"""
SHARDS_RETRY_S = 1.0
"""Time until the next attempt where shards were missing, which load the version at the same time,
or another process was writing the changes of the model.
"""
_OF_THE_MACHINE = (
    OSError,
    MemoryError,
    InsufficientMemory,
    ChangesDamaged,
    ChangesReplaced,
    ChangesUnavailable,
)
"""Errors that are no fault of a version's files."""
FILES_MAX = 100_000
"""Maximum number of files of one version that are inspected for changes."""


@dataclass
class LoadFailure:
    """One version that could not be loaded.

    Attributes:
      files: The fingerprint of its files before the attempt.
      problem: Why it could not be loaded.
      retry_at: The time of the next attempt by `time.monotonic()`; infinite: only changed files can
        help.
      seen: The fingerprint when the files were last inspected.
      starved: Whether memory was missing, which another version may give up.
    """

    files: str
    problem: str
    retry_at: float
    seen: str = ""
    starved: bool = False

    @classmethod
    def of(cls, files: str, problem: Exception) -> LoadFailure:
        """Returns the failure of an attempt. The problem is shown to clients, so that an unexpected
        one is described without its text.
        """
        # Errors of bundles chain the error of the system that caused them.
        causes = problem, problem.__cause__
        machine_at_fault = any(isinstance(cause, _OF_THE_MACHINE) for cause in causes)
        if isinstance(problem, MemoryError):
            reason = "memory ran out"
        elif is_expected(problem):
            reason = str(problem)
        else:
            reason = f"unexpected {type(problem).__name__} while loading; the log has it"

        # Damaged files stay damaged: only another copy of them is worth an attempt.
        retry_s = math.inf
        if isinstance(problem, ShardsMissing | ChangesLocked):
            retry_s = SHARDS_RETRY_S
        elif machine_at_fault or _is_without_key(problem):
            retry_s = RETRY_S
        starved = isinstance(problem, InsufficientMemory)
        return cls(files, reason, time.monotonic() + retry_s, files, starved)

    def should_retry(self, directory: Path) -> bool:
        """Returns whether to load the version again.

        Files that changed may still be on their way: they are tried once two inspections in a row
        have found the same. So a copy that brings the manifest first fails once, then loads.
        """
        if time.monotonic() >= self.retry_at:
            return True
        before = self.seen
        self.seen = fingerprint(directory)
        return self.seen != self.files and self.seen == before


def _is_without_key(problem: Exception) -> bool:
    """Returns whether no key verifies the signature of a version. Keys are replaced, and attempts
    cost little: files are read only if the signature counts.
    """
    is_signature_at_fault = isinstance(problem, SignatureRejected) and not problem.path
    return is_signature_at_fault or isinstance(problem, KeysUnusable)


def is_expected(problem: Exception) -> bool:
    """Returns whether a load may raise this; anything else is a bug, here or in a library."""
    return isinstance(problem, BundleError | LoadRejected | OSError | MemoryError)


def fingerprint(directory: Path) -> str:
    """Returns a digest of the names, sizes and times of a version's files, the same in every
    process; reads none of them.
    """
    entries = list[tuple[str, int, int, int]]()
    with contextlib.suppress(OSError):  # a file vanished: the next fingerprint differs
        for path in itertools.islice(directory.rglob("*"), FILES_MAX):
            status = path.stat()
            entries.append((str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return hashlib.sha256(repr(sorted(entries)).encode()).hexdigest()

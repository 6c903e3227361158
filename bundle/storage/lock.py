"""A lock file that one process holds; the kernel releases it if the process dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from bundle.errors import VersionBusy


def acquire(path: Path, what: str) -> int:
    """Locks a file, which is created if it does not exist; returns its descriptor.

    Args:
      path: The lock file.
      what: What the lock protects, for the error message.

    Raises:
      VersionBusy: Another process holds the lock.
      OSError: The file cannot be written, or its file system has no locks.
    """
    # Its last holder may remove the file between the open and the lock here: the locked file must
    # be the one that has the name.
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            os.close(descriptor)
            raise VersionBusy(
                f"{what} is being written by another run; wait for it or choose another version"
            ) from problem
        except OSError:
            os.close(descriptor)
            raise
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)


def release(path: Path, descriptor: int) -> None:
    """Removes a lock file, then lets go of the lock."""
    path.unlink(missing_ok=True)
    os.close(descriptor)

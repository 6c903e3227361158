"""Locks of the kernel by which one process of a host does what others would repeat."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bundle.storage import files


@contextmanager
def alone(path: Path) -> Iterator[int | None]:
    """Yields a descriptor of the lock that one process of the host holds; None: another one does.

    Raises:
      OSError: The file of the lock cannot be written.
    """
    # The kernel releases the lock when its holder dies: nothing has to be cleaned up.
    descriptor = files.open_private(path, os.O_RDWR)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield descriptor
    finally:
        os.close(descriptor)

"""Locks of threads that are waited for until a deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from bundle.errors import ChangesLocked


class ThreadLock(Protocol):
    """A lock of the module `threading`."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:
        """Waits for the lock; returns whether it was acquired."""

    def release(self) -> None:
        """Releases the lock."""


@contextmanager
def held(lock: ThreadLock, deadline: float, problem: str) -> Iterator[None]:
    """Holds a lock of this process, which is waited for until a monotonic time.

    Args:
      lock: The lock.
      deadline: The time; infinite: it is waited for as long as it takes.
      problem: What the error says.

    Raises:
      ChangesLocked: Another thread has held the lock until the deadline.
    """
    timeout_s = -1.0
    if deadline < math.inf:
        timeout_s = max(0.0, deadline - time.monotonic())
    if not lock.acquire(timeout=timeout_s):
        raise ChangesLocked(problem)
    try:
        yield
    finally:
        lock.release()

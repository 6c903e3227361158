"""Lets this process have too many open files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

_STANDARD = 3
"""The number of files that every process has: the numbers below it are never free."""


@contextmanager
def too_many_open_files(free: int = 0) -> Iterator[None]:
    """Lets this process open some files, and no more, until it ends; what is open stays."""
    # New files get the lowest numbers that are free, and none from the limit on.
    numbers = [_STANDARD]
    if free:
        numbers = [os.dup(0) for _ in range(free + 1)]
        for number in numbers:
            os.close(number)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (numbers[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

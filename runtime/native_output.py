"""Keeps what native libraries write to standard error apart from what this program writes there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

STDERR = 2


@contextmanager
def silenced() -> Iterator[None]:
    """Drops what is written to file descriptor 2 meanwhile, by any thread: for moments only. Copies
    of the descriptor are not affected.
    """
    try:
        stderr_copy = os.dup(STDERR)
    except OSError:  # closed: nothing can be written to it
        yield
        return
    devnull = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(devnull, STDERR)
    os.close(devnull)
    try:
        yield
    finally:
        os.dup2(stderr_copy, STDERR)
        os.close(stderr_copy)

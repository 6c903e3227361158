"""Keeps what native libraries write to standard error apart from what this program writes there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

STDERR = 2


def own_stderr() -> TextIO:
    """Returns a text stream to where stderr goes now; `silenced` does not affect it."""
    sys.stderr.flush()
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or a stream in memory
        return sys.stderr
    return os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace")


@contextmanager
def silenced() -> Iterator[None]:
    """Drops what is written to file descriptor 2 meanwhile, by any thread: for moments only.

    Streams of `own_stderr` are not affected.
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

"""What native libraries write to the process' standard error, apart from what this program says there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

STDERR = 2


def open_standard_streams() -> None:
    """Opens what a caller left closed of file descriptors 0 to 2, on nothing.

    The next file or socket would get its number otherwise, and all that libraries print, and `silenced` what it is.
    """
    for descriptor in (0, 1, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", closefd=False)


def own_stderr() -> TextIO:
    """Returns a text stream to where stderr goes now, which stays there when file descriptor 2 is turned elsewhere."""
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
        kept = os.dup(STDERR)
    except OSError:  # closed: nothing can be written to it
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, STDERR)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)

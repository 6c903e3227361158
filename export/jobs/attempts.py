"""One try of a task, wherever it runs, and which of its failures may be tried again."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

from export.errors import ExportError

ATTEMPTS_MAX = 4
"""How often a task is begun before what ends it ends the job."""

_PASSING = {
    errno.EIO,
    errno.EREMOTEIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}
"""Failures of storage that another try, or another machine, may not meet. A full or read-only disk is none of them."""

Task = TypeVar("Task")
Result = TypeVar("Result")


class StorageFailed(Exception):
    """Storage failed in a way that may pass; holds the error that tells it, should it not."""

    def __init__(self, told: ExportError) -> None:
        super().__init__(told)
        self.told = told


def attempt(function: Callable[[Task], Result], task: Task) -> Result:
    """Runs a task once.

    Raises:
      StorageFailed: another try may do better.
      ExportError: no try will.
    """
    try:
        return function(task)
    except ExportError as problem:
        cause = problem.__cause__
        if isinstance(cause, OSError) and (cause.errno in _PASSING or isinstance(cause, TimeoutError)):
            raise StorageFailed(problem) from problem
        raise

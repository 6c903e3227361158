"""The attempts of one task, wherever it runs, and the failures after which it is tried again."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from typing import TypeVar

from export.errors import ExportError

PAUSES_S = (1.0, 4.0, 16.0)
"""The pauses between attempts. Requests to stores are repeated for longer before they fail."""
ATTEMPTS_MAX = 1 + len(PAUSES_S)
"""The maximum number of attempts of a task: a failure of the last one ends the job."""

_TRANSIENT_ERRORS = {
    errno.EIO,
    errno.EREMOTEIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}
"""Failures of storage that may pass, unlike those of a full or read-only disk."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def attempt(function: Callable[[Task], Result], task: Task) -> Result:
    """Runs a task, again where its storage fails in a way that may pass.

    Raises:
      ExportError: The failure is not one that may pass, or the last attempt failed, too.
    """
    for pause_s in PAUSES_S:
        try:
            return function(task)
        except ExportError as problem:
            if not _is_transient(problem.__cause__):
                raise
        # Random, so that workers that failed together do not come back together.
        time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
    return function(task)


def _is_transient(cause: BaseException | None) -> bool:
    return isinstance(cause, OSError) and (
        cause.errno in _TRANSIENT_ERRORS or isinstance(cause, TimeoutError)
    )

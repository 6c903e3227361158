"""One task, wherever it runs, and which of its failures are tried again."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from typing import TypeVar

from export.errors import ExportError

PAUSES_S = (1.0, 4.0, 16.0)
"""Between one try and the next. Requests to stores are repeated for longer before they fail."""
ATTEMPTS_MAX = 1 + len(PAUSES_S)
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
"""Failures of storage that another try may not meet. A full or read-only disk is none of them."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def attempt(function: Callable[[Task], Result], task: Task) -> Result:
    """Runs a task, again where its storage fails in a way that may pass.

    Raises:
      ExportError: no further try is worth it, or the last one failed too.
    """
    for pause_s in PAUSES_S:
        try:
            return function(task)
        except ExportError as problem:
            if not _may_pass(problem.__cause__):
                raise
        # Random, so that workers that failed together do not come back together.
        time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
    return function(task)


def _may_pass(cause: BaseException | None) -> bool:
    return isinstance(cause, OSError) and (
        cause.errno in _PASSING or isinstance(cause, TimeoutError)
    )

"""What a failed call reports to its client and to the log. Nothing else decides which text leaves
the process.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from service.errors import INTERNAL_MESSAGE, Code, Overloaded, ServiceError
from service.observability.logging import fields

MESSAGE_CHARS_MAX = 1000
"""gRPC carries the message in a header, and headers are limited in size."""
_LEVELS = {
    Code.INTERNAL: logging.ERROR,
    Code.DATA_LOSS: logging.ERROR,
    Code.OVERLOADED: logging.DEBUG,
}


@dataclass(frozen=True)
class Failure:
    """A failed call as the client sees it; each transport writes it in its own form."""

    code: Code
    message: str
    request_id: str
    retry_after_s: float | None = None


def failure_of(problem: BaseException, request_id: str) -> Failure:
    """Returns what the client sees.

    The message of a ServiceError is safe by contract. Anything else is a bug and its text stays in
    the process, as does that of `Internal`, which wraps a bug.
    """
    if isinstance(problem, asyncio.CancelledError):
        return Failure(Code.CANCELLED, "the client cancelled the call", request_id)
    if not isinstance(problem, ServiceError) or problem.code is Code.INTERNAL:
        return Failure(Code.INTERNAL, INTERNAL_MESSAGE, request_id)
    retry_after_s = problem.retry_after_s if isinstance(problem, Overloaded) else None
    return Failure(problem.code, str(problem)[:MESSAGE_CHARS_MAX], request_id, retry_after_s)


def log_failure(
    logger: logging.Logger, call: str, failure: Failure, problem: BaseException
) -> None:
    """Writes one line for a failed call.

    The message is left out, since it may repeat what the client sent; a bug is logged with its
    traceback. Rejections for overload can be many, so they are logged at debug level; metrics count
    them.
    """
    level = _LEVELS.get(failure.code, logging.INFO)
    traceback = problem if failure.code is Code.INTERNAL else None
    extra = fields(call=call, code=failure.code.value, request_id=failure.request_id)
    logger.log(level, "request_failed", extra=extra, exc_info=traceback)

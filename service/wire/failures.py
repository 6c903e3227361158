"""An exception -> what a caller is told and what the log is told. Nothing else decides what leaves the process."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from service.errors import INTERNAL_SENTENCE, Code, Overloaded, ServiceError
from service.logs import fields

MESSAGE_CHARS_MAX = 1000
"""Of a sentence, since gRPC carries it in headers, which have limits of their own."""


@dataclass(frozen=True)
class Failure:
    """What a caller is told of a failed call; each door says it in its own envelope."""

    code: Code
    message: str
    request_id: str
    retry_after_s: float | None = None


def failure_of(problem: BaseException, request_id: str) -> Failure:
    """Returns what the caller is told.

    A ServiceError's sentence is safe by contract. Anything else is a bug: its text stays here, and so does that of
    `Internal`, which wraps one.
    """
    if isinstance(problem, asyncio.CancelledError):
        return Failure(Code.CANCELLED, "the caller is gone", request_id)
    if not isinstance(problem, ServiceError) or problem.code is Code.INTERNAL:
        return Failure(Code.INTERNAL, INTERNAL_SENTENCE, request_id)
    retry_after_s = problem.retry_after_s if isinstance(problem, Overloaded) else None
    return Failure(problem.code, str(problem)[:MESSAGE_CHARS_MAX], request_id, retry_after_s)


def log_failure(logger: logging.Logger, call: str, failure: Failure, problem: BaseException) -> None:
    """Writes one line for a failed call.

    The sentence stays out of it, since it may repeat what the caller sent; a bug comes with its traceback. Calls that
    are refused for an overload are many: the engine tells of all of them together.
    """
    extra = fields(call=call, code=failure.code.value, request_id=failure.request_id)
    if failure.code is Code.INTERNAL:
        logger.error("call_failed", extra=extra, exc_info=problem)
    elif failure.code is Code.DATA_LOSS:
        logger.error("call_failed", extra=extra)
    elif failure.code is Code.OVERLOADED:
        logger.debug("call_failed", extra=extra)
    else:
        logger.info("call_failed", extra=extra)

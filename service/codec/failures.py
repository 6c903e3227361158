"""What a failed call reports to its client and to the log. Nothing else decides which text leaves
the process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from dataclasses import dataclass
from typing import Any

from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import (
    INTERNAL_MESSAGE,
    Code,
    Internal,
    Overloaded,
    RowNotFinite,
    ServiceError,
)
from service.observability.logging import PRINCIPAL, fields, limited

MESSAGE_CHARS_MAX = 1000
"""gRPC carries the message in a header, and headers are limited in size."""
_REASON_CHARS_MAX = 200
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)""")
_PATH = re.compile(
    r"\b(features|candidate_features|context|filter|heads)\.\S"
    r".*?(?=:? (?:is|has|holds|mixes|are)\b|:|$)"
)
"""A name that the client chose, up to the verb of the sentence."""
_NUMBER = re.compile(r"(?<![A-Za-z_0-9])-?\d[\d.,]*(?:e[+-]?\d+)?")
"""Not the digits of a name, such as float32."""
_ENUM_PREFIX = "ERROR_CODE_"
_LEVELS = {
    Code.DATA_LOSS: logging.ERROR,
    Code.INTERNAL: logging.ERROR,
    Code.OVERLOADED: logging.DEBUG,
}


@dataclass(frozen=True)
class Failure:
    """A failed call as the client sees it; each transport writes it in its own form."""

    code: Code
    message: str
    request_id: str
    retry_after_s: int | None = None


def failure_of(problem: BaseException, request_id: str) -> Failure:
    """Returns what the client sees.

    The message of a ServiceError is safe by contract. Anything else is a bug and its text stays in
    the process, as does that of `Internal`, which wraps a bug.
    """
    if isinstance(problem, asyncio.CancelledError):
        return Failure(Code.CANCELLED, "the client cancelled the call", request_id)
    if not isinstance(problem, ServiceError) or isinstance(problem, Internal):
        return Failure(Code.INTERNAL, INTERNAL_MESSAGE, request_id)
    retry_after_s = None
    if isinstance(problem, Overloaded):
        # Whole seconds, as HTTP has them: both transports ask for the same wait.
        retry_after_s = max(1, math.ceil(problem.retry_after_s))
    return Failure(problem.code, str(problem)[:MESSAGE_CHARS_MAX], request_id, retry_after_s)


def details_message(failure: Failure) -> pb.ErrorDetails:
    """Returns a failure as the message that both transports carry."""
    code = pb.ErrorCode.Value(_ENUM_PREFIX + failure.code.value)
    return pb.ErrorDetails(code=code, message=failure.message, request_id=failure.request_id)


def details_value(failure: Failure) -> dict[str, Any]:
    """Returns a failure as the JSON value of a body."""
    details = {
        "code": failure.code.value,
        "message": failure.message,
        "request_id": failure.request_id,
    }
    return {"error": details}


def code_of(details: pb.ErrorDetails) -> Code | None:
    """Returns the code in details; None if there is none, or one of another release."""
    names = pb.ErrorCode.DESCRIPTOR.values_by_number
    name = names[details.code].name if details.code in names else ""
    return Code.__members__.get(name.removeprefix(_ENUM_PREFIX))


def log_failure(
    logger: logging.Logger,
    call: str,
    failure: Failure,
    problem: BaseException,
    model: str = "",
) -> None:
    """Writes one line for a failed call; a line with its traceback for each bug.

    One client can fail many times per second, so that of all failures of a call with the same code,
    model and principal one line per second is written. Rejections for overload can be many more:
    they are logged at debug level. Metrics count them all.

    Args:
      model: Its name if it exists; empty if it does not, or if it was not read.
    """
    extra = fields(
        call=call,
        code=failure.code.value,
        model=model,
        reason=reason_of(problem),
        request_id=failure.request_id,
    )
    if failure.code is Code.INTERNAL and not isinstance(problem, RowNotFinite):
        # The client was told that the log has the details under the request id.
        logger.error("request_failed", extra=extra, exc_info=problem)
        return
    level = _LEVELS.get(failure.code, logging.INFO)
    extra = limited(extra, call, failure.code, model, PRINCIPAL.get())
    logger.log(level, "request_failed", extra=extra)


def reason_of(problem: BaseException) -> str:
    """Returns why a call failed, without the ids, values and names that the client sent.

    Messages repeat what a client sent so that its programmer can find it. In the log it could be
    anybody's data. Quoted text, numbers and the names of features become `…`.
    """
    if isinstance(problem, Overloaded):
        return problem.reason
    if isinstance(problem, RowNotFinite):
        return f"a row of table {problem.table} holds NaN or an infinity"
    if not isinstance(problem, ServiceError) or isinstance(problem, Internal):
        return type(problem).__name__
    reason = _QUOTED.sub("…", str(problem)[:MESSAGE_CHARS_MAX])
    reason = _PATH.sub(r"\1.…", reason)
    reason = _NUMBER.sub("…", reason)
    return reason[:_REASON_CHARS_MAX]

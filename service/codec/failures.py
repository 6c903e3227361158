"""What a failed call reports to its client and to the log. Nothing else decides which text leaves
the process.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import Any

from service.codec.metadata import TIMEOUT_MS
from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import (
    INTERNAL_MESSAGE,
    Code,
    FieldViolation,
    Internal,
    Overloaded,
    RowNotFinite,
    ServiceError,
    without_host,
)
from service.observability.logging import PRINCIPAL, fields, limited

MESSAGE_BYTES_MAX = 1000
"""Maximum size of a message. gRPC carries the message, and the details with the same texts, in
headers. Libraries accept 8 KiB of headers, where a byte of the message can take three.
"""
_FIELD_BYTES_MAX = 128
_VALUE_BYTES_MAX = 128
_EXPECTED_BYTES_MAX = 256
_REASON_CHARS_MAX = 200
"""Maximum length of the reason in the log."""
_ENUM_PREFIX = "ERROR_CODE_"
_LEVELS = {
    Code.DATA_LOSS: logging.ERROR,
    Code.INTERNAL: logging.ERROR,
    Code.OVERLOADED: logging.DEBUG,
}
"""The level of the log by code; info for all other codes."""
_CLIENT_AT_FAULT = frozenset(
    {Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.PERMISSION_DENIED, Code.TOO_LARGE}
)
"""The codes whose messages repeat what a client sent."""
_MACHINE_AT_FAULT = frozenset({Code.DATA_LOSS, Code.DEADLINE, Code.NOT_READY})
"""The codes whose messages may name files and processes of the machine."""
_FIELD_NAMES = frozenset(
    [
        field.name
        for message in pb.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    ]
    + ["body", "call", "content-encoding", "content-type", "corpus", "host", "items", "message"]
    + ["method", "path", "request", "requests", "response", "store", "table", TIMEOUT_MS]
    # Fields of the protocols of other servers.
    + ["examples", "instances", "metadata_field", "model_spec", "output_filter", "parameters"]
    + ["raw_input_contents", "signature_name"]
)
"""The names of fields that the log shows; others may be names that a client chose."""


@dataclass(frozen=True)
class Failure:
    """A failed call as the client sees it; each transport writes it in its own form.

    Attributes:
      code: The code of the error.
      message: A sentence for a person.
      request_id: The id under which the log has the details.
      retry_after_s: The time after which the client may try again; None: it may not help.
      violations: What is wrong with which fields.
    """

    code: Code
    message: str
    request_id: str
    retry_after_s: int | None = None
    violations: tuple[FieldViolation, ...] = ()


def failure_of(problem: BaseException, request_id: str, *, is_operator: bool = False) -> Failure:
    """Returns what the client sees.

    The message of a ServiceError is safe by contract, but for paths of the machine. Anything else
    is a bug and its text stays in the process, as does that of `Internal`, which wraps a bug.

    Args:
      problem: The exception.
      request_id: The id of the request.
      is_operator: Whether the client operates the service, and may see the paths.
    """
    if isinstance(problem, asyncio.CancelledError):
        return Failure(Code.CANCELLED, "the client cancelled the call", request_id)
    if not isinstance(problem, ServiceError) or isinstance(problem, Internal):
        return Failure(Code.INTERNAL, INTERNAL_MESSAGE, request_id)
    retry_after_s = None
    if isinstance(problem, Overloaded):
        # Whole seconds, as HTTP has them, so that both transports give the same time.
        retry_after_s = max(1, math.ceil(problem.retry_after_s))
    violations = tuple(map(_shortened, problem.violations))
    text = str(problem)
    if not is_operator and problem.code in _MACHINE_AT_FAULT:
        text = without_host(text)
    message = _cut(text, MESSAGE_BYTES_MAX)
    return Failure(problem.code, message, request_id, retry_after_s, violations)


def _shortened(violation: FieldViolation) -> FieldViolation:
    return FieldViolation(
        _cut(violation.field, _FIELD_BYTES_MAX),
        _cut(violation.value, _VALUE_BYTES_MAX),
        _cut(violation.expected, _EXPECTED_BYTES_MAX),
    )


def _cut(text: str, bytes_max: int) -> str:
    """Returns the beginning of a text that fits; surrogates have no bytes."""
    # A character has at least one byte: without the first cut, a text of megabytes would be encoded
    # for a few hundred bytes.
    return text[:bytes_max].encode(errors="ignore")[:bytes_max].decode(errors="ignore")


def details_message(failure: Failure) -> pb.ErrorDetails:
    """Returns a failure as the message that both transports carry."""
    # The enumeration of the contract has the names of `Code`, with a prefix.
    code = pb.ErrorCode.Value(_ENUM_PREFIX + failure.code.value)
    return pb.ErrorDetails(
        code=code,
        message=failure.message,
        request_id=failure.request_id,
        violations=[pb.FieldViolation(**vars(violation)) for violation in failure.violations],
    )


def details_value(failure: Failure) -> dict[str, Any]:
    """Returns a failure as the JSON value of a body, whose last text is the request id."""
    details: dict[str, Any] = {"code": failure.code.value, "message": failure.message}
    if failure.violations:
        details["violations"] = [vars(violation) for violation in failure.violations]
    if failure.retry_after_s is not None:
        details["retry_after_s"] = failure.retry_after_s
    details["request_id"] = failure.request_id
    return {"error": details}


def code_of(details: pb.ErrorDetails) -> Code | None:
    """Returns the code in details; None if there is none, or one of another release."""
    value = pb.ErrorCode.DESCRIPTOR.values_by_number.get(details.code)
    if value is None:
        return None
    return Code.__members__.get(value.name.removeprefix(_ENUM_PREFIX))


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
      logger: The log of the transport.
      call: The name of the call.
      failure: The failure as the client sees it.
      problem: The exception.
      model: The name of the model if it exists; empty if it does not, or if it was not read.
    """
    extra = fields(
        call=call,
        code=failure.code.value,
        model=model,
        reason=reason_of(problem),
        request_id=failure.request_id,
    )
    if failure.code is Code.INTERNAL and not isinstance(problem, RowNotFinite):
        # The response says that the log has the details under the request id: no line is left out.
        logger.error("request_failed", extra=extra, exc_info=problem)
        return
    # A client that repeats a wrong request must not fill the log up.
    level = _LEVELS.get(failure.code, logging.INFO)
    extra = limited(extra, call, failure.code, model, PRINCIPAL.get())
    logger.log(level, "request_failed", extra=extra)


def reason_of(problem: BaseException) -> str:
    """Returns why a call failed, without the ids, values and names that the client sent.

    Messages repeat what a client sent so that its programmer can find it. In the log it could be
    anybody's data. So the log has which field was wrong, and what was expected of it.
    """
    if isinstance(problem, Overloaded):
        return problem.reason
    if isinstance(problem, RowNotFinite):
        return f"a row of table {problem.table} holds NaN or an infinity"
    if not isinstance(problem, ServiceError) or isinstance(problem, Internal):
        return type(problem).__name__
    # Without violations, the message is the only description; it may repeat what a client sent if
    # the client is at fault.
    if not problem.violations:
        if problem.code in _CLIENT_AT_FAULT:
            return type(problem).__name__
        return str(problem)[:_REASON_CHARS_MAX]
    reasons = [
        f"{_known_path(violation.field)}: {violation.expected} was expected"
        for violation in problem.violations
    ]
    return "; ".join(reasons)[:_REASON_CHARS_MAX]


def _known_path(field: str) -> str:
    """Returns the path of a field with `…` for each name that is not one of the API."""
    names = []
    for part in field.split("."):
        name = part.partition("[")[0]
        if name not in _FIELD_NAMES:
            name = "…"
        names.append(name)
    return ".".join(names)

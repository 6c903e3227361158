"""Failures as gRPC reports them: status, message, and trailing metadata with details."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import NoReturn

import grpc
from google.protobuf import any as any_message
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc.aio import ServicerContext

from service.codec.failures import Failure, details_message
from service.codec.metadata import REQUEST_ID
from service.errors import TRANSPORT_STATUS, Code, FieldViolation

RETRY_AFTER = "retry-after"
"""Trailing metadata: whole seconds, as over HTTP."""
RETRY_PUSHBACK = "grpc-retry-pushback-ms"
"""Trailing metadata: `retry-after` in milliseconds. The retry policies of gRPC libraries wait for
this time.
Source: gRFC A6, https://github.com/grpc/proposal/blob/master/A6-client-retries.md, pushback.
"""
STATUS_DETAILS = "grpc-status-details-bin"
"""Trailing metadata: google.rpc.Status with ErrorDetails, ErrorInfo, BadRequest where fields are at
fault, and RetryInfo where a retry may help.
"""
ERROR_DOMAIN = "rowcast"
"""The domain of ErrorInfo, whose reasons are the codes."""

_REMEMBERED = 64
"""Number of failures whose encoded details are remembered."""

Metadata = tuple[tuple[str, str | bytes], ...]


def status_code_of(failure: Failure) -> grpc.StatusCode:
    """Returns the gRPC status of a failure."""
    return grpc.StatusCode[TRANSPORT_STATUS[failure.code].grpc]


def trailing_metadata_of(failure: Failure) -> Metadata:
    """Returns the request id, the details, and when to retry."""
    if failure.code is Code.OVERLOADED:
        status = _remembered_status(failure)
    else:
        status = _status(failure)
    metadata: Metadata = ((REQUEST_ID, failure.request_id),)
    if failure.retry_after_s is not None:
        metadata += ((RETRY_AFTER, str(failure.retry_after_s)),)
        metadata += ((RETRY_PUSHBACK, str(failure.retry_after_s * 1000)),)
    return (*metadata, (STATUS_DETAILS, status))


def _remembered_status(failure: Failure) -> bytes:
    """Returns what `_status` returns, for a failure whose message has nothing that a client sent.

    An overload rejects thousands of calls per second, whose ids alone differ.
    """
    request_id = failure.request_id.encode()
    # Of the same length, since protobuf writes lengths before texts.
    placeholder = "\0" * len(request_id)
    status = _status_of_overload(replace(failure, request_id=placeholder))
    return status.replace(placeholder.encode(), request_id)


def _status(failure: Failure) -> bytes:
    """Returns the details of a failure."""
    error_info = ErrorInfo(
        reason=failure.code.value,
        domain=ERROR_DOMAIN,
        metadata={"request_id": failure.request_id},
    )
    details: list[Message] = [details_message(failure), error_info]
    if failure.violations:
        violations = [_bad_field(violation, failure.code) for violation in failure.violations]
        details.append(BadRequest(field_violations=violations))
    if failure.retry_after_s is not None:
        details.append(RetryInfo(retry_delay=timedelta(seconds=failure.retry_after_s)))
    packed = [any_message.pack(detail) for detail in details]
    status = Status(code=status_code_of(failure).value[0], message=failure.message, details=packed)
    return bytes(status.SerializeToString())


_status_of_overload = lru_cache(_REMEMBERED)(_status)


def _bad_field(violation: FieldViolation, code: Code) -> BadRequest.FieldViolation:
    return BadRequest.FieldViolation(
        field=violation.field,
        description=f"{violation.value}; {violation.expected} was expected",
        reason=code.value,
    )


async def abort(context: ServicerContext, failure: Failure, metadata: Metadata = ()) -> NoReturn:
    """Ends a call with a failure, and further trailing metadata."""
    await context.abort(
        status_code_of(failure), failure.message, trailing_metadata_of(failure) + metadata
    )
    # grpc is untyped, so that mypy does not know that `context.abort` always raises.
    raise AssertionError("abort raises")

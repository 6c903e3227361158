"""Failures as gRPC reports them: status, message, and trailing metadata with details."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import NoReturn

import grpc
from google.protobuf import any as any_message
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc.aio import ServicerContext

from service.codec.failures import Failure, details_message
from service.codec.metadata import REQUEST_ID
from service.errors import TRANSPORT_STATUS

RETRY_AFTER = "retry-after"
"""Trailing metadata: whole seconds, as over HTTP."""
RETRY_PUSHBACK = "grpc-retry-pushback-ms"
"""The same in milliseconds. The retry policies of gRPC libraries wait as long as it says.
Source: gRFC A6, https://github.com/grpc/proposal/blob/master/A6-client-retries.md, pushback.
"""
STATUS_DETAILS = "grpc-status-details-bin"
"""Trailing metadata: google.rpc.Status with ErrorDetails, and RetryInfo where a retry may help."""

_REMEMBERED = 64
"""Failures whose details are kept encoded."""

Metadata = tuple[tuple[str, str | bytes], ...]


def status_code_of(failure: Failure) -> grpc.StatusCode:
    """Returns the gRPC status of a failure."""
    return grpc.StatusCode[TRANSPORT_STATUS[failure.code].grpc]


def trailing_metadata_of(failure: Failure) -> Metadata:
    """Returns the request id, the details, and when to retry."""
    request_id = failure.request_id.encode()
    marked = replace(failure, request_id="\0" * len(request_id))
    details, common = _metadata_of(marked)
    status = details.replace(marked.request_id.encode(), request_id)
    return ((REQUEST_ID, failure.request_id), *common, (STATUS_DETAILS, status))


@lru_cache(_REMEMBERED)
def _metadata_of(failure: Failure) -> tuple[bytes, Metadata]:
    """Returns the details of a failure and when to retry.

    An overload rejects thousands of calls per second, whose ids alone differ.
    """
    details: list[Message] = [details_message(failure)]
    metadata: Metadata = ()
    if failure.retry_after_s is not None:
        metadata += ((RETRY_AFTER, str(failure.retry_after_s)),)
        metadata += ((RETRY_PUSHBACK, str(failure.retry_after_s * 1000)),)
        details.append(RetryInfo(retry_delay=timedelta(seconds=failure.retry_after_s)))
    packed = [any_message.pack(each) for each in details]
    status = Status(code=status_code_of(failure).value[0], message=failure.message, details=packed)
    return status.SerializeToString(), metadata


async def abort(context: ServicerContext, failure: Failure, metadata: Metadata = ()) -> NoReturn:
    """Ends a call with a failure, and further trailing metadata."""
    await context.abort(
        status_code_of(failure), failure.message, trailing_metadata_of(failure) + metadata
    )
    raise AssertionError("abort raises")

"""Raw bytes to engine requests, and failures to gRPC's status, details and trailing metadata.

Methods take raw bytes and decode here, so that an undecodable body is INVALID_ARGUMENT and tells nothing of the inside;
gRPC's own deserializer would answer UNKNOWN with an exception's text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from service.errors import ANSWERS, TooLarge
from service.wire.calls import REQUEST_ID
from service.wire.failures import Failure
from service.wire.stubs import embedding_service_pb2 as pb

RETRY_AFTER = "retry-after"
"""Trailing metadata: seconds, as a decimal number."""
STATUS_DETAILS = "grpc-status-details-bin"
"""Trailing metadata: google.rpc.Status with ErrorDetails, and RetryInfo where trying again may help."""

Metadata = tuple[tuple[str, str | bytes], ...]
Request = TypeVar("Request")


def read(body: bytes, reader: Callable[[bytes], Request], limit: int) -> Request:
    """Reads a request from a message's raw bytes.

    Raises:
      TooLarge: more bytes than the limit.
      InvalidArgument: the bytes are no such message.
    """
    if len(body) > limit:
        raise TooLarge(f"the body has {len(body)} bytes; at most {limit} are taken")
    return reader(body)


def status_of(failure: Failure) -> grpc.StatusCode:
    """Returns the status of a failed call: this door's one use of the table of answers."""
    status: grpc.StatusCode = getattr(grpc.StatusCode, ANSWERS[failure.code].grpc)
    return status


def trailer_of(failure: Failure) -> Metadata:
    """Returns the trailing metadata of a failed call: request id, details, and when to come back."""
    details = [_any(pb.ErrorDetails(code=failure.code.value, message=failure.message, request_id=failure.request_id))]
    trailer: list[tuple[str, str | bytes]] = [(REQUEST_ID, failure.request_id)]
    if failure.retry_after_s is not None:
        trailer.append((RETRY_AFTER, f"{failure.retry_after_s:g}"))
        delay = Duration()
        delay.FromNanoseconds(int(failure.retry_after_s * 1e9))
        details.append(_any(RetryInfo(retry_delay=delay)))
    status = Status(code=status_of(failure).value[0], message=failure.message, details=details)
    trailer.append((STATUS_DETAILS, status.SerializeToString()))
    return tuple(trailer)


def _any(message: pb.ErrorDetails | RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed

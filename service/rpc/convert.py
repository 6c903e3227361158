"""Failures to gRPC's status, details and trailing metadata."""

from __future__ import annotations

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from service.errors import ANSWERS
from service.rpc.transport.messages import Metadata
from service.rpc.transport.streams import Reply
from service.wire.calls import REQUEST_ID
from service.wire.failures import Failure
from service.wire.stubs import embedding_service_pb2 as pb

RETRY_AFTER = "retry-after"
"""Trailing metadata: seconds, as a decimal number."""
STATUS_DETAILS = "grpc-status-details-bin"
"""Trailing metadata: google.rpc.Status with ErrorDetails, and RetryInfo where trying again may help."""


def status_of(failure: Failure) -> int:
    """Returns the status of a failed call: this door's one use of the table of answers."""
    return int(code_pb2.Code.Value(ANSWERS[failure.code].grpc))


def trailer_of(failure: Failure) -> Metadata:
    """Returns the trailing metadata of a failed call: request id, details, and when to come back."""
    details = [_any(pb.ErrorDetails(code=failure.code.value, message=failure.message, request_id=failure.request_id))]
    trailer: list[tuple[str, str | bytes]] = [(REQUEST_ID, failure.request_id)]
    if failure.retry_after_s is not None:
        trailer.append((RETRY_AFTER, f"{failure.retry_after_s:g}"))
        delay = Duration()
        delay.FromNanoseconds(int(failure.retry_after_s * 1e9))
        details.append(_any(RetryInfo(retry_delay=delay)))
    status = Status(code=status_of(failure), message=failure.message, details=details)
    trailer.append((STATUS_DETAILS, status.SerializeToString()))
    return tuple(trailer)


def refusal(failure: Failure, metadata: Metadata = ()) -> Reply:
    """Returns how a failed call ends, with further metadata behind its own."""
    return Reply(None, status_of(failure), failure.message, (*trailer_of(failure), *metadata))


def _any(message: pb.ErrorDetails | RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed

"""Failed calls of shards, as errors of the request that needed them."""

from __future__ import annotations

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from service.codec.failures import code_of
from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import (
    Code,
    DataLoss,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotReady,
    Overloaded,
    ServiceError,
    TooLarge,
)
from service.grpc_api.status import STATUS_DETAILS

_RETRY_AFTER_S = 1.0
"""For a shard that rejects a call without saying when to try again, as gRPC itself does."""


def service_error_of(failure: grpc.aio.AioRpcError, shard: str) -> ServiceError:
    """Returns the error with which the router's own request fails.

    A shard's code reaches the client where it is about the request or about load. What only the
    operator can repair, such as a wrong token, is internal: the log names the shard and its
    message.

    Args:
      failure: The failed call.
      shard: Names the shard and its address.
    """
    code, retry_after_s = _details(failure)
    if code in (Code.INVALID_ARGUMENT, Code.TOO_LARGE):
        # The client reads what is wrong with its request, as one process would say it.
        return _ERRORS[code](failure.details() or code.value)
    message = f"{shard}: {failure.code().name}: {failure.details()}"
    if code is Code.OVERLOADED:
        return Overloaded(message, retry_after_s or _RETRY_AFTER_S, "shard")
    return _ERRORS.get(code, Internal)(message)


def _details(failure: grpc.aio.AioRpcError) -> tuple[Code, float | None]:
    """Returns the code of a shard's error, and when to retry, from its details.

    A failure of gRPC itself has no details; then the status decides.
    """
    for key, value in failure.trailing_metadata() or ():
        if key != STATUS_DETAILS:
            continue
        details = pb.ErrorDetails()
        retry = RetryInfo()
        retry_after_s = None
        for packed in Status.FromString(value).details:
            packed.Unpack(details)
            if packed.Unpack(retry):
                retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
        code = code_of(details)
        if code is not None:
            return code, retry_after_s
    return _CODES.get(failure.code(), Code.INTERNAL), None


_CODES = {
    grpc.StatusCode.UNAVAILABLE: Code.NOT_READY,
    grpc.StatusCode.NOT_FOUND: Code.NOT_FOUND,
    grpc.StatusCode.CANCELLED: Code.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED: Code.DEADLINE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Code.OVERLOADED,
    grpc.StatusCode.INVALID_ARGUMENT: Code.INVALID_ARGUMENT,
    grpc.StatusCode.DATA_LOSS: Code.DATA_LOSS,
}
"""Codes of calls that gRPC itself failed."""

_ERRORS: dict[Code, type[ServiceError]] = {
    # The replica is gone, is stopping, or does not have the bundle (yet).
    Code.NOT_READY: NotReady,
    Code.NOT_FOUND: NotReady,
    Code.CANCELLED: NotReady,
    Code.INVALID_ARGUMENT: InvalidArgument,
    Code.TOO_LARGE: TooLarge,
    Code.DEADLINE: DeadlineExceeded,
    Code.DATA_LOSS: DataLoss,
}
"""Errors of the router's request by the code of the shard's; others are internal."""

"""Failed calls of shards, as errors of the request that needed them."""

from __future__ import annotations

import contextlib

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from bundle.tables.shard_number import ShardNumber
from service.codec.failures import code_of
from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import (
    Code,
    DataLoss,
    DeadlineExceeded,
    Internal,
    NotReady,
    Overloaded,
    ServiceError,
)
from service.grpc_api.status import STATUS_DETAILS

_RETRY_AFTER_S = 1.0
"""When to try again after a shard rejected a call without saying when, as gRPC itself does."""


def service_error_of(failure: grpc.aio.AioRpcError, shard: ShardNumber) -> ServiceError:
    """Returns the error with which the router's own request fails.

    A router checks a request before it calls shards. Whatever a shard rejects is therefore not the
    client's fault: the router and the shard disagree, which is internal, as is what only the
    operator can repair, such as a wrong token. The client reads which shard failed; the log has the
    address and the shard's message.

    Args:
      failure: The failed call.
      shard: The shard, which the message names.
    """
    code, retry_after_s = _details(failure)
    if code is Code.OVERLOADED:
        message = f"shard {shard} is overloaded"
        return Overloaded(message, retry_after_s or _RETRY_AFTER_S, "shard")
    error = _ERRORS.get(code, Internal)
    problem = _PROBLEMS.get(error, f"failed with {code.value}")
    return error(f"shard {shard} {problem}")


def _details(failure: grpc.aio.AioRpcError) -> tuple[Code, float | None]:
    """Returns the code of a shard's error, and when to retry, from its details.

    A failure of gRPC itself has no details, and those of another program may be anything; then the
    status decides.
    """
    details = pb.ErrorDetails()
    retry = RetryInfo()
    retry_after_s = None
    # What cannot be decoded is not from a shard, such as from a proxy between.
    with contextlib.suppress(DecodeError):
        for key, value in failure.trailing_metadata() or ():
            if key != STATUS_DETAILS:
                continue
            for detail in Status.FromString(value).details:
                # Unpack leaves its message alone if the detail is of another type.
                detail.Unpack(details)
                if detail.Unpack(retry):
                    retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    code = code_of(details) or _CODES.get(failure.code(), Code.INTERNAL)
    return code, retry_after_s


_CODES = {
    grpc.StatusCode.UNAVAILABLE: Code.NOT_READY,
    grpc.StatusCode.NOT_FOUND: Code.NOT_FOUND,
    grpc.StatusCode.CANCELLED: Code.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED: Code.DEADLINE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Code.OVERLOADED,
    grpc.StatusCode.DATA_LOSS: Code.DATA_LOSS,
}
"""Codes of calls that gRPC itself failed."""

_ERRORS: dict[Code, type[ServiceError]] = {
    # The replica is gone, is stopping, or does not have the bundle (yet).
    Code.NOT_READY: NotReady,
    Code.NOT_FOUND: NotReady,
    Code.CANCELLED: NotReady,
    Code.DEADLINE: DeadlineExceeded,
    Code.DATA_LOSS: DataLoss,
}
"""The error of the router's request by the code of the shard's error; all other codes are internal
errors.
"""

_PROBLEMS: dict[type[ServiceError], str] = {
    NotReady: "is not available",
    DeadlineExceeded: "did not respond in time",
    DataLoss: "has damaged files",
}

"""What a call can fail with.

    RowcastError
    ├── InvalidArgument    a field has a shape, type or value that the call does not take
    ├── Unauthenticated    no token, or an unknown one
    ├── PermissionDenied   a token without permission for the request
    ├── TooLarge           more ids, queries, candidates or bytes than the service's limit
    ├── NotFound           no such model, version, table, feature, tower or index
    ├── Overloaded         the service has no permit free; retried until the deadline
    ├── NotReady           the service has no model loaded yet, or is draining; retried until the deadline
    ├── DeadlineExceeded   the time given to the call is over
    ├── Cancelled          the call was given up
    ├── DataLoss           a file of the service's bundle does not match its digest
    ├── Unimplemented      in the contract, but switched off in this service
    ├── Internal           a bug in the service; its log has it under the request id
    ├── Unreachable        nobody answers at the address; retried until the deadline
    │   └── TlsFailed      the connection could not be made secure; never retried
    └── BadAnswer          what answers at the address is not a rowcast service

The codes are the service's own, read from the answer; the last three are this side's.
"""

from __future__ import annotations

from rowcast_client.stubs import embedding_service_pb2 as pb


class RowcastError(Exception):
    """A failed call.

    Attributes:
      code: the kind of failure, spelt as the service spells it.
      message: one sentence: what, which value, what was expected.
      request_id: under which the service logged the call; empty if it was not reached.
      address: the service; empty if the request was rejected before it was sent.
      retryable: the same request may succeed later, and is tried again while the deadline allows.
      retry_after_s: how long to wait before that, if the service reported it.
    """

    code = "INTERNAL"
    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = ""
        self.address = ""
        self.retry_after_s: float | None = None

    def __str__(self) -> str:
        return f"{self.message} (request id {self.request_id})" if self.request_id else self.message


class InvalidArgument(RowcastError):
    """A field has a shape, type or value that the call does not take."""

    code = "INVALID_ARGUMENT"


class Unauthenticated(RowcastError):
    """No token, or an unknown one."""

    code = "UNAUTHENTICATED"


class PermissionDenied(RowcastError):
    """A token without permission for the request."""

    code = "PERMISSION_DENIED"


class TooLarge(RowcastError):
    """More ids, queries, candidates or bytes than the service's limit."""

    code = "TOO_LARGE"


class NotFound(RowcastError):
    """No such model, version, table, feature, tower or index."""

    code = "NOT_FOUND"


class Overloaded(RowcastError):
    """The service has no permit free; the same request may succeed later."""

    code = "OVERLOADED"
    retryable = True


class NotReady(RowcastError):
    """The service has no model loaded yet, or is draining."""

    code = "NOT_READY"
    retryable = True


class DeadlineExceeded(RowcastError):
    """The time given to the call is over."""

    code = "DEADLINE"


class Cancelled(RowcastError):
    """The call was given up."""

    code = "CANCELLED"


class DataLoss(RowcastError):
    """A file of the service's bundle does not match its digest."""

    code = "DATA_LOSS"


class Unimplemented(RowcastError):
    """In the contract, but switched off in this service."""

    code = "UNIMPLEMENTED"


class Internal(RowcastError):
    """A bug in the service; its log has it under the request id."""

    code = "INTERNAL"


class Unreachable(RowcastError):
    """Nobody answers at the address, or the connection broke. Safe to try again: every call only reads."""

    code = "UNREACHABLE"
    retryable = True


class TlsFailed(Unreachable):
    """The connection could not be made secure."""

    code = "TLS_FAILED"
    retryable = False


class BadAnswer(RowcastError):
    """What answers at the address does not speak rowcast."""

    code = "BAD_ANSWER"


SERVICE_ERRORS = {kind.code: kind for kind in RowcastError.__subclasses__()}
"""Code -> error."""


def service_error(details: pb.ErrorDetails, retry_after_s: float | None = None) -> RowcastError:
    """The error that a service's code stands for; one of a newer service is Internal and keeps its name."""
    kind = SERVICE_ERRORS.get(details.code)
    message = details.message if kind else f"{details.code}: {details.message}"
    error = (kind or Internal)(message)
    error.request_id, error.retry_after_s = details.request_id, retry_after_s
    return error


def parse_retry_after(value: str | None) -> float | None:
    """Seconds of a retry-after header; None where there is none, or a date, which no rowcast service sends."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None

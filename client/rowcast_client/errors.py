"""The errors of a call.

    RowcastError
    ├── InvalidArgument    a field has a shape, type or value that the call does not accept
    ├── Unauthenticated    the token is missing or unknown
    ├── PermissionDenied   the token does not permit the request
    ├── TooLarge           more ids, queries, candidates or bytes than the service's limit
    ├── NotFound           no such model, version, table, feature, tower or index
    ├── Overloaded         the service is overloaded; retried within the deadline
    ├── NotReady           no model is loaded, or the service is draining; retried likewise
    ├── DeadlineExceeded   the deadline of the call has passed
    ├── Cancelled          the call was cancelled
    ├── DataLoss           a file of the service's bundle does not match its checksum
    ├── Unimplemented      the API has this feature, but the service does not provide it
    ├── Internal           a bug in the service; its log has it under the request id
    ├── Unreachable        no service responds at the address; retried likewise
    │   └── TlsFailed      the secure connection failed; never retried
    └── InvalidResponse    the server at the address is not a rowcast service

The service sends the codes, except those of the last three errors, which the client detects.
"""

from __future__ import annotations

from dataclasses import dataclass

from rowcast_client.stubs import embedding_service_pb2 as pb


@dataclass(frozen=True)
class FieldViolation:
    """What is wrong with one field of a request.

    Attributes:
      field: The path of the field, such as `context.user` or `filter.year.ge`. `body`, `message`,
        `request` and `response` stand for a whole.
      value: What was sent, as a short text.
      expected: What was expected, as a phrase.
    """

    field: str
    value: str
    expected: str


class RowcastError(Exception):
    """A failed call.

    Attributes:
      code: The code of the error, as in the API.
      message: One sentence: what was wrong, the value, and what was expected.
      violations: The same for programs, as the service reported it; empty if no field is at fault.
      request_id: The id under which the service logged the call; empty if it was not reached.
      address: The address of the service; empty if the request was rejected before it was sent.
      retryable: Whether the same request may succeed later. It is retried within the
        deadline, as often as `Retries` permits.
      retry_after_s: The time to wait before a retry, if the service reported it.
    """

    code = "INTERNAL"
    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.violations: tuple[FieldViolation, ...] = ()
        self.request_id = ""
        self.address = ""
        self.retry_after_s: float | None = None

    def __str__(self) -> str:
        if not self.request_id:
            return self.message
        return f"{self.message} (request id {self.request_id})"


class InvalidArgument(RowcastError):
    """A field has a shape, type or value that the call does not take."""

    code = "INVALID_ARGUMENT"


class Unauthenticated(RowcastError):
    """The token is missing or unknown."""

    code = "UNAUTHENTICATED"


class PermissionDenied(RowcastError):
    """The token does not permit the request."""

    code = "PERMISSION_DENIED"


class TooLarge(RowcastError):
    """The request has more ids, queries, candidates or bytes than the limit of the service."""

    code = "TOO_LARGE"


class NotFound(RowcastError):
    """The model, version, table, feature, tower or index does not exist."""

    code = "NOT_FOUND"


class Overloaded(RowcastError):
    """The service is overloaded; the same request may succeed later."""

    code = "OVERLOADED"
    retryable = True


class NotReady(RowcastError):
    """The service has no model loaded yet, or is draining."""

    code = "NOT_READY"
    retryable = True


class DeadlineExceeded(RowcastError):
    """The deadline of the call has passed."""

    code = "DEADLINE"


class Cancelled(RowcastError):
    """The call was cancelled."""

    code = "CANCELLED"


class DataLoss(RowcastError):
    """A file of the service's bundle does not match its checksum."""

    code = "DATA_LOSS"


class Unimplemented(RowcastError):
    """The API has this feature, but the service does not provide it."""

    code = "UNIMPLEMENTED"


class Internal(RowcastError):
    """A bug in the service. Its log has the details under the request id."""

    code = "INTERNAL"


class Unreachable(RowcastError):
    """No service responds at the address, or the connection broke. A retry is safe, because a call
    that is sent twice has the effect of one.
    """

    code = "UNREACHABLE"
    retryable = True


class TlsFailed(Unreachable):
    """The secure connection failed."""

    code = "TLS_FAILED"
    retryable = False


class InvalidResponse(RowcastError):
    """The server at the address is not a rowcast service."""

    code = "INVALID_RESPONSE"


SERVICE_ERRORS = {kind.code: kind for kind in RowcastError.__subclasses__()}
"""The class of each error, by its code."""


def service_error(code: str, message: str, retry_after_s: float | None = None) -> RowcastError:
    """Returns the error of a code."""
    error = SERVICE_ERRORS[code](message)
    error.retry_after_s = retry_after_s
    return error


def error_of(details: pb.ErrorDetails, retry_after_s: float | None = None) -> RowcastError:
    """Returns the error that the service reported. An unknown code, of a newer service, becomes
    Internal, with the code in the message.
    """
    value = pb.ErrorCode.DESCRIPTOR.values_by_number.get(details.code)
    code = ""
    if value is not None:
        code = value.name.removeprefix("ERROR_CODE_")
    if code in SERVICE_ERRORS:
        error = service_error(code, details.message, retry_after_s)
    else:
        message = f"error code {details.code}: {details.message}"
        error = service_error(Internal.code, message, retry_after_s)
    error.request_id = details.request_id
    error.violations = tuple(
        FieldViolation(violation.field, violation.value, violation.expected)
        for violation in details.violations
    )
    return error


def parse_retry_after(value: str | None) -> float | None:
    """Returns the seconds of a retry-after header; None if it is missing or holds a date,
    which the service never sends.
    """
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    # Also none for NaN, which compares false.
    if not 0 <= seconds < float("inf"):
        return None
    return seconds

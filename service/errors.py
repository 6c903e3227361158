"""The errors of a request, and the one table that maps each code to the status of each transport.

ServiceError
├── InvalidArgument   a field has a shape, type or value that the call does not accept
├── Unauthenticated   the token is missing or unknown
├── PermissionDenied  the token does not permit access to the model, or the host is not allowed
├── TooLarge          more ids, queries, candidates or bytes than the limit
├── NotFound          no such model, version, table, feature, tower or index
├── Overloaded        the service is overloaded; try again later
├── NotReady          no version is loaded, or the service is draining
├── DeadlineExceeded  the deadline of the request has passed
├── Cancelled         the client has disconnected
├── DataLoss          a committed file does not match its checksum
├── Unimplemented     the API has this feature, but this service does not provide it
├── RowNotFinite      a row of the bundle holds NaN or an infinity
└── Internal          a bug; the client receives a fixed message
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Code(Enum):
    """The error codes, which are the same on every transport."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    TOO_LARGE = "TOO_LARGE"
    NOT_FOUND = "NOT_FOUND"
    OVERLOADED = "OVERLOADED"
    NOT_READY = "NOT_READY"
    DEADLINE = "DEADLINE"
    CANCELLED = "CANCELLED"
    DATA_LOSS = "DATA_LOSS"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True)
class TransportStatus:
    """How the transports report a code: HTTP status, name of the gRPC status, and whether the
    client should retry.
    """

    http: int
    grpc: str
    retry: str


TRANSPORT_STATUS: dict[Code, TransportStatus] = {
    Code.INVALID_ARGUMENT: TransportStatus(400, "INVALID_ARGUMENT", "no"),
    Code.UNAUTHENTICATED: TransportStatus(401, "UNAUTHENTICATED", "no"),
    Code.PERMISSION_DENIED: TransportStatus(403, "PERMISSION_DENIED", "no"),
    Code.TOO_LARGE: TransportStatus(413, "RESOURCE_EXHAUSTED", "no"),
    Code.NOT_FOUND: TransportStatus(404, "NOT_FOUND", "no"),
    Code.OVERLOADED: TransportStatus(429, "RESOURCE_EXHAUSTED", "later"),
    Code.NOT_READY: TransportStatus(503, "UNAVAILABLE", "elsewhere"),
    Code.DEADLINE: TransportStatus(504, "DEADLINE_EXCEEDED", "if the client still needs it"),
    Code.CANCELLED: TransportStatus(499, "CANCELLED", "if the client still needs it"),
    Code.DATA_LOSS: TransportStatus(500, "DATA_LOSS", "no; alert an operator"),
    Code.UNIMPLEMENTED: TransportStatus(501, "UNIMPLEMENTED", "no"),
    Code.INTERNAL: TransportStatus(500, "INTERNAL", "no"),
}

INTERNAL_MESSAGE = "internal error; the log of the service has the details under this request id"


class ServiceError(Exception):
    """A failed request.

    The message is safe to send to the client. It names the field, its value and what was expected.
    """

    code = Code.INTERNAL


class InvalidArgument(ServiceError):
    """A field has a shape, type or value that the call does not accept."""

    code = Code.INVALID_ARGUMENT


class Unauthenticated(ServiceError):
    """The token is missing or unknown."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(ServiceError):
    """The token does not permit access to the model, or the host is not allowed."""

    code = Code.PERMISSION_DENIED


class TooLarge(ServiceError):
    """The request, or its response, has more ids, candidates or bytes than the limit."""

    code = Code.TOO_LARGE


class NotFound(ServiceError):
    """The model, version, table, feature, tower or index does not exist."""

    code = Code.NOT_FOUND


class Overloaded(ServiceError):
    """The service is overloaded; the same request may succeed later."""

    code = Code.OVERLOADED

    def __init__(self, message: str, retry_after_s: float, reason: str = "bytes") -> None:
        """Creates the error.

        Args:
          message: See ServiceError.
          retry_after_s: The time after which the client may try again.
          reason: The limit that was exceeded, one of `metrics.REJECTIONS`.
        """
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.reason = reason


class NotReady(ServiceError):
    """No version is loaded, or the service is draining."""

    code = Code.NOT_READY


class DeadlineExceeded(ServiceError):
    """The deadline of the request has passed."""

    code = Code.DEADLINE


class Cancelled(ServiceError):
    """The client has disconnected."""

    code = Code.CANCELLED


class DataLoss(ServiceError):
    """A committed file does not match its checksum."""

    code = Code.DATA_LOSS


class Unimplemented(ServiceError):
    """The API has this feature, but this service does not provide it."""

    code = Code.UNIMPLEMENTED


class RowNotFinite(ServiceError):
    """A row of the bundle holds NaN or an infinity. The service is at fault, not the request.

    Attributes:
      table: The table that holds the row.
    """

    code = Code.INTERNAL

    def __init__(self, table: str, value: object) -> None:
        """Creates the error.

        Args:
          table: The table that holds the row.
          value: The id that leads to the row.
        """
        super().__init__(
            f"the row of id {str(value)[:128]} in table {table!r} holds NaN or an infinity, and "
            "nothing can be computed with it; the model is at fault, not the request"
        )
        self.table = table


class Internal(ServiceError):
    """A bug; the client receives a fixed message, and the log has the details."""

    code = Code.INTERNAL


SHARD_FAILURES = (DataLoss, DeadlineExceeded, Internal, NotReady, Overloaded)
"""With these a computation fails for the sake of shards, whatever the request."""

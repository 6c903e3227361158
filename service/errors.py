"""What a request can fail with, and the one table that maps each code to the status of each transport.

ServiceError
├── InvalidArgument   a field has a shape, type or value that the call does not accept
├── Unauthenticated   no token, or an unknown one
├── PermissionDenied  a token without permission for the model
├── TooLarge          more ids, queries, candidates or bytes than the limit
├── NotFound          no such model, version, table, feature, tower or index
├── Overloaded        too much load; try again later
├── NotReady          no version is loaded, or the service is draining
├── DeadlineExceeded  out of time
├── Cancelled         the client has gone
├── DataLoss          a committed file does not match its checksum
├── Unimplemented     in the contract, but not available here
└── Internal          a bug; the client sees a fixed sentence
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Code(Enum):
    """The kinds of failure, spelled the same on every transport."""

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
    """How the transports report a code: HTTP status, name of the gRPC status, and whether the client should retry."""

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
    Code.DEADLINE: TransportStatus(504, "DEADLINE_EXCEEDED", "caller's choice"),
    Code.CANCELLED: TransportStatus(499, "CANCELLED", "caller's choice"),
    Code.DATA_LOSS: TransportStatus(500, "DATA_LOSS", "no, page someone"),
    Code.UNIMPLEMENTED: TransportStatus(501, "UNIMPLEMENTED", "no"),
    Code.INTERNAL: TransportStatus(500, "INTERNAL", "no"),
}

INTERNAL_MESSAGE = "internal error; the log has the details under this request id"


class ServiceError(Exception):
    """A failed request. The message is one safe sentence for the client: what, which value, what was expected."""

    code = Code.INTERNAL


class InvalidArgument(ServiceError):
    """A field has a shape, type or value that the call does not accept."""

    code = Code.INVALID_ARGUMENT


class Unauthenticated(ServiceError):
    """No token, or an unknown one."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(ServiceError):
    """A token without permission for the model."""

    code = Code.PERMISSION_DENIED


class TooLarge(ServiceError):
    """More ids, queries, candidates or bytes than the limit."""

    code = Code.TOO_LARGE


class NotFound(ServiceError):
    """No such model, version, table, feature, tower or index."""

    code = Code.NOT_FOUND


class Overloaded(ServiceError):
    """The service has too much load; the same request may succeed later."""

    code = Code.OVERLOADED

    def __init__(self, message: str, retry_after_s: float, reason: str = "bytes") -> None:
        """Creates the error; `reason`: the limit that was hit: one of `metrics.REJECTIONS`."""
        super().__init__(message)
        self.retry_after_s, self.reason = retry_after_s, reason


class NotReady(ServiceError):
    """No version is loaded, or the service is draining."""

    code = Code.NOT_READY


class DeadlineExceeded(ServiceError):
    """The deadline of the request has passed."""

    code = Code.DEADLINE


class Cancelled(ServiceError):
    """The client has gone."""

    code = Code.CANCELLED


class DataLoss(ServiceError):
    """A committed file does not match its checksum."""

    code = Code.DATA_LOSS


class Unimplemented(ServiceError):
    """In the contract, but not available here."""

    code = Code.UNIMPLEMENTED


class Internal(ServiceError):
    """A bug; the client sees a fixed sentence."""

    code = Code.INTERNAL

"""What a call can fail with, and the one table that says how each door tells it.

ServiceError
├── InvalidArgument   a field has a shape, type or value that the call does not take
├── Unauthenticated   no token, or none that is known here
├── PermissionDenied  a token that is not for what is asked
├── TooLarge          more ids, queries, candidates or bytes than the limit
├── NotFound          no such model, version, table, feature, tower or index
├── Overloaded        too much to do; try again later
├── NotReady          no generation, or draining
├── DeadlineExceeded  out of time
├── Cancelled         the caller is gone
├── DataLoss          a committed file does not match its digest
├── Unimplemented     in the contract, off here
└── Internal          a bug; outside only a fixed sentence
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Code(Enum):
    """The kinds of failure, with the same spelling on every door."""

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
class Answer:
    """How the doors tell a code: HTTP status, name of the gRPC status, and what the caller should do."""

    http: int
    grpc: str
    retry: str


ANSWERS: dict[Code, Answer] = {
    Code.INVALID_ARGUMENT: Answer(400, "INVALID_ARGUMENT", "no"),
    Code.UNAUTHENTICATED: Answer(401, "UNAUTHENTICATED", "no"),
    Code.PERMISSION_DENIED: Answer(403, "PERMISSION_DENIED", "no"),
    Code.TOO_LARGE: Answer(413, "RESOURCE_EXHAUSTED", "no"),
    Code.NOT_FOUND: Answer(404, "NOT_FOUND", "no"),
    Code.OVERLOADED: Answer(429, "RESOURCE_EXHAUSTED", "later"),
    Code.NOT_READY: Answer(503, "UNAVAILABLE", "elsewhere"),
    Code.DEADLINE: Answer(504, "DEADLINE_EXCEEDED", "caller's choice"),
    Code.CANCELLED: Answer(499, "CANCELLED", "caller's choice"),
    Code.DATA_LOSS: Answer(500, "DATA_LOSS", "no, page someone"),
    Code.UNIMPLEMENTED: Answer(501, "UNIMPLEMENTED", "no"),
    Code.INTERNAL: Answer(500, "INTERNAL", "no"),
}

BODIES = "bodies"
"""What there is too much of where a door refuses before the engine is asked."""
INTERNAL_SENTENCE = "internal error; the log has it under this request id"


class ServiceError(Exception):
    """A failed call. The message is one safe sentence for the caller: what, which value, what was expected."""

    code = Code.INTERNAL


class InvalidArgument(ServiceError):
    """A field has a shape, type or value that the call does not take."""

    code = Code.INVALID_ARGUMENT


class Unauthenticated(ServiceError):
    """No token, or none that is known here."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(ServiceError):
    """A token that is not for what is asked."""

    code = Code.PERMISSION_DENIED


class TooLarge(ServiceError):
    """More ids, queries, candidates or bytes than the limit."""

    code = Code.TOO_LARGE


class NotFound(ServiceError):
    """No such model, version, table, feature, tower or index."""

    code = Code.NOT_FOUND


class Overloaded(ServiceError):
    """There is too much to do; the same request may succeed later."""

    code = Code.OVERLOADED

    def __init__(self, message: str, retry_after_s: float, reason: str = BODIES) -> None:
        """Takes the sentence, when to come again, and what there is too much of: one of `metrics.SHED`."""
        super().__init__(message)
        self.retry_after_s, self.reason = retry_after_s, reason


class NotReady(ServiceError):
    """No generation is loaded, or the service is draining."""

    code = Code.NOT_READY


class DeadlineExceeded(ServiceError):
    """The caller's time is over."""

    code = Code.DEADLINE


class Cancelled(ServiceError):
    """The caller is gone."""

    code = Code.CANCELLED


class DataLoss(ServiceError):
    """A committed file does not match its digest."""

    code = Code.DATA_LOSS


class Unimplemented(ServiceError):
    """In the contract, but switched off here."""

    code = Code.UNIMPLEMENTED


class Internal(ServiceError):
    """A bug; the caller sees a fixed sentence."""

    code = Code.INTERNAL

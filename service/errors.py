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

import re
from dataclasses import dataclass
from enum import Enum
from typing import Self

from bundle.errors import Misfit


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
    """How the transports report a code.

    Attributes:
      http: The HTTP status.
      grpc: The name of the gRPC status.
      retry: Whether the client should try again.
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
"""The message of every bug: the text of an unexpected exception may hold what clients must not see.
"""

_WHOLES = frozenset({"body", "call", "message", "request"})
"""Fields that stand for all that was sent; in sentences they have an article."""

_PROCESSES = re.compile(r"process \d+ \(.*\)", re.DOTALL)
"""Processes with their command lines, as the locks of logs name them."""
_PATHS = re.compile(
    r"""(?<!\w)'/[^']*'|(?<!\w)"/[^"]*"|\bfile:/[^\s'"]*|"""
    r"""(?<![\w./])/(?![/\s])[^\s'"]*(?:\ [^\s'"]*/[^\s'"]*)*(?<![.,;:)])"""
)
"""Absolute paths, in quotes or up to a word without a slash. Paths in URLs and within bundles are
none of this machine.
"""


def without_host(text: str) -> str:
    """Returns what clients may read of a text: `…` stands for the paths of this machine, and the
    command lines of its processes are left out. The log and the admin API have the whole text.
    """
    return _PATHS.sub("…", _PROCESSES.sub("another process", text))


@dataclass(frozen=True)
class FieldViolation:
    """What is wrong with one field of a request.

    Attributes:
      field: The path of the field as clients write it, such as `filter.year.ge`; or the name of a
        header, or of a part of the URL. `body`, `message`, `request` and `response` stand for a
        whole.
      value: What was sent, as a short text.
      expected: What was expected, as a phrase in the singular. The log shows it, so that it never
        repeats what was sent.
    """

    field: str
    value: str
    expected: str


def one_of(listed: str) -> str:
    """Returns what a field should have named, of which `listed` are those that exist, or "none"."""
    if listed == "none":
        return "nothing, as there is none"
    return f"one of {listed}"


class ServiceError(Exception):
    """A failed request.

    The message is safe to send to the client, but for what it says of the machine
    (`without_host`). It names the field, its value and what was expected.
    A message that repeats what a client sent comes with the violations: the log shows the message
    of an error without any.

    Attributes:
      violations: What is wrong with which fields; empty if the request is not at fault.
    """

    code = Code.INTERNAL

    def __init__(self, message: str, *violations: FieldViolation) -> None:
        super().__init__(message)
        self.violations = violations

    @classmethod
    def of_field(
        cls, field: str, value: object, expected: str, verb: str = "is", hint: str = ""
    ) -> Self:
        """Returns the error of one field, with a sentence of its name, its value and what was
        expected: "k is 0; 1 to 100 was expected".

        Args:
          field: See FieldViolation.
          value: See FieldViolation.
          expected: See FieldViolation.
          verb: What connects the field with its value.
          hint: What else may help, such as the name that was probably meant.
        """
        sentence = f"{_subject(field)} {verb} {value}; {expected} was expected"
        if hint:
            sentence = f"{sentence}; {hint}"
        return cls(sentence, FieldViolation(field, str(value), expected))


class InvalidArgument(ServiceError):
    """A field has a shape, type or value that the call does not accept."""

    code = Code.INVALID_ARGUMENT

    @classmethod
    def of_misfit(cls, field: str, problem: Misfit) -> Self:
        """Returns the error of a field whose values the bundle does not accept."""
        violation = FieldViolation(field, problem.value, problem.expected)
        return cls(f"{field}: {problem.problem}", violation)


class Unauthenticated(ServiceError):
    """The token is missing or unknown."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(ServiceError):
    """The token does not permit access to the model, or the host is not allowed."""

    code = Code.PERMISSION_DENIED


class TooLarge(ServiceError):
    """The request, or its response, has more ids, candidates or bytes than the limit."""

    code = Code.TOO_LARGE

    @classmethod
    def of_limit(
        cls, field: str, size: str, limit: int, setting: str = "", verb: str = "has"
    ) -> Self:
        """Returns the error of a field that exceeds a limit: "ids has 9 values; at most 8 are
        accepted (max_values)".

        Args:
          field: See FieldViolation.
          size: The size of the field, with what is counted.
          limit: The largest size that is accepted.
          setting: The setting of the limit; empty: it is fixed.
          verb: What connects the field with its size.
        """
        source = ""
        if setting:
            source = f" ({setting})"
        sentence = f"{_subject(field)} {verb} {size}; at most {limit} are accepted{source}"
        return cls(sentence, FieldViolation(field, size, f"at most {limit}{source}"))


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
"""The errors of a computation that shards are the cause of, whatever the request."""


def _subject(field: str) -> str:
    """Returns a field as the subject of a sentence."""
    if field in _WHOLES:
        return f"the {field}"
    return field

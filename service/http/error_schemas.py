"""The JSON of failed requests as pydantic models, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from service.errors import TRANSPORT_STATUS, Code
from service.openapi import ABSENT, ResponseSchema


class FieldViolation(ResponseSchema):
    """What is wrong with one field of a request."""

    field: str
    """The path of the field, such as `filter.year.ge`; or the name of a header, or of a part of the
    URL. `body`, `request` and `response` stand for a whole.
    """
    value: str
    """What was sent, as a short text."""
    expected: str
    """What was expected, as a phrase."""


class ErrorDetails(ResponseSchema):
    """What failed."""

    code: Code
    message: str
    violations: list[FieldViolation] = ABSENT
    """What is wrong with which fields. Absent if the request is not at fault."""
    retry_after_s: int = ABSENT
    """The time after which to try again. Sent only with `OVERLOADED`."""
    request_id: str


class ErrorResponse(ResponseSchema):
    """The body of every failed request."""

    error: ErrorDetails


_CODES = ", ".join(f"{status.http} {code.value}" for code, status in TRANSPORT_STATUS.items())
_RETRY_AFTER = {
    "description": "Seconds to wait before the next try, if the code is OVERLOADED.",
    "schema": {"type": "integer"},
}
ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": _CODES,
        "model": ErrorResponse,
        "headers": {"retry-after": _RETRY_AFTER},
    }
}
"""The description of a route's failures in the document."""

"""The query strings of requests over HTTP: parameters that a path does not have are rejected."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from service.errors import FieldViolation, InvalidArgument

_SHOWN_CHARACTERS = 40
"""Number of characters of an unknown parameter that its message repeats."""


def check_query(query_string: bytes, accepted: Collection[str] = ()) -> None:
    """Rejects the parameters of a query string that have no effect.

    Args:
      query_string: What follows the question mark.
      accepted: The names of the parameters that the path has.

    Raises:
      InvalidArgument: There is another parameter.
    """
    for name, _ in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        if name in accepted:
            continue
        expected = "no parameter"
        remedy = "; options are fields of the body"
        if accepted:
            expected = f"one of {', '.join(sorted(accepted))}"
            remedy = ""
        value = repr(name[:_SHOWN_CHARACTERS])
        message = (
            f"parameter {value} of the query string is unknown; {expected} was expected{remedy}"
        )
        raise InvalidArgument(message, FieldViolation("query", value, expected))


def query_check(unchecked: Collection[str] = ()) -> Any:
    """Returns a dependency that rejects the parameters that the route of a request does not have.

    Args:
      unchecked: Paths whose parameters are ignored.
    """

    async def check(request: Request) -> None:
        scope = request.scope
        if scope["query_string"] and scope["path"] not in unchecked:
            accepted = [field.alias for field in scope["route"].dependant.query_params]
            check_query(scope["query_string"], accepted)

    return Depends(check)

"""Errors for which HTTP has a status of its own."""

from __future__ import annotations

from service.errors import FieldViolation, InvalidArgument


class MethodNotAllowed(InvalidArgument):
    """The path does not have this method."""

    def __init__(self, method: str, allowed: str) -> None:
        """Creates the error.

        Args:
          method: The method of the request, which may be of any length.
          allowed: The methods of the path, as the header `allow` lists them.
        """
        message = f"method {method[:20]} is not allowed for this path; {allowed} is"
        super().__init__(message, FieldViolation("method", method[:20], allowed))
        self.allowed = allowed

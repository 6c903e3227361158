"""Errors that HTTP has a status of its own for."""

from __future__ import annotations

from service.errors import InvalidArgument


class MethodNotAllowed(InvalidArgument):
    """The path does not have this method."""

    def __init__(self, method: str, allowed: str) -> None:
        """Creates the error; `allowed`: the methods of the path."""
        super().__init__(f"method {method[:20]} is not allowed for this path; {allowed} is")
        self.allowed = allowed

"""The errors of named tensors, without the words of any program.

Misfit (bundle.errors)
└── TensorError       a tensor, or the message that holds it, is not as its form says
    └── TooMuch       more tensors, rows or values than a limit
NoRequest             a record without a request that can be read
"""

from __future__ import annotations

import json

from bundle.errors import Misfit
from bundle.shown_values import shown

NAME_CHARS_MAX = 128
"""Maximum number of characters of a tensor's or feature's name that an error repeats."""


class TensorError(Misfit):
    """A tensor, or the message that holds it, is not as its form says.

    Attributes:
      field: The field that is at fault, such as `inputs.user`.
    """

    def __init__(self, field: str, value: object, expected: str, predicate: str = "") -> None:
        super().__init__(field, value, expected, predicate)
        self.field = field


class TooMuch(TensorError):
    """There are more tensors, rows or values than a limit; nothing of that size was allocated.

    Attributes:
      limit: The name of the limit, an attribute of Limits.
      maximum: The limit.
    """

    def __init__(self, field: str, limit: str, count: int, maximum: int) -> None:
        """Creates the error.

        Args:
          field, limit, maximum: As in the attributes.
          count: The number that was sent.
        """
        counted = limit.removeprefix("max_")
        super().__init__(field, f"{count} {counted}", f"at most {maximum}")
        self.limit = limit
        self.maximum = maximum


class NoRequest(Exception):
    """A record holds no request that can be read; the message says why, as a clause."""


def input_field(name: str) -> str:
    """Returns the field of an input's tensor, as errors name it."""
    return f"inputs.{name[:NAME_CHARS_MAX]}"


def shown_json(value: object) -> str:
    """Returns a value of JSON, shortened, as an error repeats it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return shown(value)

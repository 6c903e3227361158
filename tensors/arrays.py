"""Arrays by the names of their tensors, and what bounds them before they are allocated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tensors.errors import TensorError, TooMuch, shown_json

AXES_MAX = 8
"""Maximum number of axes of a tensor, and of levels of lists in JSON."""
Arrays = Mapping[str, NDArray[Any]]
"""Arrays of numbers, and of objects that are str or bytes, by the names of their tensors."""


class Ragged(NamedTuple):
    """Lists of values, in place of an array: a protocol may have such lists without row splits.

    Attributes:
      values: [m], the values of all lists.
      offsets: [n + 1] int64, the offset of each list, as in a Column.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]


SentArrays = Mapping[str, NDArray[Any] | Ragged]
"""The tensors that a client sent, by name."""


class Limits(Protocol):
    """How much one request may hold; settings of the service have the same names."""

    @property
    def max_features(self) -> int:
        """The number of tensors or features."""

    @property
    def max_queries(self) -> int:
        """The number of rows."""

    @property
    def max_values(self) -> int:
        """The number of values of all tensors."""


def at_most(limits: Limits, limit: str, count: int, field: str) -> None:
    """Raises TooMuch if a field has more than a limit allows.

    Args:
      limits: The limits.
      limit: The name of one of them.
      count: How many rows, values or tensors the field has.
      field: The field, for the error.
    """
    maximum: int = getattr(limits, limit)
    if count > maximum:
        raise TooMuch(field, limit, count, maximum)


class DeclaredShapes:
    """The shapes that the tensors of a request declare, which are checked before anything of their
    size is allocated.
    """

    def __init__(self, count: int, limits: Limits) -> None:
        """Begins the check of `count` tensors.

        Raises:
          TooMuch: There are more than the limit.
        """
        at_most(limits, "max_features", count, "inputs")
        self._limits = limits
        self._values = 0

    def checked(self, shape: Sequence[Any], field: str) -> tuple[int, ...]:
        """Returns the shape of the next tensor.

        Args:
          shape: The sizes of the axes that the client sent.
          field: The field of the tensor, as errors name it.

        Raises:
          TensorError: It has too many axes, or a size that is no integer of at least 0.
          TooMuch: The tensors so far have more values than the limit.
        """
        if len(shape) > AXES_MAX:
            raise TensorError(f"{field}.shape", f"{len(shape)} axes", f"at most {AXES_MAX}")
        for size in shape:
            # `isinstance` would accept true and false, which are integers in Python.
            if type(size) is not int or size < 0:
                raise TensorError(f"{field}.shape", shown_json(size), "an integer of at least 0")
        # numpy has no array whose other sizes multiply beyond its limit, even if one is 0.
        at_most(self._limits, "max_values", math.prod([size for size in shape if size]), field)
        self._values += math.prod(shape)
        at_most(self._limits, "max_values", self._values, "inputs")
        return tuple(shape)


def typed_array(values: list[Any], field: str) -> NDArray[Any]:
    """Returns scalars of one kind as an array.

    Args:
      values: m integers, floats, booleans, texts or bytes.
      field: The field that has them, for errors.

    Returns:
      [m] int64, float64 (if any is no integer), bool, or objects that are str or bytes.

    Raises:
      TensorError: The scalars are of several kinds, or of another kind, or an integer does not fit.
    """
    # numpy would convert mixed kinds to strings, and integers beyond int64 to floats.
    kinds = set(map(type, values))
    if kinds <= {int, float}:
        dtype: type[Any] = np.int64
        if float in kinds:
            dtype = np.float64
        try:
            return np.array(values, dtype)
        except OverflowError:
            raise TensorError(field, "a larger integer", f"a value of {dtype.__name__}") from None
    if kinds <= {str, bytes}:
        return np.array(values, object)
    if kinds == {bool}:
        return np.array(values)
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise TensorError(field, f"values of {names}", "one kind of integers, numbers or strings")

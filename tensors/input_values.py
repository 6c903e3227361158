"""Named tensors to the values of inputs.

An input is sent in one of three forms, whatever the model took in training:

  dense    NAME [n, ...]
  ragged   NAME [m] (values), NAME_1 [n + 1] (row splits)
  sparse   NAME [m, 2] (indices), NAME_1 [m] (values), NAME_2 [2] (dense shape)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.columns import Column, checked_offsets
from tensors.arrays import Limits, Ragged, SentArrays, at_most
from tensors.errors import TensorError, input_field

EITHER = "int64_or_string"
"""The type of ids that are integers or texts."""
_EMPTY: Mapping[str, type[Any]] = {
    "string": object,
    "float32": np.float32,
    "int32": np.int64,
    "int64": np.int64,
    EITHER: np.int64,
}
"""The dtype of empty columns, by the type of an input."""


class InputValues(NamedTuple):
    """The values of an input for n rows.

    Attributes:
      values: [n, ...] of a dense tensor, or [m] of the others.
      offsets: [n + 1] int64, as of a Column; None: each row of a dense tensor has as many values.
      rows: n.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None
    rows: int


class InputTensors:
    """The tensors of one request.

    Attributes:
      arrays: The tensors by name.
      read: The names of the tensors that `values` and `take` have returned.
    """

    def __init__(self, arrays: SentArrays, inputs: Collection[str], limits: Limits) -> None:
        """Begins to read tensors.

        Args:
          arrays: The tensors by name.
          inputs: The names of the first tensors of inputs. None of them is a further tensor of
            another input.
          limits: The limits.
        """
        self.arrays = arrays
        self.read = set[str]()
        self._inputs = inputs
        self._limits = limits

    def take(self, name: str) -> NDArray[Any]:
        """Returns a tensor.

        Raises:
          TensorError: It was sent as lists of different lengths.
        """
        array = self.arrays[name]
        if isinstance(array, Ragged):
            raise TensorError(input_field(name), "lists of different lengths", "a tensor")
        self.read.add(name)
        return array

    def values(self, name: str) -> InputValues:
        """Returns the values of the input whose first tensor has a name.

        Raises:
          TensorError: The tensors are in none of the three forms, or do not fit each other.
          TooMuch: A sparse tensor has more rows than the limit.
        """
        # The further tensors that were sent decide the form: only sparse inputs have a third one.
        if self._has(f"{name}_2"):
            if not self._has(f"{name}_1"):
                expected = f"the tensor of the values of {name!r}, which is sparse,"
                raise TensorError(input_field(f"{name}_1"), "missing", expected)
            return self._sparse(name)
        ragged = self.arrays[name]
        if isinstance(ragged, Ragged):
            self.read.add(name)
            return InputValues(ragged.values, ragged.offsets, ragged.offsets.size - 1)
        values = self.take(name)
        if self._has(f"{name}_1"):
            offsets = _whole_numbers(self.take(f"{name}_1"), f"{name}_1", 1)
            rows = max(0, offsets.size - 1)
            try:
                checked_offsets(name, Column(values, offsets), rows)
            except FeatureError as problem:
                field = input_field(f"{name}_1")
                raise TensorError(field, problem.value, problem.expected) from None
            return InputValues(values, offsets, rows)
        if values.ndim == 0:
            expected = "a tensor whose first axis counts the rows"
            raise TensorError(input_field(name), shown_array(values), expected)
        return InputValues(values, None, len(values))

    def _has(self, name: str) -> bool:
        """Returns whether a further tensor of an input was sent, and is no input of its own."""
        return name in self.arrays and name not in self._inputs

    def _sparse(self, name: str) -> InputValues:
        """Returns the values of a sparse tensor. Within a row, the order of the values counts, and
        not their second index.
        """
        indices = _whole_numbers(self.take(name), name, 2)
        values = self.take(f"{name}_1")
        shape = _whole_numbers(self.take(f"{name}_2"), f"{name}_2", 1)
        field = input_field(name)
        if values.ndim != 1 or indices.shape != (values.size, 2) or shape.size != 2:
            value = f"indices {shown_array(indices)}, values {shown_array(values)} and "
            value += f"dense shape {shown_array(shape)}"
            raise TensorError(field, value, "a sparse tensor of [m, 2], [m] and [2]")
        # Before anything of that size is allocated: a dense shape may claim any number of rows.
        rows = int(shape[0])
        if rows < 0:
            raise TensorError(field, f"{rows} rows", "a number of at least 0")
        at_most(self._limits, "max_queries", rows, field)
        row_indices = indices[:, 0]
        if row_indices.size and (row_indices.min() < 0 or row_indices.max() >= rows):
            raise TensorError(field, f"an index outside of its {rows} rows", "an index of a row")
        if (row_indices[1:] < row_indices[:-1]).any():
            raise TensorError(field, "indices in another order", "the order of the rows")
        offsets = row_indices.searchsorted(np.arange(rows + 1)).astype(np.int64)
        return InputValues(values, offsets, rows)


def converted(values: NDArray[Any], dtype: str, name: str) -> NDArray[Any]:
    """Returns the values of an input, flat and as columns have them.

    Args:
      values: The values, in any shape.
      dtype: The type of the input: string, float32, int32, int64 or EITHER.
      name: The name of the tensor, for errors.

    Returns:
      [m] int64, float32 or objects that are str.

    Raises:
      TensorError: They are of another kind, or do not fit.
    """
    # An empty list in JSON has no kind.
    if not values.size:
        return np.empty(0, _EMPTY[dtype])
    field = input_field(name)
    kind = values.dtype.kind
    if dtype in ("string", EITHER) and kind in "OSU":
        return texts(values, field)
    if dtype in ("int32", "int64", EITHER) and kind in "iu":
        return _once_each(values, lambda numbers: _integers(numbers, field))
    if dtype == "float32" and kind in "fiu":
        return _once_each(values, lambda numbers: _floats(numbers, field))
    raise TensorError(field, _dtype_name(values), dtype)


def texts(values: NDArray[Any], field: str) -> NDArray[Any]:
    """Returns strings, flat.

    Args:
      values: Objects that are str or bytes.
      field: The field that has them, for errors.

    Returns:
      [m] objects that are str.

    Raises:
      TensorError: Bytes are not UTF-8.
    """

    def decode(strings: NDArray[Any]) -> NDArray[Any]:
        decoded = []
        for string in strings.tolist():
            if isinstance(string, bytes):
                decoded.append(string.decode())
            else:
                decoded.append(string)
        return np.array(decoded, object)

    try:
        return _once_each(values, decode)
    except UnicodeDecodeError:
        raise TensorError(field, "bytes that are not UTF-8", "UTF-8") from None


def shown_array(array: NDArray[Any]) -> str:
    """Returns dtype and shape of an array, as errors name them."""
    return f"{_dtype_name(array)} of shape {list(array.shape)}"


def _once_each(
    values: NDArray[Any], convert: Callable[[NDArray[Any]], NDArray[Any]]
) -> NDArray[Any]:
    """Returns the flat values that a conversion returns for flat values. A value that stands for
    all along an axis is converted once, and repeated as it is copied.
    """
    if 0 not in values.strides:
        return convert(values.reshape(-1))
    distinct = values
    for axis, stride in enumerate(values.strides):
        if not stride:
            distinct = distinct.take([0], axis)
    results = convert(distinct.reshape(-1)).reshape(distinct.shape)
    return np.broadcast_to(results, values.shape).reshape(-1)


def _integers(values: NDArray[Any], field: str) -> NDArray[np.int64]:
    # All other integers fit.
    if values.dtype == np.uint64 and values.max() > np.iinfo(np.int64).max:
        raise TensorError(field, values.max(), "an integer that fits int64")
    return values.astype(np.int64, copy=False)


def _floats(values: NDArray[Any], field: str) -> NDArray[np.float32]:
    # A double beyond float32 becomes infinite without an error. An infinity that was sent is left
    # to the checks of the model's inputs.
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32, copy=False)
    if values.dtype.kind == "f" and values.itemsize > numbers.itemsize:
        lost = np.isinf(numbers) & np.isfinite(values)
        if lost.any():
            raise TensorError(field, values[lost][0], "a number that fits float32")
    return numbers


def _whole_numbers(array: NDArray[Any], name: str, axes: int) -> NDArray[np.int64]:
    """Returns the integers of a tensor with this number of axes."""
    if array.dtype.kind not in "iu" or array.ndim != axes:
        expected = f"a tensor of integers with {axes} axes"
        raise TensorError(input_field(name), shown_array(array), expected)
    return array.astype(np.int64, copy=False)


def _dtype_name(array: NDArray[Any]) -> str:
    if array.dtype.kind in "OSU":
        return "string"
    return str(array.dtype.name)

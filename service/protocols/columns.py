"""Named tensors to the columns of a request.

An input is sent in one of three forms, whatever the model took in training:

  dense    NAME [n, ...]
  ragged   NAME [m] (values), NAME_1 [n + 1] (row splits)
  sparse   NAME [m, 2] (indices), NAME_1 [m] (values), NAME_2 [2] (dense shape)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format.identifiers import identifier
from service.codec.columns import NESTING_MAX, shown
from service.config import ServiceSettings
from service.engine.calls import check_offsets
from service.engine.validation import SHOWN_CHARS, at_most, check_queries, name_hint
from service.errors import FieldViolation, InvalidArgument
from service.protocols.signatures import EITHER, WEIGHTS, K, Signature, Tensor, TensorInput

AXES_MAX = NESTING_MAX
"""Maximum number of axes of a tensor, as of a value in JSON."""
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
_EMPTY: Mapping[str, type[Any]] = {
    "string": object,
    "float32": np.float32,
    "int32": np.int64,
    "int64": np.int64,
    EITHER: np.int64,
}
"""The dtype of empty columns, by the type of an input."""


class DeclaredShapes:
    """The shapes that the tensors of a request declare, which are checked before anything of their
    size is allocated.
    """

    def __init__(self, count: int, settings: ServiceSettings) -> None:
        """Begins the check of `count` tensors.

        Raises:
          TooLarge: There are more than the limit.
        """
        at_most(settings, "max_features", count, "inputs")
        self._settings = settings
        self._values = 0

    def checked(self, shape: Sequence[Any], field: str) -> tuple[int, ...]:
        """Returns the shape of the next tensor.

        Args:
          shape: The sizes of the axes that the client sent.
          field: The field of the tensor, as errors name it.

        Raises:
          InvalidArgument: It has too many axes, or a size that is no integer of at least 0.
          TooLarge: The tensors so far have more values than the limit.
        """
        if len(shape) > AXES_MAX:
            axes = f"{len(shape)} axes"
            raise InvalidArgument.of_field(f"{field}.shape", axes, f"at most {AXES_MAX}", "has")
        for size in shape:
            # `isinstance` would accept true and false, which are integers in Python.
            if type(size) is not int or size < 0:
                expected = "an integer of at least 0"
                raise InvalidArgument.of_field(f"{field}.shape", shown(size), expected, "holds")
        # numpy has no array whose other sizes multiply beyond its limit, even if one is 0.
        at_most(self._settings, "max_values", math.prod([size for size in shape if size]), field)
        self._values += math.prod(shape)
        at_most(self._settings, "max_values", self._values, "inputs")
        return tuple(shape)


class ColumnReader:
    """Reads the columns of one request.

    Attributes:
      rows: The number of rows of the inputs so far; None: none was read.
    """

    def __init__(self, signature: Signature, arrays: SentArrays, settings: ServiceSettings) -> None:
        """Creates the reader of the tensors that were sent for a signature."""
        self.rows: int | None = None
        self._first = ""
        self._arrays = arrays
        self._settings = settings
        self._signature = signature
        self._tensors = {tensor_input.tensor for tensor_input in signature.inputs}
        self._read = set[str]()

    def column(self, tensor_input: TensorInput) -> Column:
        """Returns the column of an input whose first tensor was sent.

        Raises:
          InvalidArgument: Its tensors do not fit the input, or each other, or other inputs.
        """
        values, offsets, rows = self._values(tensor_input.tensor)
        # The first input says how many rows there are. All later ones must have as many.
        if self.rows is None:
            self._first = tensor_input.tensor
            check_queries(rows, self._settings)
            self.rows = rows
        elif rows != self.rows:
            value = f"{rows} rows"
            raise InvalidArgument(
                f"input {tensor_input.tensor!r} has {value} and {self._first!r} has "
                f"{self.rows}; all inputs must have the same number of rows",
                FieldViolation(f"inputs.{tensor_input.tensor}", value, "that of the other inputs"),
            )
        if offsets is None:
            offsets = self._dense_offsets(tensor_input, values, rows)

        weights = None
        name = f"{tensor_input.tensor}{WEIGHTS}"
        # In whichever of the three forms: only the order of the weights counts.
        if tensor_input.weighted and name in self._arrays:
            weight_values, _, _ = self._values(name)
            weights = _flat(weight_values, "float32", name)
            if weights.size != values.size:
                value = f"{weights.size} weights for the {values.size} values of "
                value += repr(tensor_input.tensor)
                raise input_error(name, value, "one weight for each value", "has")
        column_values = _flat(values, tensor_input.dtype, tensor_input.tensor)
        return Column(column_values, offsets, weights)

    def k(self) -> int:
        """Returns the number of neighbors: a number, or the same for each row.

        Raises:
          InvalidArgument: It is no positive integer, or differs between rows.
        """
        # Clients of protocols that batch rows repeat it for each of them.
        array = self._take(K)
        is_integer = array.dtype.kind in "iu" and array.size > 0
        if not is_integer or (array != array.flat[0]).any():
            raise input_error(K, _describe(array), "one integer, or the same for each row,")
        k = int(array.flat[0])
        if k < 1:
            raise input_error(K, k, "1 or more")
        return k

    def check_unread(self, unread_inputs: tuple[str, ...]) -> None:
        """Rejects tensors that no input takes.

        Args:
          unread_inputs: Inputs of the model that no tower reads, which may be sent.

        Raises:
          InvalidArgument: A tensor is unknown.
        """
        # "_1" and "_2" are the further tensors of a ragged or sparse input.
        ignored = {f"{identifier(name)}{end}" for name in unread_inputs for end in ("", "_1", "_2")}
        for name in self._arrays:
            if name not in self._read and name not in ignored:
                names = [tensor.name for tensor in self._signature.tensors]
                shown_name = name[:SHOWN_CHARS]
                raise InvalidArgument(
                    f"input {shown_name!r} is unknown to signature "
                    f"{self._signature.name!r}; {name_hint(name, names, 'takes')}",
                    FieldViolation("inputs", shown_name, "an input of the signature"),
                )

    def _take(self, name: str) -> NDArray[Any]:
        array = self._arrays[name]
        if isinstance(array, Ragged):
            raise InvalidArgument(
                f"input {name!r} holds lists of different lengths",
                FieldViolation(f"inputs.{name}", "lists of different lengths", "a tensor"),
            )
        self._read.add(name)
        return array

    def _has(self, name: str) -> bool:
        """Returns whether a further tensor of an input was sent, and is no input of its own."""
        return name in self._arrays and name not in self._tensors

    def _values(self, name: str) -> tuple[NDArray[Any], NDArray[np.int64] | None, int]:
        """Returns the values in the tensors of an input, their offsets, and the number of rows;
        offsets None: each row of a dense tensor has the same number of values.

        Raises:
          InvalidArgument: The tensors are in none of the three forms, or do not fit each other.
        """
        # The further tensors that were sent decide the form: only sparse inputs have a third one.
        if self._has(f"{name}_2"):
            if not self._has(f"{name}_1"):
                raise InvalidArgument(
                    f"input {name!r} is sparse, and its values {name + '_1'!r} are missing",
                    FieldViolation(f"inputs.{name}_1", "missing", "the values of a sparse input"),
                )
            values = self._take(f"{name}_1")
            offsets = self._sparse_offsets(name, values)
            return values, offsets, offsets.size - 1
        ragged = self._arrays[name]
        if isinstance(ragged, Ragged):
            self._read.add(name)
            return ragged.values, ragged.offsets, ragged.offsets.size - 1
        values = self._take(name)
        if self._has(f"{name}_1"):
            splits = self._take(f"{name}_1")
            offsets = _whole_numbers(splits, f"{name}_1", 1)
            if values.ndim != 1:
                value = _describe(values)
                raise InvalidArgument(
                    f"input {name!r} is {value}; flat values were expected beside the "
                    f"row splits {name + '_1'!r}",
                    FieldViolation(f"inputs.{name}", value, "a flat tensor beside row splits"),
                )
            check_offsets(offsets, max(0, offsets.size - 1), values.size, f"{name}_1")
            return values, offsets, offsets.size - 1
        if values.ndim == 0:
            expected = "a tensor whose first axis counts the rows"
            raise input_error(name, _describe(values), expected)
        return values, None, len(values)

    def _sparse_offsets(self, name: str, values: NDArray[Any]) -> NDArray[np.int64]:
        """Returns the offsets of the rows of a sparse tensor. Within a row, the order of the values
        counts, and not their second index.

        Raises:
          InvalidArgument: The tensors have other shapes, or an index is outside or out of order.
        """
        indices = _whole_numbers(self._take(name), name, 2)
        shape = _whole_numbers(self._take(f"{name}_2"), f"{name}_2", 1)
        if values.ndim != 1 or indices.shape != (values.size, 2) or shape.size != 2:
            value = f"indices are {_describe(indices)}, values {_describe(values)} and the "
            value += f"dense shape {_describe(shape)}"
            raise InvalidArgument(
                f"input {name!r}: {value}; [m, 2], [m] and [2] were expected",
                FieldViolation(f"inputs.{name}", value, "a sparse tensor of [m, 2], [m] and [2]"),
            )
        # Before anything of that size is allocated: a dense shape may claim any number of rows.
        rows = int(shape[0])
        check_queries(rows, self._settings)
        row_indices = indices[:, 0]
        if row_indices.size and (row_indices.min() < 0 or row_indices.max() >= rows):
            raise InvalidArgument(
                f"input {name!r} has an index outside of its {rows} rows",
                FieldViolation(f"inputs.{name}", f"{rows} rows", "an index of a row"),
            )
        if (row_indices[1:] < row_indices[:-1]).any():
            raise InvalidArgument(
                f"input {name!r}: the indices must be in the order of the rows",
                FieldViolation(f"inputs.{name}", "indices", "the order of the rows"),
            )
        return row_indices.searchsorted(np.arange(rows + 1)).astype(np.int64)

    def _dense_offsets(
        self, tensor_input: TensorInput, values: NDArray[Any], rows: int
    ) -> NDArray[np.int64] | None:
        """Returns the offsets of a dense tensor; None: the input has one value for each row.

        Raises:
          InvalidArgument: The tensor has another shape than the input.
        """
        width = math.prod(values.shape[1:])
        is_other_width = tensor_input.shape is not None and math.prod(tensor_input.shape) != width
        if is_other_width and not tensor_input.adjusted:
            expected = shown_tensor(tensor_input.tensors[0])
            raise input_error(tensor_input.tensor, _describe(values), expected)
        if tensor_input.shape == ():
            return None
        # Of a list, the number of rows is known by the offsets.
        return np.arange(rows + 1, dtype=np.int64) * width


def _whole_numbers(array: NDArray[Any], name: str, axes: int) -> NDArray[np.int64]:
    """Returns the integers of a tensor with this number of axes."""
    if array.dtype.kind not in "iu" or array.ndim != axes:
        value = _describe(array)
        raise InvalidArgument(
            f"input {name!r} is {value}; integers with {axes} axes were expected",
            FieldViolation(f"inputs.{name}", value, f"a tensor of integers with {axes} axes"),
        )
    return array.astype(np.int64, copy=False)


def _flat(values: NDArray[Any], dtype: str, name: str) -> NDArray[Any]:
    """Returns the values of a tensor, flat and as columns have them; see `_convert`."""
    # A value that stands for all along an axis is converted once, and repeated as it is copied.
    distinct = values
    for axis, stride in enumerate(values.strides):
        if not stride and values.size:
            distinct = distinct.take([0], axis)
    converted = _convert(distinct.reshape(-1), dtype, name).reshape(distinct.shape)
    return np.broadcast_to(converted, values.shape).reshape(-1)


def _convert(values: NDArray[Any], dtype: str, name: str) -> NDArray[Any]:
    """Returns flat values as columns have them: int64, float32 or objects that are str.

    Raises:
      InvalidArgument: They are of another kind, or do not fit.
    """
    # An empty list in JSON has no kind.
    if not values.size:
        return np.empty(0, _EMPTY[dtype])
    kind = values.dtype.kind
    if dtype in ("string", EITHER) and kind in "OSU":
        return _texts(values, name)
    if dtype in ("int32", "int64", EITHER) and kind in "iu":
        # All other integers fit.
        if values.dtype == np.uint64 and values.max() > np.iinfo(np.int64).max:
            largest = values.max()
            raise InvalidArgument(
                f"input {name!r} holds {largest}, which does not fit int64",
                FieldViolation(f"inputs.{name}", str(largest), "an int64"),
            )
        return values.astype(np.int64, copy=False)
    if dtype == "float32" and kind in "fiu":
        # A double beyond float32 becomes infinite without an error. An infinity that was sent is
        # left to the checks of the model's inputs.
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float32, copy=False)
        if kind == "f" and values.itemsize > numbers.itemsize:
            lost = np.isinf(numbers) & np.isfinite(values)
            if lost.any():
                number = values[lost][0]
                raise InvalidArgument(
                    f"input {name!r} holds {number}, which exceeds float32",
                    FieldViolation(f"inputs.{name}", str(number), "a float32"),
                )
        return numbers
    raise input_error(name, _dtype_name(values), dtype)


def _texts(values: NDArray[Any], name: str) -> NDArray[Any]:
    try:
        texts = [_text(value) for value in values.tolist()]
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"input {name!r} holds bytes that are not UTF-8",
            FieldViolation(f"inputs.{name}", "bytes", "UTF-8"),
        ) from None
    return np.array(texts, dtype=object)


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return value


def _dtype_name(array: NDArray[Any]) -> str:
    if array.dtype.kind in "OSU":
        return "string"
    return str(array.dtype.name)


def _describe(array: NDArray[Any]) -> str:
    return f"{_dtype_name(array)} of shape {list(array.shape)}"


def input_error(name: str, value: object, expected: str, verb: str = "is") -> InvalidArgument:
    """Returns the error of an input: "input 'user' is float32; int64 was expected".

    Args:
      name: The name of its tensor.
      value: See `ServiceError.of_field`.
      expected: See `ServiceError.of_field`.
      verb: See `ServiceError.of_field`.
    """
    return InvalidArgument(
        f"input {name!r} {verb} {value}; {expected} was expected",
        FieldViolation(f"inputs.{name}", str(value), expected.removesuffix(",")),
    )


def shown_tensor(tensor: Tensor) -> str:
    """Returns a tensor as error messages describe it."""
    return f"{tensor.dtype} of shape {list(tensor.shape)}"

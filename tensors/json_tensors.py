"""Tensors in JSON to arrays: lists of scalars, whose shape and type are those of the lists.

Source: tensorflow_serving/util/json_tensor.cc and
https://www.tensorflow.org/tfx/serving/api_rest.
"""

from __future__ import annotations

import base64
import binascii
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of
from tensors.arrays import AXES_MAX, Limits, Ragged, at_most, typed_array
from tensors.errors import NAME_CHARS_MAX, TensorError, input_field, shown_json
from tensors.examples import Features

_BASE64 = "b64"
"""The only key of an object that stands for bytes."""


def unnested(value: Any, field: str) -> tuple[list[Any], list[list[int]]]:
    """Returns the values in nested lists.

    Args:
      value: A value of JSON.
      field: The field that has it, for errors.

    Returns:
      The values, and for each level, the outermost first, the lengths of its lists; no level: the
      value is no list. Of values that are lists, the first is none.

    Raises:
      TensorError: A level has lists and values, or there are more levels than a tensor has axes.
    """
    # One level after the other: recursion would cost a call for each list.
    values = [value]
    levels: list[list[int]] = []
    while values and type(values[0]) is list:
        if len(levels) == AXES_MAX or set(map(type, values)) != {list}:
            value = "lists beside values, or lists that are nested too deep"
            raise TensorError(field, value, "a list of lists, or of values")
        levels.append(list(map(len, values)))
        if len(values) == 1:
            values = values[0]
        else:
            values = list(chain.from_iterable(values))
    return values, levels


def read_rows(rows: Any, limits: Limits) -> dict[str, NDArray[Any] | Ragged]:
    """Returns the tensors of `instances`: a list of one value, or one object of values, for each
    row. An only input without a name is "".

    Returns:
      For each input an array whose first axis is the rows; Ragged, if its lists have different
      lengths.

    Raises:
      TensorError: The rows have different inputs, or an input has values of no tensor; names it.
      TooMuch: There are more inputs than the limit.
    """
    if not isinstance(rows, list) or not rows:
        raise TensorError("instances", shown_json(rows), "a list of rows")
    if not _is_object(rows[0]):
        # A row that is no object is the value of the only input.
        if any(map(_is_object, rows)):
            raise TensorError("instances", "values beside objects", "one of them")
        return {"": _tensor(rows, "")}
    # Columns of different lengths would pair values of different rows.
    names = rows[0].keys()
    at_most(limits, "max_features", len(names), "instances")
    for number, row in enumerate(rows):
        if not _is_object(row) or row.keys() != names:
            raise TensorError(
                f"instances[{number}]", "other inputs", "an object as instances[0] is"
            )
    return {name: _tensor([row[name] for row in rows], name) for name in names}


def read_columns(inputs: Any, limits: Limits) -> dict[str, NDArray[Any] | Ragged]:
    """Returns the tensors of `inputs`: an object of values, or the value of the only input, whose
    name is "".

    Returns:
      For each input an array of the shape of its lists; Ragged, if they have different lengths.

    Raises:
      TensorError: An input has values of no tensor; names it.
      TooMuch: There are more inputs than the limit.
    """
    if not _is_object(inputs):
        return {"": _tensor(inputs, "")}
    at_most(limits, "max_features", len(inputs), "inputs")
    return {name: _tensor(value, name) for name, value in inputs.items()}


def read_features(value: Any, field: str) -> Features:
    """Returns the features of an example, as TensorFlow Serving writes them in `tf.Example`.

    Args:
      value: An object with a scalar, or a list of scalars, for each feature.
      field: The field that has it, for errors.

    Raises:
      TensorError: It is no such object; names the feature.
    """
    if not isinstance(value, dict):
        raise TensorError(field, shown_json(value), "a JSON object")
    features = {}
    for name, feature in value.items():
        # A scalar stands for a list of one value.
        values: list[Any] = [feature]
        if isinstance(feature, list):
            values = feature
        scalars = _scalars(values, f"{field}.{name[:NAME_CHARS_MAX]}")
        # `tf.Example` has no booleans.
        if bool in set(map(type, scalars)):
            scalars = [_integer_of_bool(scalar) for scalar in scalars]
        features[name] = scalars
    return features


def json_value(array: NDArray[Any]) -> Any:
    """Returns an array in the form that is written as JSON: strings as lists, numbers as a
    contiguous array.
    """
    if array.dtype.hasobject:
        return array.tolist()
    return np.ascontiguousarray(array)


def _tensor(value: Any, name: str) -> NDArray[Any] | Ragged:
    """Returns the array of a scalar or of lists of equal lengths, or lists of scalars of different
    lengths.
    """
    field = input_field(name)
    values, levels = unnested(value, field)
    array = typed_array(_scalars(values, field), field)
    are_ragged = [len(set(lengths)) > 1 for lengths in levels]
    # The lists of a ragged input have different lengths at its second axis alone.
    if are_ragged == [False, True]:
        return Ragged(array, offsets_of(levels[1]))
    if any(are_ragged):
        raise TensorError(field, "lists of different lengths", "a list of equally long lists")
    # Lists within an empty list have no level, which ends the shape.
    return array.reshape([lengths[0] for lengths in levels])


def _integer_of_bool(scalar: Any) -> Any:
    if isinstance(scalar, bool):
        return int(scalar)
    return scalar


def _is_object(value: Any) -> bool:
    """Returns whether a value is an object, and does not stand for bytes."""
    return isinstance(value, dict) and value.keys() != {_BASE64}


def _scalars(values: list[Any], field: str) -> list[Any]:
    """Returns the scalars that JSON values stand for."""
    if set(map(type, values)) <= {str, int, float, bool}:
        return values
    return [_scalar(value, field) for value in values]


def _scalar(value: Any, field: str) -> Any:
    if isinstance(value, str | int | float):
        return value
    if not isinstance(value, dict) or _is_object(value):
        raise TensorError(field, shown_json(value), "a value")
    try:
        return base64.b64decode(value[_BASE64], validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise TensorError(field, shown_json(value), "base64") from None

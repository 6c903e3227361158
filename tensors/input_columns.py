"""The inputs of a signature in the tensors of a request, as the columns that features read."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from bundle.features.columns import Column
from tensors.errors import TensorError, input_field
from tensors.input_values import InputTensors, InputValues, converted, shown_array
from tensors.signatures import WEIGHTS, TensorInput


def feature_names(inputs: Iterable[TensorInput]) -> dict[str, str]:
    """Returns the name that each tensor of inputs, and of their weights, has as a feature of
    `tf.Example`.
    """
    names = {}
    for tensor_input in inputs:
        names[tensor_input.tensor] = tensor_input.name
        if tensor_input.weighted:
            weights = f"{tensor_input.tensor}{WEIGHTS}"
            names[weights] = weights
    return names


def input_column(tensor_input: TensorInput, values: InputValues, reader: InputTensors) -> Column:
    """Returns the column of an input, with the weights that were sent beside its values.

    Args:
      tensor_input: The input.
      values: Its values.
      reader: The tensors of the request.

    Raises:
      TensorError: The values or the weights do not fit the input.
    """
    name = tensor_input.tensor
    offsets = values.offsets
    if offsets is None:
        width = math.prod(values.values.shape[1:])
        shape = tensor_input.shape
        if shape is not None and math.prod(shape) != width and not tensor_input.adjusted:
            expected = str(tensor_input.tensors[0])
            raise TensorError(input_field(name), shown_array(values.values), expected)
        # Of a list, the number of rows is known by the offsets.
        if shape != ():
            offsets = np.arange(values.rows + 1, dtype=np.int64) * width

    weights = None
    weights_name = f"{name}{WEIGHTS}"
    # In whichever of the three forms: only the order of the weights counts.
    if tensor_input.weighted and weights_name in reader.arrays:
        weights = converted(reader.values(weights_name).values, "float32", weights_name)
        if weights.size != values.values.size:
            value = f"{weights.size} weights for the {values.values.size} values of {name!r}"
            raise TensorError(input_field(weights_name), value, "one weight for each value")
    return Column(converted(values.values, tensor_input.dtype, name), offsets, weights)

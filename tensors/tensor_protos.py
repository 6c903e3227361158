"""TensorFlow's `TensorProto` to arrays, and arrays to `TensorProto`.

Source: tensorflow/core/framework/tensor.cc, Tensor::FromProto.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensors.arrays import DeclaredShapes, Limits
from tensors.errors import TensorError, input_field
from tensors.stubs import tensorflow_serving_pb2 as pb


class _Values(NamedTuple):
    """The form of the values of a tensor: all of them in `tensor_content`, or in the field of their
    type, whose last value then stands for all that are missing.

    Attributes:
      dtype: The dtype of the numbers in either form.
      field: The name of the field.
    """

    dtype: np.dtype[Any]
    field: str


_VALUES: Mapping[int, _Values] = {
    pb.DT_FLOAT: _Values(np.dtype("<f4"), "float_val"),
    pb.DT_DOUBLE: _Values(np.dtype("<f8"), "double_val"),
    pb.DT_INT32: _Values(np.dtype("<i4"), "int_val"),
    pb.DT_UINT8: _Values(np.dtype("u1"), "int_val"),
    pb.DT_INT16: _Values(np.dtype("<i2"), "int_val"),
    pb.DT_INT8: _Values(np.dtype("i1"), "int_val"),
    pb.DT_STRING: _Values(np.dtype(object), "string_val"),
    pb.DT_INT64: _Values(np.dtype("<i8"), "int64_val"),
    pb.DT_BOOL: _Values(np.dtype(bool), "bool_val"),
    # The bits of the numbers, which numpy does not have.
    pb.DT_BFLOAT16: _Values(np.dtype("<u2"), "half_val"),
    pb.DT_UINT16: _Values(np.dtype("<u2"), "int_val"),
    pb.DT_HALF: _Values(np.dtype("<f2"), "half_val"),
    pb.DT_UINT32: _Values(np.dtype("<u4"), "uint32_val"),
    pb.DT_UINT64: _Values(np.dtype("<u8"), "uint64_val"),
}
_VALUE_FIELDS = {"tensor_content", *[values.field for values in _VALUES.values()]}
"""The fields of a tensor that hold values."""
DTYPES: Mapping[str, pb.DataType] = {
    "float32": pb.DT_FLOAT,
    "int32": pb.DT_INT32,
    "int64": pb.DT_INT64,
    "string": pb.DT_STRING,
    "object": pb.DT_STRING,
}
"""The dtypes of the tensors of signatures, and of their arrays."""


def read_tensors(tensors: Mapping[str, pb.TensorProto], limits: Limits) -> dict[str, NDArray[Any]]:
    """Returns the arrays of tensors, in the order of the map.

    Args:
      tensors: The messages by name.
      limits: How much all of them may hold.

    Returns:
      Arrays of the declared shapes: numbers, read-only where one value stands for all; strings are
      objects that are bytes, and bfloat16 is float32.

    Raises:
      TensorError: A tensor has an unknown dtype, or other values than its shape; names it.
      TooMuch: There are more tensors or values than the limits; nothing was allocated.
    """
    # The shapes of all tensors are checked first. One value in the field of its type stands for
    # any number of values, so that a small message can declare gigabytes.
    declared = DeclaredShapes(len(tensors), limits)
    shapes = {}
    for name, tensor in tensors.items():
        field = input_field(name)
        if tensor.tensor_shape.unknown_rank:
            raise TensorError(f"{field}.shape", "of unknown rank", "a known size")
        shapes[name] = declared.checked([dim.size for dim in tensor.tensor_shape.dim], field)
    return {name: _array(tensor, shapes[name], name) for name, tensor in tensors.items()}


def fill_tensor(tensor: pb.TensorProto, array: NDArray[Any]) -> None:
    """Sets an empty message.

    Args:
      tensor: The message.
      array: float32, int64, or objects that are str.
    """
    tensor.dtype = DTYPES[array.dtype.name]
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    flat = array.reshape(-1).tolist()
    if array.dtype.hasobject:
        flat = [text.encode() for text in flat]
    # Clients read these fields, rather than tensor_content, of the responses of TensorFlow Serving.
    getattr(tensor, _VALUES[tensor.dtype].field).extend(flat)


def _array(tensor: pb.TensorProto, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    field = input_field(name)
    values = _VALUES.get(tensor.dtype)
    if values is None:
        names = ", ".join([pb.DataType.Name(dtype) for dtype in _VALUES])
        raise TensorError(field, f"dtype {tensor.dtype}", f"one of {names}")
    # TensorFlow would ignore values in the field of another type, and read zeros.
    accepted = [values.field]
    if not values.dtype.hasobject:
        accepted.append("tensor_content")
    value_fields = [part.name for part, _ in tensor.ListFields() if part.name in _VALUE_FIELDS]
    if len(value_fields) > 1 or not set(accepted).issuperset(value_fields):
        raise TensorError(field, f"values in {' and '.join(value_fields)}", " or ".join(accepted))

    count = math.prod(shape)
    content = tensor.tensor_content
    if content:
        size = count * values.dtype.itemsize
        if len(content) != size:
            value = f"{len(content)} bytes in tensor_content"
            raise TensorError(field, value, f"{size} for {count} values")
        flat = np.frombuffer(content, values.dtype)
    else:
        flat = _field_values(tensor, values, count, field)
    # A bfloat16 is the upper half of a float32.
    if tensor.dtype == pb.DT_BFLOAT16:
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(shape)


def _field_values(tensor: pb.TensorProto, values: _Values, count: int, field: str) -> NDArray[Any]:
    """Returns the values of a tensor that are in the field of their type; see `_Values`."""
    listed = list(getattr(tensor, values.field))
    if len(listed) > count:
        value = f"{len(listed)} values in {values.field}"
        raise TensorError(field, value, f"at most {count}, as in its shape")
    # Without any value, all are zero or empty, as in TensorFlow.
    if not listed and values.dtype.hasobject:
        listed = [b""]
    elif not listed:
        listed = [0]
    # Halves travel as their bits.
    sent_dtype = values.dtype
    if values.field == "half_val":
        sent_dtype = np.dtype(np.uint16)
    try:
        # Of a list, numpy rejects an integer that does not fit. Of the field, it takes the lower
        # bits.
        array = np.array(listed, sent_dtype).view(values.dtype)
    except OverflowError:
        raise TensorError(field, "a larger integer", f"one that fits {sent_dtype}") from None
    if len(array) == count:
        return array
    # One value takes the memory of one, however many it stands for.
    if len(array) == 1:
        return np.broadcast_to(array, count)
    return np.concatenate([array, np.repeat(array[-1:], count - len(array))])

"""Tensors of the Open Inference Protocol in its three forms: JSON, bytes, and the fields of a
message.

The declared shape of a tensor is compared with the size of its elements before an array is
allocated.

Sources: specification/protocol/inference_rest.md of
https://github.com/kserve/open-inference-protocol; for bytes, docs/protocol/extension_binary_data.md
of https://github.com/triton-inference-server/server.
"""

from __future__ import annotations

import math
import struct
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensors.errors import TensorError, input_field, shown_json
from tensors.json_tensors import unnested
from tensors.stubs import open_inference_pb2 as pb

BYTES = "BYTES"
_OBJECT = np.dtype(object)
_LENGTH = struct.Struct("<I")
"""The length in front of each element of a BYTES tensor."""


class _Datatype(NamedTuple):
    """A datatype of the protocol.

    Attributes:
      dtype: The dtype of its arrays; object for strings.
      contents: The field of a message that holds its elements; "": none does.
    """

    dtype: np.dtype[Any]
    contents: str


_DATATYPES = {
    "BOOL": _Datatype(np.dtype(np.bool_), "bool_contents"),
    "INT8": _Datatype(np.dtype("<i1"), "int_contents"),
    "INT16": _Datatype(np.dtype("<i2"), "int_contents"),
    "INT32": _Datatype(np.dtype("<i4"), "int_contents"),
    "INT64": _Datatype(np.dtype("<i8"), "int64_contents"),
    "UINT8": _Datatype(np.dtype("<u1"), "uint_contents"),
    "UINT16": _Datatype(np.dtype("<u2"), "uint_contents"),
    "UINT32": _Datatype(np.dtype("<u4"), "uint_contents"),
    "UINT64": _Datatype(np.dtype("<u8"), "uint64_contents"),
    "FP16": _Datatype(np.dtype("<f2"), ""),
    "FP32": _Datatype(np.dtype("<f4"), "fp32_contents"),
    "FP64": _Datatype(np.dtype("<f8"), "fp64_contents"),
    BYTES: _Datatype(_OBJECT, "bytes_contents"),
}
NAMES = {datatype.dtype: name for name, datatype in _DATATYPES.items()}
"""The protocol's names of dtypes."""
_KINDS: dict[str, tuple[set[type], str]] = {
    "b": ({bool}, "true or false"),
    "i": ({int}, "an integer"),
    "u": ({int}, "an integer"),
    "f": ({int, float}, "a number"),
    "O": ({str}, "a string"),
}
"""The Python types that JSON elements may have, by the kind of a dtype."""


class InputTensor(NamedTuple):
    """The declaration of one tensor in a request.

    Attributes:
      field: The field of the tensor, as errors name it.
      datatype: The protocol's name of its dtype.
      dtype: The dtype of its array; object for strings.
      shape: The size of each axis.
      size: The number of elements.
    """

    field: str
    datatype: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int

    def __str__(self) -> str:
        return f"{self.datatype} of shape {list(self.shape)}"


def input_tensor(name: str, datatype: str, shape: tuple[int, ...]) -> InputTensor:
    """Returns the declaration of a tensor.

    Args:
      name: The name of the tensor.
      datatype: The datatype that the client sent.
      shape: The sizes of the axes.

    Raises:
      TensorError: The datatype is unknown.
    """
    field = input_field(name)
    if datatype not in _DATATYPES:
        expected = f"one of {', '.join(_DATATYPES)}"
        raise TensorError(f"{field}.datatype", shown_json(datatype), expected)
    dtype = _DATATYPES[datatype].dtype
    return InputTensor(field, datatype, dtype, shape, math.prod(shape))


def read_bytes(tensor: InputTensor, data: bytes | memoryview) -> NDArray[Any]:
    """Returns a tensor whose elements were sent as bytes.

    Args:
      tensor: The declaration of the tensor.
      data: The elements, little-endian and in row-major order. Each element of a BYTES tensor
        follows its length.

    Returns:
      [shape] of the tensor's dtype. Numbers are not copied.

    Raises:
      TensorError: There are fewer or more bytes than the shape needs, or a string is not UTF-8.
    """
    if tensor.dtype == _OBJECT:
        return _array(tensor, _strings(tensor, memoryview(data)))
    expected = tensor.size * tensor.dtype.itemsize
    if len(data) != expected:
        raise TensorError(tensor.field, f"{len(data)} bytes", f"{expected} for {tensor}")
    array = np.frombuffer(data, tensor.dtype)
    # numpy takes any byte for a bool.
    if tensor.dtype == np.bool_ and np.count_nonzero(array.view(np.uint8) > 1):
        raise TensorError(tensor.field, "a byte other than 0 and 1", "one of both")
    return array.reshape(tensor.shape)


def read_json(tensor: InputTensor, data: Any) -> NDArray[Any]:
    """Returns a tensor whose elements were sent as JSON.

    Args:
      tensor: The declaration of the tensor.
      data: A list of all elements in row-major order, or lists nested as the shape says.

    Returns:
      [shape] of the tensor's dtype.

    Raises:
      TensorError: The lists do not have the shape, or an element is not of the datatype.
    """
    values, levels = unnested(data, tensor.field)
    if not levels:
        raise TensorError(f"{tensor.field}.data", shown_json(data), "a list")
    if len(levels) > 1:
        shape = tensor.shape
        # Lists within empty lists have no level.
        if not values:
            shape = shape[: len(levels)]
        if [set(lengths) for lengths in levels] != [{size} for size in shape]:
            value = "nested lists of another shape"
            raise TensorError(
                tensor.field, value, f"the shape {list(tensor.shape)}, or a flat list"
            )
    _check_count(tensor, len(values))
    # numpy would convert what it can: "1" to 1, true to 1, 1.5 to 1.
    kinds, expected = _KINDS[tensor.dtype.kind]
    if not set(map(type, values)) <= kinds:
        wrong_value = next(value for value in values if type(value) not in kinds)
        expected = f"{expected} for {tensor.datatype}"
        raise TensorError(tensor.field, shown_json(wrong_value), expected)
    return _array(tensor, values)


def read_contents(tensor: InputTensor, contents: pb.InferTensorContents) -> NDArray[Any]:
    """Returns a tensor whose elements were sent as a field of a message.

    Args:
      tensor: The declaration of the tensor.
      contents: The message with the elements.

    Returns:
      [shape] of the tensor's dtype.

    Raises:
      TensorError: The elements are in the field of another datatype, are fewer or more than the
        shape needs, or do not fit the datatype.
    """
    expected = _DATATYPES[tensor.datatype].contents
    field = f"{tensor.field}.contents"
    if not expected:
        raise TensorError(field, tensor.datatype, "raw_input_contents")
    # Elements in another field would be ignored without a word.
    for descriptor, _ in contents.ListFields():
        if descriptor.name != expected:
            raise TensorError(field, descriptor.name, f"{expected} for {tensor.datatype}")
    values = list(getattr(contents, expected))
    _check_count(tensor, len(values))
    if tensor.dtype == _OBJECT:
        values = [_text(tensor, value) for value in values]
    return _array(tensor, values)


def bytes_of(array: NDArray[Any]) -> bytes:
    """Returns the elements of an output as bytes: strings, each after its length, or numbers."""
    if array.dtype != _OBJECT:
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    encoded = [text.encode() for text in array.reshape(-1).tolist()]
    return b"".join(chain.from_iterable((_LENGTH.pack(len(text)), text) for text in encoded))


def _strings(tensor: InputTensor, data: memoryview) -> list[str]:
    """Returns the elements of a BYTES tensor, each of which follows its length."""
    # Checked first, so that a shape of billions of elements does not begin a loop.
    min_bytes = tensor.size * _LENGTH.size
    if len(data) < min_bytes:
        raise TensorError(tensor.field, f"{len(data)} bytes", f"{min_bytes} or more for {tensor}")
    strings = []
    start = 0
    for number in range(tensor.size):
        end = start + _LENGTH.size
        if end > len(data):
            value = f"an end within the length of element {number}"
            raise TensorError(tensor.field, value, "the element")
        (length,) = _LENGTH.unpack_from(data, start)
        start = end
        end += length
        if end > len(data):
            value = f"{length} bytes for element {number}"
            raise TensorError(tensor.field, value, f"at most {len(data) - start}")
        strings.append(_text(tensor, bytes(data[start:end])))
        start = end
    if start < len(data):
        raise TensorError(tensor.field, f"{len(data) - start} bytes after its last element", "none")
    return strings


def _text(tensor: InputTensor, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise TensorError(tensor.field, "bytes that are not UTF-8", "UTF-8") from None


def _check_count(tensor: InputTensor, count: int) -> None:
    if count != tensor.size:
        raise TensorError(tensor.field, f"{count} elements", f"{tensor.size} for {tensor}")


def _array(tensor: InputTensor, values: list[Any]) -> NDArray[Any]:
    """Returns elements of the datatype's Python type as an array.

    Raises:
      TensorError: A number is beyond the datatype.
    """
    dtype = tensor.dtype
    expected = f"a number that fits {tensor.datatype}"
    # numpy turns a float that is too large into infinity, and rejects such an integer.
    if dtype.kind == "f":
        numbers = np.array(values, np.float64)
        # Infinities that the client sent stay: the engine decides about them.
        too_large = np.isfinite(numbers) & (np.abs(numbers) > np.finfo(dtype).max)
        if np.count_nonzero(too_large):
            raise TensorError(tensor.field, numbers[too_large][0], expected)
        return numbers.astype(dtype).reshape(tensor.shape)
    try:
        return np.array(values, dtype).reshape(tensor.shape)
    except OverflowError:
        bounds = np.iinfo(dtype)
        large_value = next(value for value in values if not bounds.min <= value <= bounds.max)
        raise TensorError(tensor.field, shown_json(large_value), expected) from None

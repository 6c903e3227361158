"""The tensors of the protocol in its three forms: JSON, bytes, and the fields of a message.

The declared shape of a tensor is compared with the size of its elements before an array is
allocated.

Sources: specification/protocol/inference_rest.md of
https://github.com/kserve/open-inference-protocol; for bytes, docs/protocol/extension_binary_data.md
of https://github.com/triton-inference-server/server.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.codec.columns import SHOWN_MAX, check_list, shown
from service.errors import InvalidArgument
from tensors.stubs import open_inference_pb2 as pb

BYTES = "BYTES"
_OBJECT = np.dtype(object)
_LENGTH = struct.Struct("<I")
"""The length in front of each element of a BYTES tensor."""
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    BYTES: _OBJECT,
}
_DATATYPES = {dtype: name for name, dtype in _DTYPES.items()}
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""The field of a message that holds the elements of a datatype. FP16 has none."""
_KINDS: dict[str, tuple[set[type], str]] = {
    "b": ({bool}, "true or false"),
    "i": ({int}, "an integer"),
    "u": ({int}, "an integer"),
    "f": ({int, float}, "a number"),
    "O": ({str}, "a string"),
}
"""The Python types that JSON elements may have, by the kind of a dtype."""


@dataclass(frozen=True)
class InputTensor:
    """The declaration of one tensor in a request.

    Attributes:
      name: The name, as the client sent it.
      datatype: A key of `_DTYPES`.
      shape: The size of each axis.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def field(self) -> str:
        """The field of the tensor, as errors name it."""
        return field_of(self.name)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array of the tensor; object for strings."""
        return _DTYPES[self.datatype]


def input_tensor(name: str, datatype: str, shape: tuple[int, ...]) -> InputTensor:
    """Checks the datatype of a tensor.

    Args:
      name: The name of the tensor.
      datatype: The datatype that the client sent.
      shape: The sizes of the axes.

    Raises:
      InvalidArgument: The datatype is unknown.
    """
    if datatype not in _DTYPES:
        expected = f"one of {', '.join(_DTYPES)}"
        raise InvalidArgument.of_field(f"{field_of(name)}.datatype", shown(datatype), expected)
    return InputTensor(name, datatype, shape)


def read_bytes(tensor: InputTensor, data: bytes | memoryview) -> NDArray[Any]:
    """Returns a tensor whose elements were sent as bytes.

    Args:
      tensor: The declaration of the tensor.
      data: The elements, little-endian and in row-major order. Each element of a BYTES tensor
        follows its length.

    Returns:
      [shape] of the tensor's dtype. Numbers are not copied.

    Raises:
      InvalidArgument: There are fewer or more bytes than the shape needs, or a string is not
        UTF-8.
    """
    if tensor.dtype == _OBJECT:
        return _array(tensor, _strings(tensor, memoryview(data)))
    expected = tensor.size * tensor.dtype.itemsize
    if len(data) != expected:
        raise _misfit(tensor, f"{len(data)} bytes", f"{expected} for {_description(tensor)}")
    array = np.frombuffer(data, tensor.dtype)
    # numpy takes any byte for a bool.
    if tensor.dtype == np.bool_ and np.count_nonzero(array.view(np.uint8) > 1):
        raise _misfit(tensor, "a byte other than 0 and 1", "one of them for BOOL", "holds")
    return array.reshape(tensor.shape)


def read_json(tensor: InputTensor, data: Any) -> NDArray[Any]:
    """Returns a tensor whose elements were sent as JSON.

    Args:
      tensor: The declaration of the tensor.
      data: A list of all elements in row-major order, or lists nested as the shape says.

    Returns:
      [shape] of the tensor's dtype.

    Raises:
      InvalidArgument: The lists do not have the shape, or an element is not of the datatype.
    """
    values = _flat(tensor, data)
    # numpy would convert what it can: "1" to 1, true to 1, 1.5 to 1.
    kinds, expected = _KINDS[tensor.dtype.kind]
    if not set(map(type, values)) <= kinds:
        wrong_value = next(value for value in values if type(value) not in kinds)
        raise _misfit(tensor, shown(wrong_value), f"{expected} for {tensor.datatype}", "holds")
    return _array(tensor, values)


def read_contents(tensor: InputTensor, contents: pb.InferTensorContents) -> NDArray[Any]:
    """Returns a tensor whose elements were sent as a field of a message.

    Args:
      tensor: The declaration of the tensor.
      contents: The message with the elements.

    Returns:
      [shape] of the tensor's dtype.

    Raises:
      InvalidArgument: The elements are in the field of another datatype, are fewer or more than
        the shape needs, or do not fit the datatype.
    """
    expected = _CONTENTS.get(tensor.datatype)
    field = f"{tensor.field}.contents"
    if expected is None:
        raise InvalidArgument.of_field(field, tensor.datatype, "raw_input_contents", "holds")
    # Elements in another field would be ignored without a word.
    for descriptor, _ in contents.ListFields():
        if descriptor.name != expected:
            name = f"{expected} for {tensor.datatype}"
            raise InvalidArgument.of_field(field, descriptor.name, name, "has")
    values = list(getattr(contents, expected))
    _check_count(tensor, len(values))
    if tensor.dtype == _OBJECT:
        values = [_text(tensor, value) for value in values]
    return _array(tensor, values)


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Returns the protocol's name of a dtype."""
    return _DATATYPES[dtype]


def bytes_of(array: NDArray[Any]) -> bytes:
    """Returns the elements of an output as bytes: strings, each after its length, or numbers."""
    if array.dtype != _OBJECT:
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    encoded = [text.encode() for text in array.reshape(-1).tolist()]
    parts = chain.from_iterable((_LENGTH.pack(len(text)), text) for text in encoded)
    return b"".join(parts)


def json_of(array: NDArray[Any]) -> Any:
    """Returns the elements of an output as a value that `codec.json` writes, in row-major order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype == _OBJECT:
        return flat.tolist()
    return flat


def _strings(tensor: InputTensor, data: memoryview) -> list[str]:
    """Returns the elements of a BYTES tensor, each of which follows its length."""
    # Checked first, so that a shape of billions of elements does not begin a loop.
    min_bytes = tensor.size * _LENGTH.size
    if len(data) < min_bytes:
        expected = f"{min_bytes} or more for {_description(tensor)}"
        raise _misfit(tensor, f"{len(data)} bytes", expected)
    texts = []
    start = 0
    for number in range(tensor.size):
        end = start + _LENGTH.size
        if end > len(data):
            raise _misfit(tensor, f"the length of element {number}", "the element", "ends in")
        (length,) = _LENGTH.unpack_from(data, start)
        start = end
        end += length
        if end > len(data):
            remaining_bytes = len(data) - start
            value = f"{length} bytes for element {number}"
            raise _misfit(tensor, value, f"at most {remaining_bytes}", "declares")
        texts.append(_text(tensor, bytes(data[start:end])))
        start = end
    if start < len(data):
        raise _misfit(tensor, f"{len(data) - start} bytes after its last element", "none")
    return texts


def _text(tensor: InputTensor, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _misfit(tensor, "bytes that are not UTF-8", "UTF-8", "holds") from None


def _flat(tensor: InputTensor, data: Any) -> list[Any]:
    """Returns the elements of a list that is flat, or of lists that are nested as the shape
    says.
    """
    values = check_list(data, f"{tensor.field}.data")
    if len(tensor.shape) < 2 or not (values and isinstance(values[0], list)):
        _check_count(tensor, len(values))
        return values

    # One level of the lists after the other: recursion would cost a call for each list.
    level = [values]
    for size in tensor.shape:
        for entries in level:
            if not isinstance(entries, list) or len(entries) != size:
                expected = f"the shape {list(tensor.shape)}"
                hint = "flat lists are accepted, too"
                raise InvalidArgument.of_field(
                    tensor.field, "nested lists of another shape", expected, "has", hint
                )
        level = list(chain.from_iterable(level))
    return level


def _check_count(tensor: InputTensor, count: int) -> None:
    if count != tensor.size:
        raise _misfit(tensor, f"{count} elements", f"{tensor.size} for {_description(tensor)}")


def _array(tensor: InputTensor, values: list[Any]) -> NDArray[Any]:
    """Returns elements of the datatype's Python type as an array.

    Raises:
      InvalidArgument: A number is beyond the datatype.
    """
    dtype = tensor.dtype
    # numpy turns a float that is too large into infinity, and rejects such an integer.
    if dtype.kind == "f":
        return _floats(tensor, np.array(values, np.float64)).reshape(tensor.shape)
    try:
        return np.array(values, dtype).reshape(tensor.shape)
    except OverflowError:
        limits = np.iinfo(dtype)
        large_value = next(value for value in values if not limits.min <= value <= limits.max)
        raise _overflow(tensor, large_value) from None


def _floats(tensor: InputTensor, values: NDArray[np.float64]) -> NDArray[Any]:
    # Infinities that the client sent stay: the engine decides about them.
    largest = np.finfo(tensor.dtype).max
    too_large = np.isfinite(values) & (np.abs(values) > largest)
    if np.count_nonzero(too_large):
        raise _overflow(tensor, values[too_large][0].item())
    return values.astype(tensor.dtype)


def _overflow(tensor: InputTensor, value: float) -> InvalidArgument:
    return _misfit(tensor, shown(value), f"a number that fits {tensor.datatype}", "holds")


def _misfit(tensor: InputTensor, value: str, expected: str, verb: str = "has") -> InvalidArgument:
    return InvalidArgument.of_field(tensor.field, value, expected, verb)


def field_of(name: str) -> str:
    """Returns the field of a tensor, as errors name it."""
    return f"inputs.{name[:SHOWN_MAX]}"


def _description(tensor: InputTensor) -> str:
    return f"{tensor.datatype} of shape {list(tensor.shape)}"

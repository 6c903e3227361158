"""Packed values of protobuf messages: numbers, ids and columns.

Packed numbers are little-endian, as are all processors that the service runs on: bytes become
read-only arrays without a copy, and arrays are written as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from service.errors import InvalidArgument

INT32 = np.dtype("<i4")
INT64 = np.dtype("<i8")
FLOAT32 = np.dtype("<f4")


def unpack(data: bytes, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Reads packed numbers, little-endian, from bytes.

    Returns:
      [number of bytes / size of the dtype] of that dtype, a read-only view.

    Raises:
      InvalidArgument: The last number is truncated; names the field `where`.
    """
    try:
        return np.frombuffer(data, dtype)
    except ValueError:
        expected = f"a multiple of {dtype.itemsize} ({dtype.name})"
        raise InvalidArgument.of_field(where, f"{len(data)} bytes", expected, "has") from None


def unpack_offsets(data: bytes, where: str) -> NDArray[np.int64]:
    """Reads offsets, [n + 1] int64; raises InvalidArgument if they are truncated."""
    # int32 on the wire, which no message can exceed; int64 in the engine, as in all its arrays.
    return unpack(data, INT32, where).astype(np.int64)


def read_column(message: Any, where: str) -> Column:
    """Reads a `Column`; raises InvalidArgument if it is empty or truncated."""
    # Most columns hold ids, and a request may have thousands of columns.
    ids = message.int64s
    if ids and len(ids) % INT64.itemsize == 0:
        values = np.frombuffer(ids, INT64)
    else:
        kind = message.WhichOneof("values")
        if kind is None:
            expected = "a list of int64s, int32s, float32s or strings"
            raise InvalidArgument.of_field(where, "no values", expected, "has")
        values = _values(message, kind, where)
    offsets = None
    weights = None
    if message.offsets:
        offsets = unpack_offsets(message.offsets, f"{where}.offsets")
    if message.weights:
        weights = unpack(message.weights, FLOAT32, f"{where}.weights")
    return Column(values, offsets, weights)


def read_ids(message: Any, where: str) -> NDArray[Any]:
    """Reads `Ids`: [m] int64, or [m] object holding str; raises InvalidArgument if there are none,
    or if they are truncated.
    """
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidArgument.of_field(where, "empty", "a list of int64s or strings")
    return _values(message, kind, where)


def fill_column(message: Any, column: Column) -> None:
    """Writes a column into an empty `Column`."""
    if column.values.dtype == np.float32:
        message.float32s = column.values.tobytes()
    else:
        fill_ids(message, column.values)
    if column.offsets is not None:
        message.offsets = column.offsets.astype(INT32).tobytes()
    if column.weights is not None:
        message.weights = column.weights.astype(FLOAT32).tobytes()


def fill_ids(message: Any, ids: NDArray[Any]) -> None:
    """Writes ids into an empty `Ids`."""
    if ids.dtype == object:
        message.strings.values.extend(ids.tolist())
        # Also without values: an empty list of texts has a kind.
        message.strings.SetInParent()
    else:
        message.int64s = ids.astype(INT64).tobytes()


def _values(message: Any, kind: str, where: str) -> NDArray[Any]:
    """Returns the values in one of the fields of a message: int64, float32 or str."""
    if kind == "int64s":
        return unpack(message.int64s, INT64, f"{where}.int64s")
    if kind == "strings":
        return np.array(list(message.strings.values), dtype=object)
    if kind == "float32s":
        return unpack(message.float32s, FLOAT32, f"{where}.float32s")
    return unpack(message.int32s, INT32, f"{where}.int32s").astype(np.int64)

"""Entries of a TensorBundle's index, decoded: BundleEntryProto, TensorShapeProto, TensorSliceProto.

An index has up to 10^5 of them, nearly all of one form: dtype and shape, which many share, then data file, offset, size
and crc. Those are decoded all at once, a field of all of them after the other; whatever is written in another form is
read field by field, with the same result.

Source: TensorFlow 2.20, tensorflow/core/protobuf/tensor_bundle.proto, core/framework/{types,tensor_shape}.proto,
core/framework/tensor_slice.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from export.checkpoint.formats.orderedcode import WHOLE_AXIS, extents_key
from export.checkpoint.formats.sstable import MASK_DELTA, unmask
from export.checkpoint.formats.wire import WireError, as_bytes, as_int, read_fields
from export.checkpoint.variables import NUMPY_DTYPES, can_be, volume

DTYPE_NAMES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
    18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip

_SHARD, _OFFSET, _SIZE, _CRC = 0x18, 0x20, 0x28, 0x35
"""Tags behind the shape, in the order in which every protobuf library writes them; a 0 is left out."""
_REACH = 512
"""Bytes, at least what the longest head and tail take of which a byte tells the length."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Form(NamedTuple):
    """What a variable or a slice of one looks like.

    Attributes:
      number: of the dtype.
      dtype: its name.
      bytes: of all values; None where values have no fixed width.
      starts: first index on each axis of a variable that is stored whole.
    """

    number: int
    dtype: str
    shape: tuple[int, ...]
    bytes: int | None
    starts: tuple[int, ...]


class StoredEntries(NamedTuple):
    """BundleEntryProtos as columns: each is a whole variable, one slice, or a variable that lists its slices.

    Attributes:
      shards: number of the data file.
      slices: TensorSliceProtos, as they are stored.
    """

    forms: list[Form]
    shards: list[int]
    offsets: list[int]
    sizes: list[int]
    crcs: list[int]
    slices: list[tuple[bytes, ...]]


class Cut(NamedTuple):
    """A TensorSliceProto, on a variable of a known shape.

    Attributes:
      key: the end of the slice's key.
      fits: whether it lies inside the variable.
    """

    key: bytes
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    fits: bool


def decode_entries(values: Sequence[bytes]) -> StoredEntries:
    """Decodes the entries of an index.

    Raises:
      WireError: one is no entry, or none that can be.
    """
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    data = np.frombuffer(b"".join([*values, bytes(_REACH)]), np.uint8)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    tails = starts + 4 + data[starts + 3]  # behind tag, dtype, tag, bytes of the shape
    shards, at = _varints(data, _SHARD, tails)
    offsets, at = _varints(data, _OFFSET, at)
    sizes, at = _varints(data, _SIZE, at)
    usual = (data[at] == _CRC) & (at + 5 == ends)
    rotated = data[at[:, None] + np.arange(1, 5)].view("<u4")[:, 0] - np.uint32(MASK_DELTA)  # as `unmask` one by one
    crcs = rotated >> np.uint32(17) | rotated << np.uint32(15)
    heads = (tails - starts).tolist()
    forms = [_usual_form(value[:head]) if ok else None for value, head, ok in zip(values, heads, usual, strict=True)]
    numbers = [column.tolist() for column in (shards, offsets, sizes, crcs)]
    listed: list[tuple[bytes, ...]] = [()] * len(values)
    decoded: list[Form] = []
    for place, form in enumerate(forms):
        if form is not None:
            decoded.append(form)
            continue
        other, *own, listed[place] = _decode(values[place])
        decoded.append(other)
        for column, number in zip(numbers, own, strict=True):
            column[place] = number
    return StoredEntries(decoded, numbers[0], numbers[1], numbers[2], numbers[3], listed)


def _varints(data: np.ndarray[Any, np.dtype[np.uint8]], tag: int, at: Numbers) -> tuple[Numbers, Numbers]:
    """Decodes a varint of at most nine bytes behind a tag at each place; 0 where there is none.

    Returns:
      The numbers, and where the next field lies; one that is longer leads to the end of the data.
    """
    more = data[at] == tag
    at = at + more
    numbers = np.zeros(len(at), np.int64)
    for shift in range(0, 63, 7):
        if not more.any():
            break
        digits = data[at]
        numbers |= np.where(more, digits & 0x7F, 0).astype(np.int64) << shift
        at += more
        more &= digits >= 0x80
    at[more] = len(data) - _REACH
    return numbers, at


@lru_cache(maxsize=4096)
def _usual_form(head: bytes) -> Form | None:
    """Decodes an entry up to its shape; None if there is not exactly that."""
    try:
        (first, dtype), (second, shape) = read_fields(head)
        return _form(as_int(dtype), as_bytes(shape)) if (first, second) == (1, 2) else None
    except (WireError, ValueError):
        return None


def _decode(data: bytes) -> tuple[Form, int, int, int, int, tuple[bytes, ...]]:
    """Decodes a BundleEntryProto in whatever form; returns one of each column."""
    dtype = shard = offset = size = crc = 0
    shape = b""
    slices: list[bytes] = []
    for number, value in read_fields(data):
        if number == 2:
            shape = as_bytes(value)
        elif number == 7:
            slices.append(as_bytes(value))
        elif number == 1:
            dtype = as_int(value)
        elif number == 3:
            shard = as_int(value)
        elif number == 4:
            offset = as_int(value)
        elif number == 5:
            size = as_int(value)
        elif number == 6:
            crc = unmask(as_int(value) & 0xFFFFFFFF)
    if dtype <= 0 or (shard | offset | size) < 0:
        raise WireError(f"an entry of dtype {dtype} at byte {offset} of data file {shard} with {size} bytes")
    return _form(dtype, shape), shard, offset, size, crc, tuple(slices)


@lru_cache(maxsize=4096)
def _form(number: int, data: bytes) -> Form:
    """Decodes a TensorShapeProto; most variables of a checkpoint share a few shapes."""
    sizes = []
    for field, value in read_fields(data):
        if field == 2:
            sizes.append(as_int(dict(read_fields(as_bytes(value))).get(1, 0)))
        elif field == 3 and value:
            raise WireError("a stored variable without a rank")
    if number <= 0 or not can_be(sizes):
        raise WireError(f"dtype {number} and a shape of {sizes[:8]}, which nothing can have")
    shape = tuple(sizes)
    dtype = DTYPE_NAMES.get(number) or f"dtype {number}"
    count = volume(shape) * NUMPY_DTYPES[dtype].itemsize if dtype in NUMPY_DTYPES else None
    return Form(number, dtype, shape, count, (0,) * len(shape))


@lru_cache(maxsize=1 << 14)
def decode_cut(data: bytes, shape: tuple[int, ...]) -> Cut:
    """Decodes a TensorSliceProto; tables and their slot variables are mostly cut alike.

    Raises:
      WireError: it is none, or of another rank.
    """
    declared = [_extent(as_bytes(value)) for number, value in read_fields(data) if number == 1]
    if len(declared) != len(shape):
        raise WireError(f"rank {len(shape)} and a slice of rank {len(declared)}")
    starts = tuple([start for start, _ in declared])
    sizes = tuple(
        [total if length == WHOLE_AXIS else length for total, (_, length) in zip(shape, declared, strict=True)]
    )
    fits = True
    for first, size, total in zip(starts, sizes, shape, strict=True):
        fits = fits and 0 <= first <= total - size and size >= 0
    return Cut(extents_key(declared), starts, sizes, fits)


@lru_cache(maxsize=1 << 14)
def _extent(data: bytes) -> tuple[int, int]:
    """Decodes start and length; one without a length spans its axis."""
    extent = dict(read_fields(data))
    return as_int(extent.get(1, 0)), as_int(extent[2]) if 2 in extent else WHOLE_AXIS

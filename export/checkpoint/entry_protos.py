"""Entries of a TensorBundle's index, decoded: BundleEntryProto, TensorShapeProto, TensorSliceProto.

An index has up to 10^5 of them, nearly all of one form: dtype and shape, which many share, then data file, offset, size
and crc. Those are taken apart by one pattern, and their numbers decoded all at once; whatever is written in another
form is read field by field, with the same result.

Source: TensorFlow 2.20, tensorflow/core/protobuf/tensor_bundle.proto, core/framework/{types,tensor_shape}.proto,
core/framework/tensor_slice.proto.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import numpy as np

from export.checkpoint.orderedcode import WHOLE_AXIS, extents_key
from export.checkpoint.sstable import MASK_DELTA, unmask
from export.checkpoint.variables import NUMPY_DTYPES, can_be, volume
from export.checkpoint.wire import VARINT_PATTERN, WireError, as_bytes, as_int, decode_varints, made, read_fields

DTYPE_NAMES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
    18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip

_TAIL = re.compile(
    b"".join(rb"(?:%b%b)?" % (tag, VARINT_PATTERN) for tag in (rb"\x18", rb"\x20", rb"\x28")) + rb"\x35(.{4})", re.S
)
"""Data file, offset, size, crc32c: in the order in which every protobuf library writes them; a 0 is left out."""


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


class StoredEntry(NamedTuple):
    """A BundleEntryProto: a whole variable, one slice, or a variable that lists its slices.

    Attributes:
      shard: number of the data file.
      slices: TensorSliceProtos, as they are stored.
    """

    form: Form
    shard: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[bytes, ...]


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


def decode_entries(values: Sequence[bytes]) -> list[StoredEntry]:
    """Decodes the entries of an index.

    Raises:
      WireError: one is no entry, or none that can be.
    """
    usual, forms, tails, split = [], [], [], _TAIL.fullmatch
    for place, value in enumerate(values):
        if len(value) > 4:
            end = 4 + value[3]  # tag, dtype, tag, bytes of the shape
            tail = split(value, end)
            form = tail and _usual_form(value[:end])
            if tail and form:
                usual.append(place)
                forms.append(form)
                tails.append(tail.groups(b"\0"))
    if not usual:
        return [_decode(value) for value in values]
    *numbers, masked = zip(*tails, strict=True)
    rotated = np.frombuffer(b"".join(masked), "<u4") - np.uint32(MASK_DELTA)  # as `unmask` does one by one
    crcs = (rotated >> np.uint32(17) | rotated << np.uint32(15)).tolist()
    shards, offsets, sizes = (decode_varints(column).tolist() for column in numbers)
    found: list[StoredEntry] = made(StoredEntry, forms, shards, offsets, sizes, crcs, repeat(()))
    if len(found) == len(values):
        return found
    by_place = dict(zip(usual, found, strict=True))
    return [by_place.get(place) or _decode(value) for place, value in enumerate(values)]


@lru_cache(maxsize=4096)
def _usual_form(head: bytes) -> Form | None:
    """Decodes an entry up to its shape; None if there is not exactly that."""
    try:
        (first, dtype), (second, shape) = read_fields(head)
        return _form(as_int(dtype), as_bytes(shape)) if (first, second) == (1, 2) else None
    except (WireError, ValueError):
        return None


def _decode(data: bytes) -> StoredEntry:
    """Decodes a BundleEntryProto in whatever form."""
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
    return StoredEntry(_form(dtype, shape), shard, offset, size, crc, tuple(slices))


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

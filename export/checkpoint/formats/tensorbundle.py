"""TensorFlow's V2 checkpoint, the TensorBundle: `P.index` lists the variables, and `P.data-*` hold
their bytes.

docs/adr/0001-checkpoints-are-read-without-tensorflow.md explains why rowcast has its own reader,
and what it guarantees. This module also writes indexes: an entry may point anywhere into any data
file, so a new checkpoint over existing bytes costs no more than its index.

Source: TensorFlow 2.20, tensorflow/core/util/tensor_bundle/tensor_bundle.cc,
core/framework/types.proto.
"""

from __future__ import annotations

import errno
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import google_crc32c

from bundle.format.checksums import mask, unmask
from bundle.storage.regular_files import read_regular
from export.checkpoint.formats.coding import Malformed, read_varint, varint
from export.checkpoint.formats.orderedcode import WHOLE_AXIS, slice_key
from export.checkpoint.formats.protos import decode, message
from export.checkpoint.formats.sstable import read_table, write_table
from export.checkpoint.formats.upstreams import UnknownFields
from export.checkpoint.variables import NUMPY_DTYPES, Entry, Listing, Slice, can_be
from export.errors import CheckpointError
from object_store.locations import Location
from object_store.remote_path import RemotePath
from object_store.stamps import Stamp, local_stamp

FORMAT_VERSION = 1
"""The newest version of the format that this reader knows."""
INDEX_BYTES_MAX = 256 << 20
"""The maximum size of an index, which is read as a whole. It has about a hundred bytes for each
variable and slice.
"""
DTYPE_NAMES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string",
    8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16",
    16: "quint16", 17: "uint16",
    18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip
_DTYPE_NUMBERS = {name: number for number, name in DTYPE_NAMES.items()}

_FindFile = Callable[[int], tuple[str, Stamp | None]]
"""Returns a data file by its number, and its stamp, which is None if the file cannot be inspected.
"""


def data_file(prefix: Path, number: int, count: int) -> Path:
    """Returns the path of one of `count` data files of a checkpoint."""
    return Path(f"{prefix}.data-{number:05d}-of-{count:05d}")


def read_index(prefix: Location) -> Listing:
    """Reads the index of a checkpoint, by its path without `.index`. `file_problems` checks the
    data files.

    Raises:
      CheckpointError: The index is missing, damaged or hostile.
    """
    path = prefix.with_name(f"{prefix.name}.index")
    data = _file_bytes(path)
    try:
        index_values = dict(read_table(data))
        find_file = _file_finder(prefix, _file_count(index_values.pop(b"", None), path))
        # Keys of slices begin with a zero byte.
        names = {key: key.decode() for key in index_values if key[0]}
        entries = {
            name: _entry(name, index_values[key], index_values, find_file)
            for key, name in names.items()
        }
    except OSError as problem:
        raise CheckpointError(
            f"checkpoint {prefix}: its files cannot be listed: {problem.strerror}"
        ) from problem
    except UnknownFields as problem:
        raise CheckpointError(f"checkpoint index {path}: {problem}") from problem
    except (Malformed, UnicodeDecodeError) as problem:
        raise CheckpointError(
            f"checkpoint index {path}: {problem}; copy the checkpoint anew or take an older one"
        ) from problem
    return Listing(f"crc32c:{google_crc32c.value(data):08x}", entries)


def write_index(prefix: Path, entries: Mapping[str, Entry], data_files: int) -> None:
    """Writes the index of a checkpoint over existing data files: the inverse of `read_index`.

    Args:
      prefix: The checkpoint's path without `.index`.
      entries: Every variable by its key. The files of their slices are named by `data_file`.
      data_files: The number of data files.
    Raises:
      OSError: The file cannot be written.
      ValueError: An entry does not fit an index: it has an unknown dtype or file, or a slice
        without a crc.
    """
    numbers = {str(data_file(prefix, number, data_files)): number for number in range(data_files)}
    header = message(
        "BundleHeaderProto", num_shards=data_files, version={"producer": FORMAT_VERSION}
    )
    table = {b"": header.SerializeToString()}
    for key, entry in entries.items():
        if entry.whole:
            table[key.encode()] = _encode_entry(entry.dtype, entry.slices[0], numbers)
            continue
        proto = _entry_proto(entry.dtype, entry.shape)
        for part in entry.slices:
            extents = list(zip(part.starts, part.shape, strict=True))
            proto.slices.add(
                extent=[{"start": start, "length": length} for start, length in extents]
            )
            table[slice_key(key, extents)] = _encode_entry(entry.dtype, part, numbers)
        table[key.encode()] = proto.SerializeToString()
    # A sorted string table needs rising keys. The empty key of the header comes first.
    Path(f"{prefix}.index").write_bytes(write_table(sorted(table.items())))


def string_bytes(text: bytes) -> tuple[bytes, int]:
    """Returns the bytes of a string scalar in a data file, and the crc32c of its entry.

    The crc covers the length as a fixed-width integer where the file holds a varint.
    """
    length_format = "<I"
    if len(text) >= 1 << 32:
        length_format = "<Q"
    length = struct.pack(length_format, len(text))
    length_crc = struct.pack("<I", mask(google_crc32c.value(length)))
    crc = int(google_crc32c.value(length + length_crc + text))
    return varint(len(text)) + length_crc + text, crc


def read_string(data: bytes, crc32c: int) -> bytes | None:
    """Returns a string scalar from its bytes in a data file; None if they do not match the
    checksums.
    """
    try:
        _, crc_start = read_varint(data, 0)
    except Malformed:
        return None
    text = data[crc_start + 4 :]
    # The length and both checksums are compared at once, by writing the string anew.
    if string_bytes(text) != (data, crc32c):
        return None
    return text


def file_problems(entries: Mapping[str, Entry]) -> Iterator[str]:
    """Yields the problems of data files: a file is gone, is cut short, or cannot hold all of its
    entries.
    """
    # The entry that ends last in each file: its end, its key and the file's stamp.
    last_entries: dict[str, tuple[int, str, Stamp | None]] = {}
    # The bytes of all entries in each file. Entries that overlap may claim more than it has.
    claimed_bytes: dict[str, int] = {}
    for key, entry in entries.items():
        for part in entry.slices:
            # An empty variable may point past the end.
            if part.bytes:
                if (
                    part.file not in last_entries
                    or part.offset + part.bytes > last_entries[part.file][0]
                ):
                    last_entries[part.file] = part.offset + part.bytes, key, part.stamp
                claimed_bytes[part.file] = claimed_bytes.get(part.file, 0) + part.bytes
    for file, (end, key, stamp) in last_entries.items():
        if stamp is None:
            yield (
                f"data file {file} cannot be read: {_why_unreadable(file)}; copy all files of "
                "the checkpoint"
            )
        elif stamp.bytes < end:
            yield (
                f"data file {file} has {stamp.bytes} bytes, but {key!r} ends at byte {end}: it was "
                "cut short; copy it anew"
            )
        elif stamp.bytes < claimed_bytes[file]:
            yield (
                f"data file {file} has {stamp.bytes} bytes, its variables claim "
                f"{claimed_bytes[file]}: they cannot all lie in it; copy the checkpoint anew or "
                "take an older one"
            )


def _why_unreadable(file: str) -> str:
    try:
        os.stat(file)
    except OSError as problem:
        return problem.strerror or str(problem)
    return os.strerror(errno.ENOENT)


def _file_finder(prefix: Location, count: int) -> _FindFile:
    """Returns the function that finds the data files of a checkpoint by their numbers."""
    # In a store, one request lists all of them.
    listed = None
    if isinstance(prefix, RemotePath):
        listed = prefix.parent.listing()

    @cache
    def find_file(number: int) -> tuple[str, Stamp | None]:
        if number >= count:
            raise Malformed(f"a variable lies in data file {number} of {count}")
        path = prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{count:05d}")
        if listed is not None:
            return str(path), listed.get(path.name)
        try:
            return str(path), local_stamp(Path(str(path)).stat())
        except OSError:
            return str(path), None

    return find_file


def _file_bytes(path: Location) -> bytes:
    try:
        if isinstance(path, RemotePath):
            size = path.stamp().bytes
        else:
            size = path.stat().st_size
        if size > INDEX_BYTES_MAX:
            raise CheckpointError(
                f"checkpoint index {path} has {size} bytes; at most {INDEX_BYTES_MAX} are read"
            )
        if isinstance(path, RemotePath):
            return path.read(0, size)
        return read_regular(path)
    except OSError as problem:
        raise CheckpointError(
            f"checkpoint index {path} cannot be read: {problem.strerror}"
        ) from problem


def _file_count(data: bytes | None, path: Location) -> int:
    """Returns the number of data files in a BundleHeaderProto."""
    if data is None:
        raise CheckpointError(
            f"{path} is a sorted string table without a header, so no checkpoint index; give the "
            "prefix of a checkpoint"
        )
    header = decode("BundleHeaderProto", data)
    if header.endianness != 0:
        raise CheckpointError(
            f"checkpoint index {path} was written on a big-endian machine, which is not read here; "
            "restore and save it again on a little-endian one"
        )
    if header.version.min_consumer > FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint index {path} needs a reader of format {header.version.min_consumer}; "
            f"this one knows {FORMAT_VERSION}; a newer product version may read it"
        )
    if header.num_shards < 0:
        raise Malformed(f"its header claims {header.num_shards} data files")
    return int(header.num_shards)


def _entry(
    name: str, data: bytes, index_values: MutableMapping[bytes, bytes], find_file: _FindFile
) -> Entry:
    """Returns a variable that is stored as a whole, or cut into slices, which are in `index_values`
    and need not cover the variable.
    """
    proto = decode("BundleEntryProto", data)
    dtype = _dtype(proto)
    shape = _shape(proto)
    if not proto.slices:
        whole = _slice(name, proto, (0,) * len(shape), shape, find_file)
        return Entry(name, dtype, shape, (whole,))

    parts = []
    for slice_proto in proto.slices:
        if len(slice_proto.extent) != len(shape):
            raise Malformed(f"rank {len(shape)} and a slice of rank {len(slice_proto.extent)}")
        extents = []
        for extent in slice_proto.extent:
            length = extent.length if extent.HasField("length") else WHOLE_AXIS
            extents.append((extent.start, length))
        # Taken out of the index, so that a slice that is listed twice is missing the second time.
        part_data = index_values.pop(slice_key(name, extents), None)
        if part_data is None:
            raise Malformed(
                f"{name!r} lists a slice {extents} that the index does not hold, or lists it twice"
            )

        piece = decode("BundleEntryProto", part_data)
        starts = tuple([start for start, _ in extents])
        sizes = _slice_shape(shape, extents)
        if not _is_inside(starts, sizes, shape) or (_dtype(piece), _shape(piece)) != (dtype, sizes):
            raise Malformed(
                f"{name!r} of shape {shape} lists a slice at {starts} of shape {sizes} and stores "
                f"one of shape {_shape(piece)}, {_dtype(piece)}, which does not fit"
            )
        parts.append(_slice(name, piece, starts, sizes, find_file))
    return Entry(name, dtype, shape, tuple(parts))


def _slice_shape(shape: Sequence[int], extents: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Returns the shape of a slice of a variable of `shape`."""
    sizes = []
    for total, (_, length) in zip(shape, extents, strict=True):
        sizes.append(total if length == WHOLE_AXIS else length)
    return tuple(sizes)


def _is_inside(starts: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> bool:
    """Returns whether a slice lies inside its variable."""
    extents = zip(starts, sizes, shape, strict=True)
    return all(0 <= start <= total - size for start, size, total in extents)


def _slice(
    name: str, proto: Any, starts: tuple[int, ...], shape: tuple[int, ...], find_file: _FindFile
) -> Slice:
    if min(proto.shard_id, proto.offset, proto.size) < 0:
        raise Malformed(
            f"{name!r} at byte {proto.offset} of data file {proto.shard_id} with {proto.size} bytes"
        )
    dtype = _dtype(proto)
    if dtype in NUMPY_DTYPES and proto.size != math.prod(shape) * NUMPY_DTYPES[dtype].itemsize:
        raise Malformed(f"{name!r} of shape {shape}, {dtype}, claims {proto.size} bytes")
    file, stamp = find_file(proto.shard_id)
    return Slice(file, proto.offset, proto.size, unmask(proto.crc32c), starts, shape, stamp)


def _dtype(proto: Any) -> str:
    if proto.dtype <= 0:
        raise Malformed(f"an entry of dtype {proto.dtype}")
    return DTYPE_NAMES.get(proto.dtype) or f"dtype {proto.dtype}"


def _shape(proto: Any) -> tuple[int, ...]:
    if proto.shape.unknown_rank:
        raise Malformed("a stored variable without a rank")
    shape = tuple([dim.size for dim in proto.shape.dim])
    if not can_be(shape):
        raise Malformed(f"a shape of {shape[:8]}, which nothing can have")
    return shape


def _entry_proto(dtype: str, shape: tuple[int, ...]) -> Any:
    if dtype not in _DTYPE_NUMBERS:
        raise ValueError(f"{dtype} is no dtype of an index")
    return message(
        "BundleEntryProto",
        dtype=_DTYPE_NUMBERS[dtype],
        shape={"dim": [{"size": size} for size in shape]},
    )


def _encode_entry(dtype: str, part: Slice, numbers: Mapping[str, int]) -> bytes:
    if part.crc32c is None or part.file not in numbers:
        raise ValueError(
            f"bytes {part.offset} of {part.file} have no crc32c, or the file is none of the "
            "checkpoint's"
        )
    proto = _entry_proto(dtype, part.shape)
    proto.shard_id = numbers[part.file]
    proto.offset = part.offset
    proto.size = part.bytes
    proto.crc32c = mask(part.crc32c)
    data: bytes = proto.SerializeToString()
    return data

"""TensorFlow's V2 checkpoint, the TensorBundle: `P.index` lists variables, `P.data-*` hold their bytes.

Why an own reader, and what it promises: docs/adr/0001-own-tensorbundle-reader.md.

Source: TensorFlow 2.20, tensorflow/core/util/tensor_bundle/tensor_bundle.cc and core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache

from export.checkpoint.orderedcode import WHOLE_AXIS, slice_key
from export.checkpoint.sstable import TableError, read_table, unmask
from export.checkpoint.variables import NUMPY_DTYPES, Entry, Slice, can_be, volume
from export.checkpoint.wire import WireError, as_bytes, as_int, read_fields
from export.errors import CheckpointError
from runtime.remote import Place, RemotePath, Stamp, local_stamp

FORMAT_VERSION = 1
INDEX_BYTES_MAX = 256 << 20

# Source: TensorFlow 2.20, tensorflow/core/framework/types.proto.
DTYPE_NAMES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
    18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip

_ITEMSIZES = {name: dtype.itemsize for name, dtype in NUMPY_DTYPES.items()}

_Raw = tuple[int, tuple[int, ...], int, int, int, int, tuple[bytes, ...]]
"""dtype, shape, data file, offset, bytes, crc32c, slice protos."""
_Box = tuple[tuple[int, ...], tuple[int, ...]]
"""First index and extent on each axis."""


class _Files:
    """The data files of a checkpoint, each with its stamp; None: it cannot be looked at."""

    def __init__(self, prefix: Place, count: int) -> None:
        self.count = count
        self._prefix = prefix
        self._found: dict[int, tuple[str, Stamp | None]] = {}
        self._listed = prefix.parent.listing() if isinstance(prefix, RemotePath) else {}  # one request for them all

    def find(self, shard: int) -> tuple[str, Stamp | None]:
        if shard not in self._found:
            if shard >= self.count:
                raise WireError(f"a variable lies in data file {shard} of {self.count}")
            name = f"{self._prefix.name}.data-{shard:05d}-of-{self.count:05d}"
            self._found[shard] = str(self._prefix.with_name(name)), self._stamp(name)
        return self._found[shard]

    def _stamp(self, name: str) -> Stamp | None:
        if isinstance(self._prefix, RemotePath):
            return self._listed.get(name)
        try:
            return local_stamp(self._prefix.with_name(name).stat())
        except OSError:
            return None


def read_index(prefix: Place, complete: bool = True) -> tuple[bytes, dict[str, Entry]]:
    """Reads the index of a checkpoint and checks that its data files are there and long enough.

    Args:
      prefix: the checkpoint's path without `.index`.
      complete: whether the data files are checked; `file_problems` does it later.
    Returns:
      The index file's bytes, and every variable by its key.
    Raises:
      CheckpointError: the index is missing, damaged or hostile, or a data file is missing or cut short.
    """
    path = prefix.with_name(f"{prefix.name}.index")
    data = _file_bytes(path)
    try:
        pairs = read_table(data)
        first = next(pairs, (None, b""))  # the empty key is before every other
        files = _Files(prefix, _header(first[1] if first[0] == b"" else None, path))
        raw = {key: _raw_entry(value) for key, value in pairs}
        entries = {}
        for key, fields in raw.items():
            if key[0]:  # keys that begin with a zero byte are slices of another
                name = key.decode()
                entries[name] = _entry(name, fields, raw, files)
    except OSError as problem:
        raise CheckpointError(f"checkpoint {prefix}: its files cannot be listed: {problem.strerror}") from problem
    except (TableError, WireError, UnicodeDecodeError) as problem:
        raise CheckpointError(
            f"checkpoint index {path}: {problem}; copy the checkpoint anew or take an older one"
        ) from problem
    if complete:
        for wrong in file_problems(entries):
            raise CheckpointError(wrong)
    return data, entries


def _file_bytes(path: Place) -> bytes:
    try:
        size = path.stamp().bytes if isinstance(path, RemotePath) else path.stat().st_size
        if size > INDEX_BYTES_MAX:
            raise CheckpointError(f"checkpoint index {path} has {size} bytes; at most {INDEX_BYTES_MAX} are read")
        if isinstance(path, RemotePath):
            return path.read(0, size)
        with path.open("rb") as file:
            return file.read(size)
    except OSError as problem:
        raise CheckpointError(f"checkpoint index {path} cannot be read: {problem.strerror}") from problem


def _header(data: bytes | None, path: Place) -> int:
    """Returns the number of data files that a BundleHeaderProto tells."""
    if data is None:
        raise CheckpointError(
            f"{path} is a sorted string table without a header, so no checkpoint index; give the prefix of a checkpoint"
        )
    fields = dict(read_fields(data))
    version = dict(read_fields(as_bytes(fields.get(3, b""))))
    if as_int(fields.get(2, 0)) != 0:
        raise CheckpointError(
            f"checkpoint index {path} was written on a big-endian machine, which is not read here; "
            "restore and save it again on a little-endian one"
        )
    if as_int(version.get(2, 0)) > FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint index {path} asks for a reader of format {as_int(version[2])}; this one knows "
            f"{FORMAT_VERSION}; a newer product version may read it"
        )
    shards = as_int(fields.get(1, 0))
    if shards < 0:
        raise WireError(f"its header claims {shards} data files")
    return shards


@lru_cache(maxsize=4096)
def _shape(data: bytes) -> tuple[int, ...]:
    """Decodes a TensorShapeProto; most variables of a checkpoint share a few shapes."""
    sizes = []
    for number, value in read_fields(data):
        if number == 2:
            sizes.append(as_int(dict(read_fields(as_bytes(value))).get(1, 0)))
        elif number == 3 and value:
            raise WireError("a stored variable without a rank")
    if not can_be(sizes):
        raise WireError(f"a shape of {sizes[:8]}, which nothing can have")
    return tuple(sizes)


def _raw_entry(data: bytes) -> _Raw:
    """Decodes a BundleEntryProto."""
    dtype = shard = offset = size = crc = 0
    shape: tuple[int, ...] = ()
    slices: list[bytes] = []
    for number, value in read_fields(data):
        if number == 2:
            shape = _shape(as_bytes(value))
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
    return dtype, shape, shard, offset, size, crc, tuple(slices)


def _entry(name: str, fields: _Raw, raw: dict[bytes, _Raw], files: _Files) -> Entry:
    dtype, shape, _, _, _, _, slices = fields
    dtype_name = DTYPE_NAMES.get(dtype) or f"dtype {dtype}"
    whole = ((0,) * len(shape), shape)
    if not slices:
        return Entry(name, dtype_name, shape, (_slice(name, dtype_name, fields, whole, files),))
    if len(set(slices)) != len(slices):
        raise WireError(f"{name!r} lists a slice twice")
    parts = []
    for proto in slices:
        declared = _extents(proto)
        if len(declared) != len(shape):
            raise WireError(f"{name!r} has rank {len(shape)} and a slice of rank {len(declared)}")
        found = raw.get(slice_key(name, declared))
        if found is None or found[0] != dtype:
            raise WireError(f"{name!r} lists a slice {declared} that the index does not hold")
        starts = tuple([start for start, _ in declared])
        sizes = tuple([shape[axis] if length == WHOLE_AXIS else length for axis, (_, length) in enumerate(declared)])
        inside = all(0 <= first <= total - size for first, size, total in zip(starts, sizes, shape, strict=True))
        if not inside or min(sizes, default=0) < 0 or found[1] != sizes:
            raise WireError(
                f"{name!r} of shape {shape} lists a slice {declared} of shape {found[1]}, which does not fit"
            )
        parts.append(_slice(name, dtype_name, found, (starts, sizes), files))
    return Entry(name, dtype_name, shape, tuple(parts))


def _extents(data: bytes) -> list[tuple[int, int]]:
    """Decodes a TensorSliceProto: start and length on each axis; an extent without a length spans its axis."""
    return [_extent(as_bytes(value)) for number, value in read_fields(data) if number == 1]


@lru_cache(maxsize=1 << 14)
def _extent(data: bytes) -> tuple[int, int]:
    extent = dict(read_fields(data))
    return as_int(extent.get(1, 0)), as_int(extent[2]) if 2 in extent else WHOLE_AXIS


def _slice(name: str, dtype: str, fields: _Raw, box: _Box, files: _Files) -> Slice:
    _, shape, shard, offset, size, crc, _ = fields
    if volume(shape) * _ITEMSIZES.get(dtype, 0) != size and dtype in _ITEMSIZES:
        raise WireError(f"{name!r} of shape {shape}, {dtype}, claims {size} bytes")
    path, stamp = files.find(shard)
    return Slice(path, offset, size, crc, *box, stamp)


def file_problems(entries: Mapping[str, Entry]) -> Iterator[str]:
    """Yields what is wrong with data files: one is gone or cut short, or cannot hold all that lies in it."""
    needed: dict[str, tuple[int, str, Stamp | None]] = {}
    claimed: dict[str, int] = {}
    for entry in entries.values():
        for part in entry.slices:
            if part.bytes:  # an empty variable may point past the end
                end = part.offset + part.bytes
                if end > needed.get(part.file, (0,))[0]:
                    needed[part.file] = end, entry.key, part.stamp
                claimed[part.file] = claimed.get(part.file, 0) + part.bytes
    for file, (end, key, stamp) in needed.items():
        if stamp is None:
            yield f"data file {file} cannot be read: {_why_unreadable(file)}; copy all files of the checkpoint"
        elif stamp.bytes < end:
            yield (
                f"data file {file} has {stamp.bytes} bytes, but {key!r} ends at byte {end}: it was cut short; "
                "copy it anew"
            )
        elif stamp.bytes < claimed[file]:
            yield (
                f"data file {file} has {stamp.bytes} bytes, its variables claim {claimed[file]}: they cannot all lie "
                "in it; copy the checkpoint anew or take an older one"
            )


def _why_unreadable(file: str) -> str:
    try:
        os.stat(file)
    except OSError as problem:
        return problem.strerror or str(problem)
    return os.strerror(errno.ENOENT)

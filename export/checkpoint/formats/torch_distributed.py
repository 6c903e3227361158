"""Lists what `torch.distributed.checkpoint` saved, without torch. No tensor is read.

A directory holds `.metadata`, a pickle that says which part of which tensor lies where, and
`*.distcp` files. Each part is a zip file of its own, as `torch.save` writes it: `data.pkl`
describes a tensor, and `data/0` is its values, uncompressed. The zip file keeps their crc32.

Source: PyTorch, distributed/checkpoint/metadata.py and filesystem.py (the metadata and the
files), serialization.py and _utils.py (a saved tensor).
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import UnionType
from typing import Any, NamedTuple

import google_crc32c

from bundle.shown_values import shown
from export.checkpoint.datafiles import REQUESTS
from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.pickled_values import Record, read_pickle, record_class
from export.checkpoint.formats.torch_planner import NotUnderstood, read_planner_data
from export.checkpoint.formats.upstreams import PYTORCH, UnknownFields
from export.checkpoint.variables import (
    NUMPY_DTYPES,
    RANK_MAX,
    Entry,
    Listing,
    ModSharding,
    Slice,
    Storage,
    can_be,
)
from export.errors import CheckpointError
from object_store.locations import Location, read_range, stamp_of
from object_store.stamps import Stamp

METADATA = ".metadata"
_SUFFIX = ".distcp"
_STRIDED = "torch.strided"
"""The layout of a tensor that holds each of its values."""
_PROPERTIES_MAX = 6
"""The maximum number of properties of a tensor: dtype, layout, requires_grad, memory format,
pin_memory and, since PyTorch 2.15, the strides that it had in memory, as
TensorProperties.__getstate__ returns them. In a file each part has strides of its own.
"""
_PART_BYTES_MIN = 16
"""The minimum number of bytes of the metadata that describe one part."""
_FILE_NAME_MAX = 255
"""The maximum number of characters of the name of a data file, as filesystems have it."""
_METADATA_BYTES_MAX = 1 << 30
"""The maximum number of bytes that are read of the metadata, which describe each part."""
_LITTLE = b"little"
_PICKLE_BYTES_MAX = 1 << 20
"""The maximum size of the pickle that describes one tensor."""
_DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    RuntimeError,
    ValueError,
)
"""The errors that the standard library raises for damaged zip files."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_DISTRIBUTED = "torch.distributed."
_ANY = object
_ATTRIBUTES: dict[str, dict[str, type | UnionType]] = {
    "BytesStorageMetadata": {},
    "ChunkStorageMetadata": {"offsets": tuple | list, "sizes": tuple | list},
    "Metadata": {
        "state_dict_metadata": dict,
        "planner_data": dict | None,
        "storage_data": dict,
        "storage_meta": _ANY,
        "version": _ANY,
    },
    "MetadataIndex": {"fqn": str, "offset": tuple | list | None, "index": _ANY},
    # About the save itself: nothing here says what a tensor means.
    "StorageMeta": {"checkpoint_id": _ANY, "save_id": _ANY, "load_id": _ANY, "modules": _ANY},
    "TensorProperties": {"state": tuple | list},
    "TensorStorageMetadata": {"properties": Record, "size": tuple | list, "chunks": list},
    "_StorageInfo": {
        "relative_path": str,
        "offset": int,
        "length": int,
        "transform_descriptors": _ANY,
    },
}
"""Classes of the metadata -> their attributes and their types. Others may hold a layout, so they
are rejected: a program that saves rows in an order of its own adds some, as Megatron adds
`mcore_data`.
"""


def _argument(arguments: tuple[Any, ...]) -> Any:
    (argument,) = arguments
    return argument


def _empty_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    if arguments:
        raise Malformed("it has an OrderedDict with arguments, which PyTorch does not write")
    return {}


def _path(_arguments: tuple[Any, ...]) -> str:
    return ""  # where the checkpoint was saved, which nothing reads


_DISTRIBUTED_NAMES: dict[str, Any] = {
    **{name: record_class(name, attributes) for name, attributes in _ATTRIBUTES.items()},
    **dict.fromkeys(["_MEM_FORMAT_ENCODING", "MEM_FORMAT_ENCODING"], _argument),
}
_OTHER_NAMES: dict[tuple[str, str], Any] = {
    ("torch", "Size"): _argument,
    ("torch.serialization", "_get_layout"): _argument,
    ("pathlib", "PosixPath"): _path,
    ("pathlib._local", "PosixPath"): _path,
    ("collections", "OrderedDict"): _empty_dict,
}


class _TensorPart(NamedTuple):
    """A part of a tensor, which is saved in a zip file of its own.

    Attributes:
      tensor: The name of the tensor.
      dtype: The dtype of the tensor.
      starts: The first index of the part on each axis.
      shape: The shape of the part.
      file: The data file that holds the zip file.
      offset: The first byte of the zip file in the data file.
      length: The size of the zip file in bytes.
    """

    tensor: str
    dtype: str
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    file: Location
    offset: int
    length: int


def is_torch_distributed(path: Location) -> bool:
    """Returns whether a directory holds a checkpoint of torch.distributed.

    Raises:
      CheckpointError: The checkpoint is not complete.
      OSError: The directory cannot be listed.
    """
    if not path.is_dir():
        return False
    if (path / METADATA).is_file():
        return True
    if any(file.name.endswith(_SUFFIX) for file in path.iterdir()):
        raise CheckpointError(
            f"directory {path} holds data files of torch.distributed and no {METADATA}: the save "
            "or the copy did not finish"
        )
    return False


def list_torch_distributed(directory: Location) -> Listing:
    """Lists the tensors of a checkpoint; objects that are no tensors are left out.

    Raises:
      CheckpointError: The checkpoint is damaged, cut short, compressed, or its metadata names
        unknown code or holds something that is not understood.
      OSError: A file cannot be read.
    """
    data = read_range(directory / METADATA, 0, _METADATA_BYTES_MAX)
    try:
        metadata = read_pickle(data, _metadata_name)
        sharding = _sharding_of(directory / METADATA, metadata)
        tensors = _tensors_of(metadata)
        parts = _parts_of(directory, metadata, tensors, len(data) // _PART_BYTES_MIN)
    except UnknownFields as problem:
        raise CheckpointError(f"{directory / METADATA}: {problem}") from problem
    except (Malformed, AttributeError, KeyError, TypeError, ValueError) as problem:
        raise CheckpointError(
            f"{directory / METADATA} cannot be read: {problem}; it is damaged, or another release "
            f"wrote it than {PYTORCH}, the newest that is read"
        ) from problem

    # Each part is a zip file of its own, whose directory takes several reads. From a store, the
    # reads of several parts run at a time.
    stamps = {file: _stamp_of(file) for file in {part.file for part in parts}}
    slices: dict[str, list[Slice]] = {name: [] for name in tensors}
    with ThreadPoolExecutor(REQUESTS, thread_name_prefix="rowcast-list") as pool:
        slices_of_parts = pool.map(lambda part: _slice_of(part, stamps[part.file]), parts)
        for part, piece in zip(parts, slices_of_parts, strict=True):
            slices[part.tensor].append(piece)

    entries = {
        name: Entry(name, dtype, shape, tuple(slices[name]))
        for name, (dtype, shape) in tensors.items()
    }
    # The metadata describe no values: two checkpoints of a model may differ in these sums alone.
    sums = [piece.crc32 for pieces in slices.values() for piece in pieces]
    digest = google_crc32c.extend(google_crc32c.value(data), str(sums).encode())
    return Listing(f"crc32c:{digest:08x}", entries, Storage("PyTorch", sharding=sharding))


def _metadata_name(module: str, name: str) -> Any:
    """Returns what a name in the metadata stands for; None if it is not allowed."""
    if module.startswith(_DISTRIBUTED):
        return _DISTRIBUTED_NAMES.get(name)
    # The other names of `torch` itself are dtypes, such as torch.float32.
    if module == "torch" and name != "Size":
        return f"torch.{name}"
    return _OTHER_NAMES.get((module, name))


def _sharding_of(file: Location, metadata: Any) -> ModSharding | None:
    """Returns the sharding of tables' rows that the planner recorded; None if it recorded none.

    Raises:
      CheckpointError: The planner recorded something whose meaning is not known.
    """
    try:
        return read_planner_data(
            getattr(metadata, "planner_data", None), metadata.state_dict_metadata
        )
    except NotUnderstood as problem:
        raise CheckpointError(
            f"{file}: the program that saved the checkpoint recorded {problem}. What it says is "
            "not understood, and it may say in which order the rows of tables lie. Save the tables "
            "with their rows in the order of the ids, by torch.distributed.checkpoint.save without "
            "a planner"
        ) from problem


def _tensors_of(metadata: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns dtype and shape of each tensor."""
    tensors = {}
    for name, entry in metadata.state_dict_metadata.items():
        # An object that is no tensor, such as a count of steps.
        if isinstance(entry, _DISTRIBUTED_NAMES["BytesStorageMetadata"]):
            continue
        shape = _sizes(entry.size)
        if not can_be(shape):
            raise ValueError(f"{shown(name)} has the shape {list(shape)}, which nothing can have")
        properties = entry.properties.state
        if len(properties) > _PROPERTIES_MAX:
            raise ValueError(
                f"{shown(name)} has {len(properties)} properties; at most {_PROPERTIES_MAX} are "
                "understood"
            )
        dtype, layout, *_ = properties
        if layout != _STRIDED:
            raise ValueError(
                f"{shown(name)} has the layout {shown(layout)}; {_STRIDED!r} was expected"
            )
        if not (isinstance(name, str) and isinstance(dtype, str)):
            raise ValueError(f"a tensor has the name {shown(name)} and the dtype {shown(dtype)}")
        tensors[name] = (dtype.removeprefix("torch."), shape)
    return tensors


def _parts_of(
    directory: Location, metadata: Any, tensors: Mapping[str, Any], parts_max: int
) -> list[_TensorPart]:
    """Returns the parts of all tensors whose values are numbers; at most `parts_max`."""
    chunks = {name: metadata.state_dict_metadata[name].chunks for name in tensors}
    # Tensors may share a list of parts, so that few bytes list many.
    if sum(map(len, chunks.values())) > parts_max:
        raise ValueError(f"it lists more than the {parts_max} parts that its bytes can describe")
    shapes = {
        (name, _sizes(chunk.offsets)): _sizes(chunk.sizes)
        for name, chunks_of_tensor in chunks.items()
        for chunk in chunks_of_tensor
    }

    parts = []
    for index, info in metadata.storage_data.items():
        name = index.fqn
        # Looked at before the name is hashed, which can take without end for nested tuples.
        if not isinstance(name, str):
            raise ValueError(f"a part belongs to {shown(name)}; the name of a tensor was expected")
        if name not in tensors or tensors[name][0] not in NUMPY_DTYPES:
            continue
        if getattr(info, "transform_descriptors", None):
            raise ValueError(
                f"{shown(name)} was saved with transforms ({shown(info.transform_descriptors)}), "
                "such as compression; save it without _extensions"
            )
        _check_file_name(info.relative_path)
        starts = _sizes(index.offset)
        # Removed, so that a part that is listed twice is an error.
        shape = shapes.pop((name, starts))
        if math.prod(shape):
            parts.append(
                _TensorPart(
                    tensor=name,
                    dtype=tensors[name][0],
                    starts=starts,
                    shape=shape,
                    file=directory / info.relative_path,
                    offset=_count(info.offset),
                    length=_count(info.length),
                )
            )

    # The remaining parts have shapes and no values.
    missing_parts = [name for name, starts in shapes if tensors[name][0] in NUMPY_DTYPES]
    if missing_parts:
        raise ValueError(
            f"it does not say where {len(missing_parts)} parts lie, one of "
            f"{shown(missing_parts[0])}"
        )
    _check_apart(parts)
    return parts


def _check_apart(parts: Sequence[_TensorPart]) -> None:
    """Rejects parts that share their bytes, which would be read many times."""
    in_order = sorted(parts, key=lambda part: (part.file.name, part.offset))
    for part, next_part in pairwise(in_order):
        if part.file == next_part.file and part.offset + part.length > next_part.offset:
            raise ValueError(
                f"parts of {shown(part.tensor)} and {shown(next_part.tensor)} overlap in "
                f"{part.file.name}"
            )


def _check_file_name(name: Any) -> None:
    """Checks the name of a data file; a path could lead out of the directory."""
    is_name = isinstance(name, str) and len(name) <= _FILE_NAME_MAX and "/" not in name
    if not is_name:
        raise ValueError(f"{shown(name)} is no name of a file")


def _sizes(sizes: Any) -> tuple[int, ...]:
    if len(sizes) > RANK_MAX:
        raise ValueError(f"a shape has {len(sizes)} axes; at most {RANK_MAX} were expected")
    return tuple(_count(size) for size in sizes)


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{shown(number)} stands where a size was expected")
    return number


def _stamp_of(file: Location) -> Stamp:
    try:
        return stamp_of(file)
    except FileNotFoundError as problem:
        raise CheckpointError(
            f"data file {file} is missing; copy all files of the checkpoint"
        ) from problem


def _slice_of(part: _TensorPart, stamp: Stamp) -> Slice:
    """Returns the slice of a data file that holds the values of a part.

    Raises:
      CheckpointError: The zip file is damaged, cut short, or holds something else.
      OSError: The data file cannot be read.
    """
    if part.offset + part.length > stamp.bytes:
        raise CheckpointError(
            f"data file {part.file} is cut short: a part of {shown(part.tensor)} lies behind its "
            "end; copy it anew"
        )
    size = math.prod(part.shape) * NUMPY_DTYPES[part.dtype].itemsize
    try:
        start, crc32 = _values_of(part, size)
    except (Malformed, *_DAMAGE_ERRORS) as problem:
        raise CheckpointError(
            f"a part of {shown(part.tensor)} in {part.file} at byte {part.offset} cannot be read: "
            f"{problem}; copy the file anew"
        ) from problem
    return Slice(
        file=str(part.file),
        offset=part.offset + start,
        bytes=size,
        crc32c=None,
        starts=part.starts,
        shape=part.shape,
        stamp=stamp,
        crc32=crc32,
    )


def _values_of(part: _TensorPart, size: int) -> tuple[int, int]:
    """Returns the first byte of the values within a part's zip file, and their crc32.

    Raises:
      Malformed: The zip file holds no tensor, or one of another shape, order or size.
    """
    window = io.BufferedReader(_Window(part.file, part.offset, part.length))
    with zipfile.ZipFile(window) as archive:
        members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        for name in ("data/0", "data.pkl"):
            if name not in members:
                raise Malformed(f"it has no {name}")
        values = members["data/0"]
        pickle_member = members["data.pkl"]
        if pickle_member.file_size > _PICKLE_BYTES_MAX:
            raise Malformed("its data.pkl is too large for that of a tensor")
        # A compressed member of some bytes can become gigabytes.
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise Malformed("it is compressed; PyTorch stores tensors as they are")
        _check_tensor(archive.read(pickle_member), part)
        order = members.get("byteorder")
        if order is not None:
            is_little = order.file_size == len(_LITTLE) and archive.read(order) == _LITTLE
            if not is_little:
                raise Malformed("its values are big-endian; save it on another machine")
    if values.file_size != size:
        raise Malformed(f"its values have {values.file_size} bytes; {size} were expected")
    # The header before the values repeats their name, with an extra field of another length than
    # that of the archive's directory.
    header = read_range(part.file, part.offset + values.header_offset, _LOCAL_HEADER.size)
    magic, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    start = values.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if magic != _LOCAL_MAGIC or start + size > part.length:
        raise Malformed("its values do not lie where its directory says")
    return start, values.CRC


def _check_tensor(pickled: bytes, part: _TensorPart) -> None:
    """Checks that the values of a saved tensor are those of a part, in the order of its rows."""
    tensor = read_pickle(pickled, _tensor_name, refers_outside=True)
    if not isinstance(tensor, _SavedTensor):
        raise Malformed("it is no tensor")
    is_part = tensor.shape == part.shape and not tensor.first
    if not is_part or not _is_row_major(tensor):
        raise Malformed(
            f"its tensor has shape {list(tensor.shape)}, strides {list(tensor.strides)} and begins "
            f"at value {shown(tensor.first)}; the rows of shape {list(part.shape)} were expected, "
            "without gaps: save a contiguous tensor"
        )


def _is_row_major(tensor: _SavedTensor) -> bool:
    """Returns whether the values of a tensor lie in the order of its rows, without gaps."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True)):
        # The stride of an axis with one index is never used, and may be anything.
        if size != 1 and stride != math.prod(tensor.shape[axis + 1 :]):
            return False
    return True


class _SavedTensor(NamedTuple):
    """A tensor as `torch.save` describes it: a view of the values of its storage."""

    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tensor_name(module: str, name: str) -> Any:
    """Returns what a name in the pickle of a tensor stands for; None if it is not allowed."""
    if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
        return _rebuild_tensor
    if (module, name) == ("torch._utils", "_rebuild_parameter"):
        return _rebuild_parameter
    if (module, name) == ("collections", "OrderedDict"):
        return _empty_dict
    if module == "torch" or (module, name) == ("torch.storage", "UntypedStorage"):
        return name  # the class of the storage
    return None


def _rebuild_tensor(arguments: tuple[Any, ...]) -> _SavedTensor:
    _storage, first, shape, strides = arguments[:4]
    return _SavedTensor(first, _sizes(shape), _sizes(strides))


def _rebuild_parameter(arguments: tuple[Any, ...]) -> Any:
    return arguments[0]


class _Window(io.RawIOBase):
    """A range of a file, as a file."""

    def __init__(self, file: Location, first: int, length: int) -> None:
        self._file = file
        self._first = first
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(0, self._length - self._position))
        if not count:
            return 0
        data = read_range(self._file, self._first + self._position, count)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

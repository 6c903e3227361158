"""Lists files of safetensors: one file, or those that a `*.safetensors.index.json` names. No tensor
is read.

    8 bytes   size of the header, little-endian
    header    JSON: name -> {"dtype", "shape", "data_offsets": [begin, end]}, and "__metadata__"
    tensors   row-major, little-endian; offsets count from the end of the header

The format keeps no checksums.

Source: https://github.com/huggingface/safetensors, README.md, Format (the layout and the limit of
the header).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import google_crc32c
from pydantic import ConfigDict, Field

from bundle.shown_values import shown
from export.checkpoint.formats.upstreams import SAFETENSORS, Metadata, Sizes, parse_metadata
from export.checkpoint.variables import NUMPY_DTYPES, Entry, Listing, Slice, Storage, can_be
from export.errors import CheckpointError
from object_store.locations import Location, children, read_range, stamp_of
from object_store.stamps import Stamp

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"

_HEADER_BYTES_MAX = 100_000_000
"""The limit of the header that the format itself states."""
_INDEX_BYTES_MAX = 256 << 20
"""The maximum number of bytes that are read of an index, which has a line for each tensor."""
_SIZE_BYTES = 8
_FILES_SHOWN = 5
"""The maximum number of files that a message lists."""
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


class _FileMetadata(Metadata):
    """What a program states of a file; `format` is the library that wrote it, such as "pt"."""

    format: Any = None


class _Tensor(Metadata):
    """A tensor in the header of a file."""

    dtype: str
    shape: Sizes
    data_offsets: Annotated[list[int], Field(min_length=2, max_length=2)]


class _Header(Metadata):
    """The header of a file: each further field is a tensor."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Tensor]

    file_metadata: _FileMetadata | None = Field(None, alias="__metadata__")


class _IndexMetadata(Metadata):
    """What an index states of all tensors."""

    total_parameters: Any = None
    total_size: Any = None


class _Index(Metadata):
    """An index: the file of each tensor."""

    metadata: _IndexMetadata | None = None
    weight_map: dict[str, str]


def find_safetensors(path: Location) -> Location | None:
    """Returns the file or the index that a path means: the path itself, or the only one in a
    directory. Returns None if there is none.

    Raises:
      CheckpointError: A directory holds several files and no index of them.
      OSError: The directory cannot be listed.
    """
    if path.name.endswith((SUFFIX, INDEX_SUFFIX)):
        return path if path.is_file() else None
    if not path.is_dir():
        return None

    files = children(path)
    # An index stands for the files that it names.
    candidates = [file for file in files if file.name.endswith(INDEX_SUFFIX)]
    if not candidates:
        candidates = [file for file in files if file.name.endswith(SUFFIX)]
    if len(candidates) > 1:
        names = ", ".join(file.name for file in candidates[:_FILES_SHOWN])
        raise CheckpointError(
            f"directory {path} holds {len(candidates)} checkpoints of safetensors ({names}); give "
            "one of them, or the index of them all"
        )
    if not candidates:
        return None
    return candidates[0]


def list_safetensors(path: Location) -> Listing:
    """Lists the tensors of a file, or of all files that an index names.

    Raises:
      CheckpointError: A file is damaged, cut short, or missing.
      OSError: A file cannot be read.
    """
    files = [path]
    if path.name.endswith(INDEX_SUFFIX):
        files = _files_of(path)
    entries: dict[str, Entry] = {}
    digest = 0
    for file in files:
        stamp = stamp_of(file)
        header = _header_of(file, stamp)
        # The format keeps no checksums of values: the stamp distinguishes files with one header.
        digest = google_crc32c.extend(digest, header + stamp.tag.encode())
        tensors = parse_metadata(_Header, header, file, SAFETENSORS).model_extra or {}
        data_start = _SIZE_BYTES + len(header)
        for name, tensor in tensors.items():
            if name in entries:
                raise CheckpointError(f"{path}: tensor {shown(name)} is in two files; save it anew")
            entries[name] = _entry(file, stamp, name, tensor, data_start)
        _check_no_holes(file, tensors, stamp.bytes - data_start)
    return Listing(f"crc32c:{digest:08x}", entries, Storage("PyTorch"))


def _check_no_holes(file: Location, tensors: Mapping[str, _Tensor], data_bytes: int) -> None:
    """Rejects tensors that do not fill the file one behind the other, as safetensors itself does.

    No checksum covers the header. Where a name is damaged into another's, one of the two is lost.
    """
    end = 0
    for begin, next_end in sorted(tensor.data_offsets for tensor in tensors.values()):
        if begin != end:
            raise CheckpointError(
                f"{file}: its header is damaged: a tensor begins at byte {begin} of the data, "
                f"where {end} was expected; copy the file anew"
            )
        end = next_end
    if end != data_bytes:
        raise CheckpointError(
            f"{file}: its header is damaged: its tensors end at byte {end} of {data_bytes} of the "
            "data; copy the file anew"
        )


def _files_of(index: Location) -> list[Location]:
    content = parse_metadata(_Index, read_range(index, 0, _INDEX_BYTES_MAX), index, SAFETENSORS)
    # Sorted, as the fingerprint depends on the order of the files.
    names = sorted(set(content.weight_map.values()))
    files = []
    for name in names:
        file = index.parent / name
        # A path could lead out of the directory.
        if "/" in name or not file.is_file():
            raise CheckpointError(
                f"{index} names {shown(name)}, which is not beside it; copy all files of the "
                "checkpoint"
            )
        files.append(file)
    return files


def _header_of(file: Location, stamp: Stamp) -> bytes:
    size = int.from_bytes(read_range(file, 0, _SIZE_BYTES), "little")
    if size > _HEADER_BYTES_MAX:
        raise CheckpointError(
            f"{file} begins with a header of {size} bytes; at most {_HEADER_BYTES_MAX} are "
            "allowed: it is no file of safetensors, or damaged"
        )
    if _SIZE_BYTES + size > stamp.bytes:
        raise CheckpointError(f"{file} is cut short in its header; copy it anew")
    return read_range(file, _SIZE_BYTES, size)


def _entry(file: Location, stamp: Stamp, name: str, tensor: _Tensor, data_start: int) -> Entry:
    begin, end = tensor.data_offsets
    shape = tuple(tensor.shape)
    dtype = _DTYPES.get(tensor.dtype, tensor.dtype)
    if not can_be(shape) or not 0 <= begin <= end:
        raise CheckpointError(
            f"{file}: the header of tensor {shown(name)} is damaged: shape {shown(shape)} and "
            f"data_offsets {shown([begin, end])} cannot be; copy the file anew"
        )
    if data_start + end > stamp.bytes:
        raise CheckpointError(
            f"{file} is cut short: {shown(name)} lies behind its end; copy it anew"
        )
    # Values of other dtypes, such as 8-bit floats, are listed and never read.
    if dtype not in NUMPY_DTYPES:
        return Entry(name, dtype, shape, ())
    if end - begin != math.prod(shape) * NUMPY_DTYPES[dtype].itemsize:
        raise CheckpointError(
            f"{file}: tensor {shown(name)} of shape {list(shape)} and {dtype} has {end - begin} "
            "bytes; copy the file anew"
        )
    whole = Slice(
        file=str(file),
        offset=data_start + begin,
        bytes=end - begin,
        crc32c=None,
        starts=(0,) * len(shape),
        shape=shape,
        stamp=stamp,
    )
    return Entry(name, dtype, shape, (whole,))

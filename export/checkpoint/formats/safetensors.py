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
from typing import Any

import google_crc32c
import orjson

from bundle.shown_values import SHOWN_MAX, shown
from export.checkpoint.variables import NUMPY_DTYPES, Entry, Listing, Slice, Storage, can_be
from export.errors import CheckpointError
from object_store.locations import Location, read_range, stamp_of
from object_store.stamps import Stamp

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"

_HEADER_BYTES_MAX = 100_000_000
"""The limit of the header that the format itself states."""
_INDEX_BYTES_MAX = 256 << 20
"""The maximum number of bytes that are read of an index, which has a line for each tensor."""
_SIZE_BYTES = 8
_METADATA_KEYS = frozenset({"format"})
"""Keys of a file's metadata: `format` is the library that wrote the file, such as "pt"."""
_INDEX_KEYS = frozenset({"metadata", "weight_map"})
_INDEX_METADATA_KEYS = frozenset({"total_parameters", "total_size"})
_TENSOR_KEYS = frozenset({"dtype", "shape", "data_offsets"})
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

    children: list[Location] = sorted(path.iterdir(), key=str)
    # An index stands for the files that it names.
    candidates = [file for file in children if file.name.endswith(INDEX_SUFFIX)]
    if not candidates:
        candidates = [file for file in children if file.name.endswith(SUFFIX)]
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
        tensors = _tensors_of(file, header)
        data_start = _SIZE_BYTES + len(header)
        for name, tensor in tensors.items():
            if name in entries:
                raise CheckpointError(f"{path}: tensor {shown(name)} is in two files; save it anew")
            entries[name] = _entry(file, stamp, name, tensor, data_start)
        _check_no_holes(file, tensors, stamp.bytes - data_start)
    return Listing(f"crc32c:{digest:08x}", entries, Storage("PyTorch"))


def _check_no_holes(file: Location, tensors: Mapping[str, Any], data_bytes: int) -> None:
    """Rejects tensors that do not fill the file one behind the other, as safetensors itself does.

    No checksum covers the header. Where a name is damaged into another's, one of the two is lost.
    """
    end = 0
    for begin, next_end in sorted(tuple(tensor["data_offsets"]) for tensor in tensors.values()):
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
    try:
        content = orjson.loads(read_range(index, 0, _INDEX_BYTES_MAX))
        weight_map = content["weight_map"]
        # Sorted, as the fingerprint depends on the order of the files.
        names = sorted({str(name) for name in weight_map.values()})
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        raise CheckpointError(f"{index} is no index of safetensors: {problem}") from problem
    _check_known(index, content, _INDEX_KEYS, "it")
    _check_known(index, content.get("metadata"), _INDEX_METADATA_KEYS, "its 'metadata'")
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


def _tensors_of(file: Location, header: bytes) -> dict[str, Any]:
    try:
        tensors = orjson.loads(header)
        if not isinstance(tensors, dict):
            raise ValueError("it is no JSON object")
    except ValueError as problem:
        raise CheckpointError(
            f"{file}: its header is damaged: {problem}; copy the file anew"
        ) from problem
    metadata = tensors.pop("__metadata__", {})
    _check_known(file, metadata, _METADATA_KEYS, "'__metadata__' of its header")
    for name, tensor in tensors.items():
        _check_known(file, tensor, _TENSOR_KEYS, f"tensor {name[:SHOWN_MAX]!r} in its header")
    return tensors


def _check_known(file: Location, metadata: Any, known_keys: frozenset[str], subject: str) -> None:
    """Rejects keys whose meaning is not known: they may say in which order the rows of tensors lie.

    Raises:
      CheckpointError: There is an unknown key.
    """
    unknown = []
    if isinstance(metadata, dict):
        unknown = sorted(set(metadata) - known_keys)
    if unknown:
        raise CheckpointError(
            f"{file}: {subject} has {shown(unknown[0])}, which is not understood and may "
            "say in which order rows lie; save the tensors with their rows in the order of the "
            "ids, without it"
        )


def _entry(file: Location, stamp: Stamp, name: str, tensor: Any, data_start: int) -> Entry:
    try:
        begin, end = tensor["data_offsets"]
        shape = tuple(tensor["shape"])
        dtype = _DTYPES.get(tensor["dtype"], str(tensor["dtype"]))
        # `True` is an int, too, and a shape of a damaged header may hold anything.
        are_numbers = all(type(number) is int for number in (begin, end, *shape))
        if not are_numbers or not can_be(shape) or not 0 <= begin <= end:
            raise ValueError(
                f"shape {shown(shape)} and data_offsets {shown([begin, end])} cannot be"
            )
    except (ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(
            f"{file}: the header of tensor {shown(name)} is damaged: {problem}; copy the file anew"
        ) from problem
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

"""Lists what Keras saved in HDF5: `.weights.h5`, a `.keras` archive, and in the older format the
weights or the whole of a model in `.h5`. No array is read.

The older format, of tf-keras and of Keras 3's `model.save("model.h5")`, has a group for each layer,
and attributes that list the layers and their weights in order (`layer_names`, `weight_names`).

A dataset that is contiguous, as Keras writes all, is a slice of the file: its rows are read without
h5py. In an archive the file lies as it is (Keras stores it uncompressed), so a dataset is a slice
of the archive. HDF5 keeps no checksums; the archive keeps the crc32 of the whole file, which is
checked when it is opened, up to CHECKED_BYTES_MAX.
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import orjson

from export.checkpoint.formats.arrays import HDF5, held_bytes
from export.checkpoint.formats.hdf5 import MODEL, Contents, Dataset, list_hdf5
from export.checkpoint.formats.keras_archive import (
    NOTHING,
    WEIGHTS,
    Description,
    describe_archive,
    describe_directory,
)
from export.checkpoint.formats.prefixes import told_by_name
from export.checkpoint.variables import (
    NUMPY_DTYPES,
    ArrayStore,
    Entry,
    Listing,
    OrderedLayer,
    Slice,
    Storage,
    can_be,
)
from export.errors import CheckpointError
from object_store.stamps import local_stamp

CHECKED_BYTES_MAX = 256 << 20
SUFFIXES = (".h5", ".hdf5", ".keras", ".weights.json")

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_SHOWN_MAX = 200
_ZIP = b"PK\x03\x04"
_HDF = b"\x89HDF\r\n\x1a\n"


def find_keras(path: Path) -> Path | None:
    """Returns the Keras file that a path means: itself, or the only one in a directory. None: it is
    or has none.

    Raises:
      CheckpointError: a directory holds several.
    """
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(len(_HDF))
        # PyTorch and NumPy write zip files, too.
        zipped = head[: len(_ZIP)] == _ZIP and not told_by_name(path)
        return path if head == _HDF or zipped or path.name.endswith(".weights.json") else None
    found = [
        child
        for child in sorted(path.iterdir())
        if child.name.endswith(SUFFIXES) and child.is_file()
    ]
    sharded = [child for child in found if child.name.endswith(".weights.json")]
    shards = {child.with_name(name) for child in sharded for name in _shards(child)}
    found = [child for child in found if child not in shards]
    if len(found) > 1:
        names = ", ".join(child.name for child in found[-5:])
        raise CheckpointError(
            f"directory {path} holds {len(found)} Keras files ({names}); give one of them"
        )
    return found[0] if found else None


def list_keras(path: Path) -> Listing:
    """Lists a Keras file, or the files of a sharded save; of an archive, the fingerprint is of its
    content.

    Raises:
      CheckpointError: it is damaged, cut short, or no file of Keras; or h5py is missing.
    """
    entries: dict[str, Entry] = {}
    names: dict[str, str] = {}
    described = NOTHING
    model: dict[str, Any] = {}
    ordered: tuple[OrderedLayer, ...] = ()
    version = ""
    digest = 0
    archived = path.name.endswith(".keras") or zipfile.is_zipfile(path)
    files = (
        [path.with_name(name) for name in _shards(path)]
        if path.name.endswith(".weights.json")
        else [path]
    )
    for file in files:
        if not file.is_file():
            raise CheckpointError(
                f"{path} names {file.name}, which is not beside it; copy all files of the save"
            )
        start = 0
        status = file.stat()
        stamp = f"{status.st_size} {status.st_mtime_ns}"
        if archived:
            start, size, crc, described = _member(file)
            stamp = f"{size} {crc:08x}"
        else:
            described = describe_directory(file)
        listing = list_hdf5(str(file), WEIGHTS if archived else None)
        if listing.unknown:
            raise CheckpointError(
                f"{file}: it has the attribute {listing.unknown[0][:_SHOWN_MAX]!r}, which is not "
                "understood and may say in which order the rows of tables lie; Keras writes none "
                "of that name: save the weights without it"
            )
        for dataset in listing.datasets:
            entries[dataset.key] = _entry(dataset, file, start, archived=archived)
        names |= listing.names
        model = described.config or _object(listing.model_config)
        ordered = _ordered_layers(listing, entries, file)
        version = described.keras_version or listing.keras_version
        listed = "".join(f"{key} {entry.dtype} {entry.shape}" for key, entry in entries.items())
        digest = google_crc32c.extend(digest, (stamp + listed).encode())
    layers = {key: names[group] for key in entries if (group := key.rpartition("/")[0]) in names}
    storage = Storage(
        "Keras",
        layer_names=layers,
        model=model,
        assets=described.assets,
        layers={"": model} if ordered and {"class_name", "config"} <= model.keys() else {},
        ordered_layers=ordered,
        keras_version=version,
    )
    return Listing(f"crc32c:{digest:08x}", entries, storage)


def _ordered_layers(
    listing: Contents, entries: Mapping[str, Entry], file: Path
) -> tuple[OrderedLayer, ...]:
    """Returns the layers of a file in the order that it states.

    Raises:
      CheckpointError: It states a weight that it does not hold.
    """
    for name, weights in listing.layers.items():
        missing = [key for key in weights.values() if key not in entries]
        if missing:
            raise CheckpointError(
                f"{file} lists {missing[0][:_SHOWN_MAX]!r} among the weights of layer "
                f"{name[:_SHOWN_MAX]!r}, and holds no such dataset; copy it anew"
            )
    return tuple(
        OrderedLayer("" if name == MODEL else name, weights)
        for name, weights in listing.layers.items()
    )


def _shards(index: Path) -> list[str]:
    """Returns the files that the index of a sharded save names."""
    try:
        named = orjson.loads(index.read_bytes())["weight_map"].values()
    except (orjson.JSONDecodeError, KeyError, AttributeError, TypeError) as problem:
        raise CheckpointError(f"{index} is no index of Keras weights: {problem}") from problem
    flat = [name for each in named for name in (each if isinstance(each, list) else [each])]
    return sorted({Path(str(name)).name for name in flat})


def _member(archive: Path) -> tuple[int, int, int, Description]:
    """Returns where the weights lie in a .keras archive: first byte, size, crc32; and what it says
    beside them.
    """
    try:
        with zipfile.ZipFile(archive) as file, archive.open("rb") as raw:
            if WEIGHTS not in file.namelist():
                raise CheckpointError(
                    f"{archive} is a zip file without {WEIGHTS}, no archive of Keras (PyTorch "
                    "writes such files too, which are not read here)"
                )
            info = file.getinfo(WEIGHTS)
            if info.compress_type != zipfile.ZIP_STORED:
                raise CheckpointError(
                    f"{WEIGHTS} in {archive} is compressed; unzip the archive and give that file "
                    "instead"
                )
            raw.seek(info.header_offset)
            magic, name, extra = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
            start = info.header_offset + _LOCAL_HEADER.size + name + extra
            if magic != _ZIP or start + info.file_size > archive.stat().st_size:
                raise CheckpointError(f"{archive} is cut short; copy it anew")
            if info.file_size <= CHECKED_BYTES_MAX:
                with file.open(info) as weights:
                    while weights.read(1 << 20):  # at its end, zipfile checks its crc32
                        pass
            described = describe_archive(file, archive)
    except (
        OSError,
        RuntimeError,
        KeyError,
        ValueError,
        TypeError,
        struct.error,
        zipfile.BadZipFile,
    ) as problem:
        reason = str(problem).splitlines()[0][:200] if str(problem) else type(problem).__name__
        raise CheckpointError(
            f"{archive} cannot be read: {reason}; it is damaged, copy it anew"
        ) from problem
    return start, info.file_size, info.CRC, described


def _entry(dataset: Dataset, file: Path, start: int, *, archived: bool) -> Entry:
    """Returns a dataset: a slice of the file if it is contiguous, of which the listed part begins
    at `start`.
    """
    key = dataset.key
    shape = dataset.shape
    dtype = _dtype(dataset)
    if not can_be(shape):
        raise CheckpointError(
            f"{file}: {key!r} has the shape {list(shape)}, which nothing can have; copy it anew"
        )
    if dataset.problem:
        raise CheckpointError(f"{file}: {key!r}: {dataset.problem}")
    if dtype not in NUMPY_DTYPES:
        return Entry(key, dtype, shape, ())
    itemsize = NUMPY_DTYPES[dtype].itemsize
    status = file.stat()
    count = math.prod(shape) * itemsize
    offset = dataset.offset if count else 0  # HDF5 stores nothing of an empty dataset
    if offset >= 0:
        if start + offset + count > status.st_size or dataset.stored_bytes != count:
            raise CheckpointError(f"{file} is cut short: {key!r} lies behind its end; copy it anew")
        where = (
            str(file),
            start + offset,
            count,
            None,
            (0,) * len(shape),
            shape,
            local_stamp(status),
        )
        return Entry(key, dtype, shape, (Slice(*where),))
    chunk = dataset.chunks or shape
    spec = {
        "driver": HDF5,
        "path": str(file),
        "member": WEIGHTS if archived else None,
        "dataset": key,
    }
    held = held_bytes(shape, chunk, itemsize)
    return Entry(
        key,
        dtype,
        shape,
        (),
        ArrayStore(orjson.dumps(spec).decode(), chunk, held, str(file), local_stamp(status)),
    )


def _dtype(dataset: Dataset) -> str:
    """Returns a dataset's dtype by TensorFlow's name; Keras writes bfloat16 as two bytes with an
    attribute.
    """
    if dataset.dtype == "|V2" and dataset.told_dtype == "bfloat16":
        return "bfloat16"
    if re.fullmatch(r"[<|][fiub]\d+", dataset.dtype):
        return np.dtype(dataset.dtype).name
    return f"HDF5 {dataset.dtype}"


def _object(text: str) -> dict[str, Any]:
    """Returns a JSON object; {} if it is none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}

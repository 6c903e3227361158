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

from bundle.shown_values import SHOWN_MAX, shown
from bundle.storage.regular_files import read_regular
from export.checkpoint.formats.arrays import HDF5, memory_bytes
from export.checkpoint.formats.hdf5 import MODEL, Contents, Dataset, list_hdf5
from export.checkpoint.formats.keras_archive import (
    CONFIG_BYTES_MAX,
    NOTHING,
    WEIGHTS,
    Description,
    describe_archive,
    describe_directory,
    parse_config,
)
from export.checkpoint.formats.prefixes import kind_by_name
from export.checkpoint.formats.upstreams import KERAS, Metadata, UnknownFields, parse_metadata
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
"""The maximum size of a file in an archive whose crc32 is checked when it is opened. Larger files
would be read twice, and take longer than opening a checkpoint should.
"""
SUFFIXES = (".h5", ".hdf5", ".keras", ".weights.json")

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_FILES_SHOWN = 5
"""The maximum number of files that a message lists."""
_ZIP = b"PK\x03\x04"
_HDF = b"\x89HDF\r\n\x1a\n"


class _WeightsIndex(Metadata):
    """The index of a sharded save: the file or the files of each layer."""

    metadata: Any = None
    weight_map: dict[str, str | list[str]]


def find_keras(path: Path) -> Path | None:
    """Returns the Keras file that a path means: the file itself, or the only one in a directory.
    Returns None if there is none.

    Raises:
      CheckpointError: A directory holds several files.
    """
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(len(_HDF))
        # PyTorch and NumPy write zip files, too.
        is_zip = head[: len(_ZIP)] == _ZIP and not kind_by_name(path)
        if head == _HDF or is_zip or path.name.endswith(".weights.json"):
            return path
        return None

    candidates = [
        child
        for child in sorted(path.iterdir())
        if child.name.endswith(SUFFIXES) and child.is_file()
    ]
    # The shards of a save belong to its index.
    indexes = [child for child in candidates if child.name.endswith(".weights.json")]
    shards = {index.with_name(name) for index in indexes for name in _shards(index)}
    files = [child for child in candidates if child not in shards]
    if len(files) > 1:
        names = ", ".join(child.name for child in files[-_FILES_SHOWN:])
        raise CheckpointError(
            f"directory {path} holds {len(files)} Keras files ({names}); give one of them"
        )
    if not files:
        return None
    return files[0]


def list_keras(path: Path) -> Listing:
    """Lists a Keras file, or the files of a sharded save. The fingerprint of an archive is that of
    its content.

    Raises:
      CheckpointError: The file is damaged, cut short, or no file of Keras; or h5py is missing.
    """
    entries: dict[str, Entry] = {}
    names: dict[str, str] = {}
    description = NOTHING
    model: dict[str, Any] = {}
    ordered_layers: tuple[OrderedLayer, ...] = ()
    version = ""
    digest = 0
    is_archive = path.name.endswith(".keras") or zipfile.is_zipfile(path)
    files = [path]
    if path.name.endswith(".weights.json"):
        files = [path.with_name(name) for name in _shards(path)]

    for file in files:
        if not file.is_file():
            raise CheckpointError(
                f"{path} names {shown(file.name)}, which is not beside it; copy all files of the "
                "save"
            )
        start = 0
        if is_archive:
            # The checksum distinguishes contents, wherever the archive was copied to.
            start, size, crc, description = _weights_member(file)
            stamp = f"{size} {crc:08x}"
            listing = list_hdf5(str(file), WEIGHTS)
        else:
            status = file.stat()
            # HDF5 has no checksum: size and time distinguish one save from another.
            stamp = f"{status.st_size} {status.st_mtime_ns}"
            description = describe_directory(file)
            listing = list_hdf5(str(file), None)
        _check_attributes(listing, file)

        for dataset in listing.datasets:
            entries[dataset.key] = _entry(dataset, file, start, archived=is_archive)
        names |= listing.names
        model = description.config
        if listing.model_config and not model:
            model = parse_config(listing.model_config, f"the attribute 'model_config' of {file}")
        ordered_layers = _ordered_layers(listing, entries, file)
        version = description.keras_version or listing.keras_version
        entry_text = "".join(f"{key} {entry.dtype} {entry.shape}" for key, entry in entries.items())
        digest = google_crc32c.extend(digest, (stamp + entry_text).encode())

    layer_names = {}
    for key in entries:
        group = key.rpartition("/")[0]
        if group in names:
            layer_names[key] = names[group]
    layers = {}
    if ordered_layers and {"class_name", "config"} <= model.keys():
        layers = {"": model}
    storage = Storage(
        "Keras",
        layer_names=layer_names,
        model=model,
        assets=description.assets,
        layers=layers,
        ordered_layers=ordered_layers,
        keras_version=version,
    )
    return Listing(f"crc32c:{digest:08x}", entries, storage)


def _check_attributes(listing: Contents, file: Path) -> None:
    """Checks that a file has no attribute of unknown meaning.

    Raises:
      CheckpointError: There is an attribute that Keras does not write.
    """
    if listing.unknown:
        unknown = [f"attribute {shown(name)}" for name in listing.unknown]
        raise CheckpointError(f"{file}: {UnknownFields(KERAS, unknown)}")


def _ordered_layers(
    listing: Contents, entries: Mapping[str, Entry], file: Path
) -> tuple[OrderedLayer, ...]:
    """Returns the layers of a file in the order that it states.

    Raises:
      CheckpointError: The file lists a weight that it does not hold.
    """
    layers = []
    for name, weights in listing.layers.items():
        missing = [key for key in weights.values() if key not in entries]
        if missing:
            raise CheckpointError(
                f"{file} lists {shown(missing[0])} among the weights of layer "
                f"{shown(name)}, and holds no such dataset; copy it anew"
            )
        # Weights of the model itself belong to no layer.
        layers.append(OrderedLayer("" if name == MODEL else name, weights))
    return tuple(layers)


def _shards(index: Path) -> list[str]:
    """Returns the files that the index of a sharded save names."""
    content = parse_metadata(_WeightsIndex, read_regular(index, CONFIG_BYTES_MAX), index, KERAS)
    # The weights of one layer may be in several files, which the index then lists.
    names: set[str] = set()
    for files in content.weight_map.values():
        if isinstance(files, list):
            names.update(files)
        else:
            names.add(files)
    # Only the name counts: a path could lead out of the directory.
    files_by_name = {Path(name).name: name for name in names}
    if "" in files_by_name:
        raise CheckpointError(
            f"{index} names {shown(files_by_name[''])}; the name of a file of weights was "
            "expected: copy all files of the save"
        )
    return sorted(files_by_name)


def _weights_member(archive: Path) -> tuple[int, int, int, Description]:
    """Returns the first byte, the size and the crc32 of the weights in a .keras archive, and what
    the archive holds beside them.
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
            # The lengths of name and extra field may differ between the archive's directory, which
            # zipfile reads, and the header before the file itself, which has the right ones.
            raw.seek(info.header_offset)
            magic, name, extra = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
            start = info.header_offset + _LOCAL_HEADER.size + name + extra
            if magic != _ZIP or start + info.file_size > archive.stat().st_size:
                raise CheckpointError(f"{archive} is cut short; copy it anew")
            if info.file_size <= CHECKED_BYTES_MAX:
                with file.open(info) as weights:
                    # zipfile compares the crc32 when it has read the last byte.
                    while weights.read(1 << 20):
                        pass
            description = describe_archive(file, archive)
    except (
        OSError,
        RuntimeError,
        KeyError,
        ValueError,
        TypeError,
        struct.error,
        zipfile.BadZipFile,
    ) as problem:
        reason = type(problem).__name__
        if str(problem):
            reason = str(problem).splitlines()[0][:SHOWN_MAX]
        raise CheckpointError(
            f"{archive} cannot be read: {reason}; it is damaged, copy it anew"
        ) from problem
    return start, info.file_size, info.CRC, description


def _entry(dataset: Dataset, file: Path, start: int, *, archived: bool) -> Entry:
    """Returns the entry of a dataset: a slice of the file if the dataset is contiguous.

    Args:
      dataset: The dataset.
      file: The file or archive that holds it.
      start: The first byte of the HDF5 file in the archive; 0 if `file` is no archive.
      archived: Whether `file` is an archive.
    """
    key = dataset.key
    shape = dataset.shape
    dtype = _dtype(dataset)
    if not can_be(shape):
        raise CheckpointError(
            f"{file}: {shown(key)} has the shape {shown(list(shape))}, which nothing can have; "
            "copy it anew"
        )
    if dataset.problem:
        raise CheckpointError(f"{file}: {key!r}: {dataset.problem}")
    if dtype not in NUMPY_DTYPES:
        return Entry(key, dtype, shape, ())

    itemsize = NUMPY_DTYPES[dtype].itemsize
    status = file.stat()
    stamp = local_stamp(status)
    size_bytes = math.prod(shape) * itemsize
    offset = dataset.offset
    if not size_bytes:
        # HDF5 stores nothing of an empty dataset.
        offset = 0
    if offset >= 0:
        if start + offset + size_bytes > status.st_size or dataset.stored_bytes != size_bytes:
            raise CheckpointError(f"{file} is cut short: {key!r} lies behind its end; copy it anew")
        whole = Slice(str(file), start + offset, size_bytes, None, (0,) * len(shape), shape, stamp)
        return Entry(key, dtype, shape, (whole,))

    chunk = dataset.chunks or shape
    spec = {
        "driver": HDF5,
        "path": str(file),
        "member": WEIGHTS if archived else None,
        "dataset": key,
    }
    array = ArrayStore(
        orjson.dumps(spec).decode(),
        chunk,
        memory_bytes(shape, chunk, itemsize),
        str(file),
        stamp,
    )
    return Entry(key, dtype, shape, (), array)


def _dtype(dataset: Dataset) -> str:
    """Returns a dataset's dtype by TensorFlow's name; Keras writes bfloat16 as two bytes with an
    attribute.
    """
    if dataset.dtype == "|V2" and dataset.attribute_dtype == "bfloat16":
        return "bfloat16"
    if re.fullmatch(r"[<|][fiub]\d+", dataset.dtype):
        return np.dtype(dataset.dtype).name
    return f"HDF5 {dataset.dtype}"

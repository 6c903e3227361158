"""The formats of checkpoints: how arrays are written in each, and which damage it cannot show.

TensorFlow, h5py and tensorstore write their own formats. Files of safetensors, of PyTorch and of
parameter servers are written by the descriptions of these formats, since no test may need their
libraries; tests/differential has what PyTorch itself wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tests.laws.hdf5_files import (
    HDF5_ENCODINGS,
    outside_of_datasets,
    write_archive,
    write_shards,
    write_weights,
)
from tests.laws.stored_arrays import (
    DTYPES,
    Reach,
    StoredArray,
    Values,
    part_of,
    random_values,
)
from tests.laws.zarr_files import (
    ZARR_2_ENCODINGS,
    ZARR_3_ENCODINGS,
    descriptions_of_arrays,
    write_zarr,
)
from tests.units.export.checkpoint import dump_files
from tests.units.export.checkpoint.formats.safetensors_files import write_safetensors
from tests.units.export.checkpoint.formats.torch_files import Part, write_torch

Arrays: TypeAlias = Mapping[str, StoredArray]
Stored: TypeAlias = dict[str, Values]
Mask: TypeAlias = NDArray[np.bool_]

SOK_HEAD_BYTES = len(dump_files.head(dump_files.KEYS, 0))


def no_bytes(file: Path) -> Mask:
    return np.zeros(file.stat().st_size, bool)


class Format(NamedTuple):
    """One format.

    Attributes:
      write: Writes arrays into an empty directory; returns everything that is stored, by its key.
      encodings: How values may be stored, and what a flipped bit among them changes at most without
        being noticed: nothing, where the format keeps a checksum.
      dtypes: What an array may hold.
      ranks: How many axes an array may have.
      extent_min: The smallest extent of an axis.
      in_stores: Whether it is read from object stores, too.
      descriptions: Returns which bytes of a file describe arrays: shapes, dtypes and places.
      descriptions_are_summed: Whether a checksum covers these. Otherwise, they may describe other
        arrays if one is damaged.
      sizes_are_stated: Whether it says how many values a file holds. Otherwise, a shorter file may
        be another array.
    """

    write: Callable[[Path, Arrays], Stored]
    encodings: Mapping[str, Reach]
    dtypes: tuple[str, ...] = tuple(DTYPES)
    ranks: tuple[int, ...] = (0, 1, 2, 3)
    extent_min: int = 0
    in_stores: bool = False
    descriptions: Callable[[Path], Mask] = no_bytes
    descriptions_are_summed: bool = False
    sizes_are_stated: bool = True


def values_of(arrays: Arrays) -> Stored:
    return {key: array.values for key, array in arrays.items()}


def write_tensor_bundle(directory: Path, arrays: Arrays) -> Stored:
    """Saves the slices of arrays in two files, in turn."""
    files: list[list[tuple[str, str, Values]]] = [[], []]
    for key, array in arrays.items():
        for number, box in enumerate(array.boxes):
            shape = " ".join(str(size) for size in array.values.shape)
            extents = ":".join(f"{start},{size}" for start, size in box)
            is_whole = len(array.boxes) == 1
            specification = "" if is_whole else f"{shape} {extents}"
            files[number % 2].append((key, specification, part_of(array.values, box)))
    prefixes = []
    for number, slices in enumerate(filter(None, files)):
        prefixes.append(f"{directory}/part-{number}")
        names, specifications, tensors = zip(*slices, strict=True)
        tf.raw_ops.SaveV2(
            prefix=prefixes[-1],
            tensor_names=names,
            shape_and_slices=specifications,
            tensors=tensors,
        )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=prefixes, destination_prefix=f"{directory}/ckpt"
    )
    return values_of(arrays)


def write_torch_distributed(directory: Path, arrays: Arrays) -> Stored:
    """Saves the parts of tensors in two files, in turn."""
    parts = []
    for key, array in arrays.items():
        for number, box in enumerate(array.boxes):
            starts = tuple(start for start, _ in box)
            file = f"__{number % 2}_0.distcp"
            parts.append(Part(key, starts, part_of(array.values, box), file))
    write_torch(directory, values_of(arrays), parts)
    return values_of(arrays)


def write_safetensors_file(directory: Path, arrays: Arrays) -> Stored:
    write_safetensors(directory / "a.safetensors", values_of(arrays))
    return values_of(arrays)


def write_safetensors_index(directory: Path, arrays: Arrays) -> Stored:
    files = {key: f"{key}.safetensors" for key in arrays}
    for key, array in arrays.items():
        write_safetensors(directory / files[key], {key: array.values})
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return values_of(arrays)


def keys_of(array: StoredArray) -> Values:
    """Returns a key for each row of a dumped table; the array's encoding is their dtype."""
    rows = len(array.values)
    return random_values(array.encoding, (rows,), rows)


def write_sok(directory: Path, arrays: Arrays) -> Stored:
    stored: Stored = {}
    for name, array in arrays.items():
        keys = keys_of(array)
        slot = array.values[::-1]
        dump_files.sok_dump(directory, name, keys, array.values, m=slot)
        stored |= {f"{name}-key": keys, f"{name}-weight": array.values, f"{name}-Adam-m": slot}
    return stored


def write_sok_1(directory: Path, arrays: Arrays) -> Stored:
    stored: Stored = {}
    for name, array in arrays.items():
        keys = keys_of(array)
        dump_files.saver_dump(directory, name, keys, array.values)
        stored |= {f"{name}_keys.file": keys, f"{name}_values.file": array.values}
    return stored


def write_hugectr(directory: Path, arrays: Arrays) -> Stored:
    stored: Stored = {}
    for name, array in arrays.items():
        keys = keys_of(array)
        dump_files.hugectr_dump(directory / name, keys, array.values)
        stored |= {f"{name}/key": keys, f"{name}/emb_vector": array.values}
    return stored


def write_collections(directory: Path, arrays: Arrays) -> Stored:
    """Dumps each array as a collection of two tables: itself and its first row."""
    stored: Stored = {}
    for number, array in enumerate(arrays.values()):
        keys = keys_of(array)
        tables = [(keys, array.values), (keys[:1], array.values[:1])]
        dump_files.collection_dump(directory, tables, number, mixed=number == 1)
        for table, (table_keys, vectors) in enumerate(tables):
            stored[f"embedding_collection_{number}/key{table}"] = table_keys
            stored[f"embedding_collection_{number}/weight{table}"] = vectors
    return stored


def sok_head(file: Path) -> Mask:
    """Returns which bytes of a file of SOK are its head."""
    return np.arange(file.stat().st_size) < SOK_HEAD_BYTES


Dump = partial(Format, dtypes=("float32",), ranks=(2,), extent_min=1, sizes_are_stated=False)
Zarr = partial(Format, descriptions=descriptions_of_arrays)

FORMATS = {
    "TensorBundle": Format(write_tensor_bundle, {"": "nothing"}, in_stores=True),
    "torch.distributed": Format(write_torch_distributed, {"": "nothing"}, in_stores=True),
    "safetensors": Format(write_safetensors_file, {"": "a bit"}, in_stores=True),
    "safetensors index": Format(write_safetensors_index, {"": "a bit"}, in_stores=True),
    "zarr 2": Zarr(partial(write_zarr, driver="zarr", packed=False), ZARR_2_ENCODINGS),
    "zarr 2 in OCDBT": Zarr(partial(write_zarr, driver="zarr", packed=True), ZARR_2_ENCODINGS),
    "zarr 3": Zarr(partial(write_zarr, driver="zarr3", packed=False), ZARR_3_ENCODINGS),
    "zarr 3 in OCDBT": Zarr(partial(write_zarr, driver="zarr3", packed=True), ZARR_3_ENCODINGS),
    "SOK": Dump(
        write_sok,
        dict.fromkeys(("int32", "int64", "uint32", "uint64"), "a bit"),
        dtypes=("float16", "float32", "float64"),
        descriptions=sok_head,
    ),
    "SOK 1": Dump(write_sok_1, {"int64": "a bit"}),
    "HugeCTR": Dump(write_hugectr, {"int64": "a bit"}),
    "HugeCTR collections": Dump(write_collections, dict.fromkeys(("uint32", "int64"), "a bit")),
}

HDF5_FORMATS = {
    "weights.h5": Format(write_weights, HDF5_ENCODINGS, descriptions=outside_of_datasets),
    "weights.json": Format(write_shards, HDF5_ENCODINGS),
    # The archive keeps a crc32 of the whole file.
    "keras": Format(
        write_archive,
        dict.fromkeys(HDF5_ENCODINGS, "nothing"),
        descriptions=outside_of_datasets,
        descriptions_are_summed=True,
    ),
}
"""Formats that take long to open: a process of its own lists each file."""

"""Arrays in zarr 2 and zarr 3, by tensorstore, in the tree of an Orbax checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from numpy.typing import NDArray

from tests.laws.stored_arrays import DTYPES, Reach, StoredArray, Values

Metadata = dict[str, Any]

ZARR_2_ENCODINGS: Mapping[str, Reach] = {
    "raw": "a bit",
    "column-major": "a bit",
    "big-endian": "a bit",
    "blosc": "a chunk",
    "zstd": "a chunk",
    "zlib": "nothing",
}
COMPRESSORS: Mapping[str, Metadata] = {
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
    "zstd": {"id": "zstd", "level": 1},
    "zlib": {"id": "zlib", "level": 1},
}

ZARR_3_ENCODINGS: Mapping[str, Reach] = {
    "raw": "a bit",
    "column-major": "a bit",
    "big-endian": "a bit",
    "shards": "a bit",
    "zstd": "a chunk",
    "gzip": "nothing",
    "crc32c": "nothing",
    "crc32c in shards": "nothing",
}
BYTES: Metadata = {"name": "bytes", "configuration": {"endian": "little"}}
CRC32C: Metadata = {"name": "crc32c"}


def zarr_2_metadata(array: StoredArray) -> Metadata:
    dtype = array.values.dtype.str
    if array.values.dtype == DTYPES["bfloat16"]:
        dtype = "bfloat16"
    if array.encoding == "big-endian":
        dtype = dtype.replace("<", ">")
    order = "F" if array.encoding == "column-major" and array.values.ndim > 1 else "C"
    return {
        "shape": array.values.shape,
        "chunks": array.chunk,
        "dtype": dtype,
        "order": order,
        "compressor": COMPRESSORS.get(array.encoding),
    }


def zarr_3_metadata(array: StoredArray) -> Metadata:
    grid = array.chunk
    if array.encoding in {"shards", "crc32c in shards"}:
        grid = tuple(2 * extent for extent in array.chunk)
    return {
        "shape": array.values.shape,
        "data_type": array.values.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
        "codecs": zarr_3_codecs(array),
    }


def zarr_3_codecs(array: StoredArray) -> list[Metadata]:
    big_endian = {"name": "bytes", "configuration": {"endian": "big"}}
    reversed_axes = list(reversed(range(array.values.ndim)))
    transpose = {"name": "transpose", "configuration": {"order": reversed_axes}}

    def shards(*inner: Metadata) -> Metadata:
        index = [BYTES, CRC32C]
        configuration = {"chunk_shape": array.chunk, "codecs": inner, "index_codecs": index}
        return {"name": "sharding_indexed", "configuration": configuration}

    codecs: dict[str, list[Metadata]] = {
        "raw": [BYTES],
        "column-major": [transpose, BYTES],
        "big-endian": [big_endian],
        "shards": [shards(BYTES)],
        "zstd": [BYTES, {"name": "zstd", "configuration": {"level": 1}}],
        "gzip": [BYTES, {"name": "gzip", "configuration": {"level": 1}}],
        "crc32c": [BYTES, CRC32C],
        "crc32c in shards": [shards(BYTES, CRC32C)],
    }
    return codecs[array.encoding]


def write_zarr(
    directory: Path,
    arrays: Mapping[str, StoredArray | None],
    *,
    driver: str,
    packed: bool,
    zeros: bool | None = True,
) -> dict[str, Values]:
    """Writes a tree of arrays.

    Args:
      directory: The directory of the tree.
      arrays: What it holds, by dotted path; None is a leaf without an array.
      driver: `zarr` or `zarr3`.
      packed: Whether all lie in one OCDBT store; else each has a directory.
      zeros: Whether chunks of zeros are stored, as Orbax does since 0.10; None: they are not, and
        the tree does not say it.
    """
    tree = {}
    for path, array in arrays.items():
        steps = [{"key": step, "key_type": 2} for step in path.split(".")]
        leaf = {"value_type": "jax.Array", "skip_deserialize": False}
        if array is None:
            leaf = {"value_type": "None", "skip_deserialize": True}
        tree[str(tuple(path.split(".")))] = {"key_metadata": steps, "value_metadata": leaf}
        if array is None:
            continue
        metadata = zarr_2_metadata(array) if driver == "zarr" else zarr_3_metadata(array)
        place: Metadata = {"driver": "file", "path": f"{directory}/{path}/"}
        if packed:
            root = {"driver": "file", "path": f"{directory}/"}
            place = {"driver": "ocdbt", "base": root, "path": f"{path}/"}
        spec: Metadata = {"driver": driver, "kvstore": place, "metadata": metadata, "create": True}
        spec["store_data_equal_to_fill_value"] = bool(zeros)
        tensorstore.open(spec).result().write(array.values).result()
    page = {"tree_metadata": tree, "use_ocdbt": packed, "use_zarr3": driver == "zarr3"}
    if zeros is not None:
        page["store_array_data_equal_to_fill_value"] = True
    (directory / "_METADATA").write_text(json.dumps(page))
    return {path: array.values for path, array in arrays.items() if array is not None}


def descriptions_of_arrays(file: Path) -> NDArray[np.bool_]:
    """Returns which bytes of a file are the JSON that describes an array."""
    content = file.read_bytes()
    described = np.zeros(len(content), bool)
    for actual in re.finditer(rb'\{[ -~]*"zarr_format":[ -~]*\}', content):
        described[actual.start() : actual.end()] = True
    return described

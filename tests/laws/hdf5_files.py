"""What Keras saves in HDF5, by h5py: a file, several files, an archive."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from tests.laws.stored_arrays import DTYPES, Reach, StoredArray, Values

SIGNATURE = b"\x89HDF\r\n\x1a\n"

CHUNKED: Mapping[str, Mapping[str, Any]] = {
    "chunked": {},
    "shuffled": {"shuffle": True},
    "lzf": {"compression": "lzf"},
    "gzip": {"compression": "gzip"},
    "fletcher32": {"fletcher32": True},
}
"""The filters of each encoding in chunks."""
HDF5_ENCODINGS: Mapping[str, Reach] = {
    "contiguous": "a bit",
    "chunked": "a bit",
    "shuffled": "a bit",
    "lzf": "a chunk",
    "gzip": "nothing",
    "fletcher32": "nothing",
}


def write_datasets(file: Path, arrays: Mapping[str, StoredArray]) -> None:
    with h5py.File(file, "w") as opened:
        for key, array in arrays.items():
            values = array.values
            options: dict[str, Any] = {}
            if array.encoding in CHUNKED:
                options = {"chunks": array.chunk, **CHUNKED[array.encoding]}
            if values.dtype == DTYPES["bfloat16"]:  # as Keras saves it
                dataset = opened.create_dataset(key, data=values.view("V2"), **options)
                dataset.attrs["dtype"] = "bfloat16"
            else:
                opened.create_dataset(key, data=values, **options)


def write_weights(directory: Path, arrays: Mapping[str, StoredArray]) -> dict[str, Values]:
    write_datasets(directory / "model.weights.h5", arrays)
    return {key: array.values for key, array in arrays.items()}


def write_shards(directory: Path, arrays: Mapping[str, StoredArray]) -> dict[str, Values]:
    """Writes arrays into two files, in turn."""
    files = {key: f"model_{number % 2:05d}.weights.h5" for number, key in enumerate(arrays)}
    for file in sorted(set(files.values())):
        arrays_of_file = {key: array for key, array in arrays.items() if files[key] == file}
        write_datasets(directory / file, arrays_of_file)
    (directory / "model.weights.json").write_text(json.dumps({"weight_map": files}))
    return {key: array.values for key, array in arrays.items()}


def write_archive(directory: Path, arrays: Mapping[str, StoredArray]) -> dict[str, Values]:
    stored = write_weights(directory, arrays)
    weights = directory / "model.weights.h5"
    with zipfile.ZipFile(directory / "model.keras", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.write(weights, weights.name)
    weights.unlink()
    return stored


def outside_of_datasets(file: Path) -> NDArray[np.bool_]:
    """Returns which bytes of a file, or of an archive that holds one, are no values."""
    content = file.read_bytes()
    start = content.index(SIGNATURE)
    outside = np.ones(len(content), bool)
    with h5py.File(io.BytesIO(content[start:])) as opened:
        for first, count in dataset_extents(opened):
            outside[start + first : start + first + count] = False
    return outside


def dataset_extents(opened: Any) -> Iterator[tuple[int, int]]:
    """Yields where values lie in an open file: first byte and number of bytes."""
    for dataset in opened.values():
        if dataset.chunks is None and dataset.size:
            yield dataset.id.get_offset(), dataset.id.get_storage_size()
        if dataset.chunks is not None:
            for number in range(dataset.id.get_num_chunks()):
                chunk = dataset.id.get_chunk_info(number)
                yield chunk.byte_offset, chunk.size

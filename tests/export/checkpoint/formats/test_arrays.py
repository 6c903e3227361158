from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore

from export.checkpoint.formats.arrays import BAND_BYTES_MAX, ArrayRows
from export.checkpoint.variables import ArrayStore
from export.errors import CheckpointError

DIM = 256
LARGE_ROWS = BAND_BYTES_MAX // (4 * DIM) + 1000
"""Rows of a chunk that is decoded piece by piece."""

RAW: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
ZSTD = [*RAW, {"name": "zstd", "configuration": {"level": 1}}]


def zarr2(rows: int, chunk: int, compressor: dict[str, Any] | None) -> dict[str, Any]:
    metadata = {
        "shape": [rows, DIM],
        "chunks": [chunk, DIM],
        "dtype": "<f4",
        "compressor": compressor,
    }
    return {"driver": "zarr", "metadata": metadata}


def zarr3(rows: int, shard: int, chunk: int, codecs: list[dict[str, Any]]) -> dict[str, Any]:
    if shard != chunk or codecs is ZSTD:
        index = [*RAW, {"name": "crc32c"}]
        inner = {"chunk_shape": [chunk, DIM], "codecs": codecs, "index_codecs": index}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    grid = {"name": "regular", "configuration": {"chunk_shape": [shard, DIM]}}
    metadata = {"shape": [rows, DIM], "data_type": "float32", "chunk_grid": grid, "codecs": codecs}
    return {"driver": "zarr3", "metadata": metadata}


def values_of(rows: int) -> np.ndarray[Any, Any]:
    return (np.arange(rows * DIM, dtype=np.uint32) % 9973).astype(np.float32).reshape(rows, DIM)


def write(directory: Path, told: dict[str, Any], values: np.ndarray[Any, Any]) -> ArrayStore:
    where = {"driver": "file", "path": f"{directory}/"}
    array = tensorstore.open({**told, "kvstore": where, "create": True}).result()
    array[: len(values)].write(values).result()
    return ArrayStore(json.dumps({"driver": told["driver"], "kvstore": where}), (1, DIM))


def read(rows: ArrayRows, first: int, count: int) -> np.ndarray[Any, Any]:
    found = np.empty((count, 4 * DIM), np.uint8)
    rows.read_into(first, found)
    return found.view(np.float32)


FORMS = {
    "zarr2_zstd": lambda rows, chunk: zarr2(rows, chunk, {"id": "zstd", "level": 1}),
    "zarr2_raw": lambda rows, chunk: zarr2(rows, chunk, None),
    "zarr2_blosc": lambda rows, chunk: zarr2(
        rows, chunk, {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}
    ),
    "zarr3_sharded": lambda rows, chunk: zarr3(rows, 2 * chunk, chunk, ZSTD),
    "zarr3_plain": lambda rows, chunk: zarr3(rows, chunk, chunk, RAW),
}


@pytest.mark.parametrize(
    ("form", "chunk"),
    [*((form, 70) for form in FORMS), ("zarr2_zstd", LARGE_ROWS), ("zarr3_sharded", LARGE_ROWS)],
)
def test_array_is_read_forwards_backwards_and_in_leaps(
    tmp_path: Path, form: str, chunk: int
) -> None:
    count = chunk * 2 + chunk // 2  # the last chunk is cut short, and not stored
    values = values_of(count)
    values[2 * chunk :] = 0
    rows = ArrayRows(write(tmp_path, FORMS[form](count, chunk), values[: 2 * chunk]))
    places = [
        (0, 3),
        (3, 5),
        (chunk - 2, 4),
        (count - 1, 1),
        (chunk + 7, 20),
        (0, 1),
        (2 * chunk - 9, 30),
    ]
    for first, size in places:
        np.testing.assert_array_equal(read(rows, first, size), values[first : first + size])


@pytest.mark.parametrize("chunk", [70, LARGE_ROWS])
@pytest.mark.parametrize("damage", ["overwritten", "emptied", "halved", "gone"])
def test_damaged_chunk_is_a_checkpoint_error(tmp_path: Path, chunk: int, damage: str) -> None:
    values = np.random.default_rng(0).standard_normal((chunk, DIM), np.float32)  # packs badly
    store = write(tmp_path, FORMS["zarr2_zstd"](chunk, chunk), values)
    file = tmp_path / "0.0"
    data = file.read_bytes()
    changed = {
        "overwritten": bytes(20) + data[20:],
        "emptied": b"",
        "halved": data[: len(data) // 2],
    }
    file.write_bytes(changed.get(damage, data))
    if damage == "gone":
        (tmp_path / ".zarray").unlink()
    with pytest.raises(CheckpointError, match="copy the checkpoint anew"):
        read(ArrayRows(store), 0, chunk)


_READ_ALL = """
import resource, sys
import numpy as np
from export.checkpoint.formats.arrays import ArrayRows
from export.checkpoint.variables import ArrayStore
rows = ArrayRows(ArrayStore(sys.argv[1], ()))
block = np.empty((1024, int(sys.argv[3])), np.uint8)
rows.read_into(0, block[:1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for first in range(0, int(sys.argv[2]), 1024):
    rows.read_into(first, block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_reading_a_chunk_of_128_mib_takes_a_fraction_of_it(tmp_path: Path) -> None:
    rows = (128 << 20) // (4 * DIM)
    store = write(tmp_path, FORMS["zarr2_zstd"](rows, rows), values_of(rows))
    command = [sys.executable, "-c", _READ_ALL, store.spec, str(rows), str(4 * DIM)]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown * 1024 < 32 << 20

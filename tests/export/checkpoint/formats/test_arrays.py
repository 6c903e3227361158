from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tensorstore

from export.checkpoint.formats.arrays import BAND_BYTES_MAX, ArrayRows, SpooledRows, held_bytes
from export.checkpoint.variables import ArrayStore
from export.errors import CheckpointError

DIM = 256
LARGE_ROWS = BAND_BYTES_MAX // (4 * DIM) + 1000
"""Rows of a chunk that is decoded piece by piece."""

RAW: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
ZSTD = [*RAW, {"name": "zstd", "configuration": {"level": 1}}]


def zarr2(rows: int, chunk: int, compressor: dict[str, Any] | None) -> dict[str, Any]:
    metadata = {"shape": [rows, DIM], "chunks": [chunk, DIM], "dtype": "<f4", "compressor": compressor}
    return {"driver": "zarr", "metadata": metadata}


def zarr3(rows: int, shard: int, chunk: int, codecs: list[dict[str, Any]]) -> dict[str, Any]:
    if shard != chunk or codecs is ZSTD:
        index = [*RAW, {"name": "crc32c"}]
        inner = {"chunk_shape": [chunk, DIM], "codecs": codecs, "index_codecs": index}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    grid = {"name": "regular", "configuration": {"chunk_shape": [shard, DIM]}}
    metadata = {"shape": [rows, DIM], "data_type": "float32", "chunk_grid": grid, "codecs": codecs}
    return {"driver": "zarr3", "metadata": metadata}


def kvstore(directory: Path, *, packed: bool) -> dict[str, Any]:
    base = {"driver": "file", "path": f"{directory}/"}
    return {"driver": "ocdbt", "base": base, "path": "emb/"} if packed else base


def values_of(rows: int) -> np.ndarray[Any, Any]:
    return (np.arange(rows * DIM, dtype=np.uint32) % 9973).astype(np.float32).reshape(rows, DIM)


def write(directory: Path, told: dict[str, Any], values: np.ndarray[Any, Any], *, packed: bool = True) -> ArrayStore:
    where = kvstore(directory, packed=packed)
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
    "zarr2_blosc": lambda rows, chunk: zarr2(rows, chunk, {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}),
    "zarr3_sharded": lambda rows, chunk: zarr3(rows, 2 * chunk, chunk, ZSTD),
    "zarr3_plain": lambda rows, chunk: zarr3(rows, chunk, chunk, RAW),
}


@pytest.mark.parametrize("chunk", [70, LARGE_ROWS])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", [True, False])
def test_array_is_read_forwards_backwards_and_in_leaps(tmp_path: Path, form: str, chunk: int, packed: bool) -> None:
    count = chunk * 2 + chunk // 2  # the last chunk is cut short
    values = values_of(count)
    rows = ArrayRows(write(tmp_path, FORMS[form](count, chunk), values, packed=packed))
    places = [(0, 3), (3, 5), (chunk - 2, 4), (count - 1, 1), (chunk + 7, 20), (0, 1), (count - 30, 30)]
    for first, size in places:
        np.testing.assert_array_equal(read(rows, first, size), values[first : first + size])
    rows.__exit__(None, None, None)
    np.testing.assert_array_equal(read(rows, 10, 2), values[10:12])


@pytest.mark.parametrize("chunk", [70, LARGE_ROWS])
def test_chunk_that_was_not_stored_is_zeros(tmp_path: Path, chunk: int) -> None:
    values = values_of(chunk)
    store = write(tmp_path, FORMS["zarr2_zstd"](2 * chunk, chunk), values)
    found = read(ArrayRows(store), chunk - 5, 10)
    np.testing.assert_array_equal(found[:5], values[-5:])
    assert not found[5:].any()


def test_spooled_rows_are_those_of_their_ranges_in_any_order(tmp_path: Path) -> None:
    values = values_of(LARGE_ROWS)
    store = write(tmp_path, FORMS["zarr2_zstd"](LARGE_ROWS, 700), values)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with SpooledRows(store, 4 * DIM, [(9000, 15000), (10, 20), (20, 25)], str(scratch)) as rows:
        for first, size in ((14_000, 1000), (20, 5), (10, 10), (9000, 1)):
            np.testing.assert_array_equal(read(rows, first, size), values[first : first + size])
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("chunk", [70, LARGE_ROWS])
def test_damaged_chunk_is_a_checkpoint_error(tmp_path: Path, chunk: int) -> None:
    store = write(tmp_path, FORMS["zarr2_zstd"](chunk, chunk), values_of(chunk), packed=False)
    file = tmp_path / "0.0"
    file.write_bytes(b"\x00" * 20 + file.read_bytes()[20:])
    with pytest.raises(CheckpointError, match="copy the checkpoint anew"):
        read(ArrayRows(store), 0, chunk)
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="copy the checkpoint anew"):
        read(ArrayRows(store), 0, chunk)


def test_truncated_large_chunk_is_a_checkpoint_error(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((LARGE_ROWS, DIM), np.float32)  # packs badly
    store = write(tmp_path, FORMS["zarr2_zstd"](LARGE_ROWS, LARGE_ROWS), values, packed=False)
    file = tmp_path / "0.0"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    rows = ArrayRows(store)
    read(rows, 0, 10)
    with pytest.raises(CheckpointError, match="damaged"):
        read(rows, LARGE_ROWS - 10, 10)


def test_array_that_is_gone_is_a_checkpoint_error(tmp_path: Path) -> None:
    store = ArrayStore(json.dumps({"driver": "zarr", "kvstore": kvstore(tmp_path, packed=False)}), (1, DIM))
    with pytest.raises(CheckpointError, match="cannot be read"):
        ArrayRows(store)


def test_hdf5_chunks_are_read_as_rows(tmp_path: Path) -> None:
    values = values_of(300)
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file.create_dataset("a/b", data=values, chunks=(64, 100), compression="gzip")
    spec = {"driver": "hdf5", "path": str(tmp_path / "weights.h5"), "member": None, "dataset": "a/b"}
    rows = ArrayRows(ArrayStore(json.dumps(spec), (64, 100)))
    for first, size in ((0, 300), (63, 2), (5, 1)):
        np.testing.assert_array_equal(read(rows, first, size), values[first : first + size])


def test_held_bytes_of_a_large_chunk_are_small_where_it_is_decoded_in_pieces() -> None:
    shape, chunk = (1 << 30, 128), (1 << 24, 128)
    assert held_bytes(shape, chunk, 4, in_pieces=True) <= 32 << 20
    assert held_bytes(shape, chunk, 4, in_pieces=False) == 3 * 4 * 128 << 24
    assert held_bytes((), (), 8, in_pieces=False) == 24


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

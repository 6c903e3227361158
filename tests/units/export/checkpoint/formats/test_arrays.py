"""Arrays in chunks, decoded window by window."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from export.checkpoint.reader import open_checkpoint
from export.tables.tasks import DECODER_BYTES
from tests.laws.stored_arrays import StoredArray
from tests.laws.zarr_files import write_zarr

DIM = 256
CHUNK_ROWS = (40 << 20) // (4 * DIM)
READ_ALL = """
import json, sys
from pathlib import Path
import numpy as np
from export.checkpoint.reader import open_checkpoint

def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) << 10

def read_bytes():
    return int(open("/proc/self/io").read().split()[1])

checkpoint = open_checkpoint(Path(sys.argv[1]))
before = peak()
begun = read_bytes()
count = checkpoint.entries["t"].shape[0]
for first in range(0, count, 1024):
    checkpoint.read("t", first, 1024)
for first in range(count - 100, 0, -1024):  # the last chunk is decoded already
    checkpoint.read("t", first, 100)
print(json.dumps({"grown": peak() - before, "read": read_bytes() - begun}))
"""


def write_zarr_3(directory: Path, values: NDArray[np.float32]) -> None:
    array = StoredArray(values, (), (CHUNK_ROWS, DIM), "zstd")
    write_zarr(directory, {"t": array}, driver="zarr3", packed=False)


def write_hdf5(directory: Path, values: NDArray[np.float32]) -> None:
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset("t", data=values, chunks=(CHUNK_ROWS, DIM), compression="lzf")


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_zarr_3, write_hdf5])
def test_large_chunks_are_decoded_once_and_one_is_held_at_a_time(
    tmp_path: Path, write: Callable[[Path, NDArray[np.float32]], None]
) -> None:
    values = np.random.default_rng(0).standard_normal((2 * CHUNK_ROWS, DIM), np.float32)
    write(tmp_path, values)
    array = open_checkpoint(tmp_path).entries["t"].array
    assert array is not None
    command = [sys.executable, "-c", READ_ALL, str(tmp_path)]
    actual = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert actual["grown"] < array.memory_bytes + DECODER_BYTES
    stored = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert actual["read"] < 1.6 * stored  # forwards both chunks, and backwards the first again

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from export.checkpoint.formats.hdf5 import list_hdf5, open_hdf5
from export.checkpoint.formats.keras import WEIGHTS
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError

TABLE = np.arange(80, dtype=np.float32).reshape(20, 4)


def write_weights(path: Path, **options: Any) -> Path:
    """A file such as Keras 3 saves, with an Embedding named `user` and a dense kernel."""
    with h5py.File(path, "w") as file:
        for group, name in (("layers/embedding", "user"), ("layers/dense", "dense")):
            held = file.create_group(f"{group}/vars")
            held.attrs["name"] = name
            held.create_dataset("0", data=TABLE, **options)
    return path


def write_archive(path: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    weights = write_weights(path.with_suffix(".weights"))
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", "{}")
        archive.write(weights, WEIGHTS)
    weights.unlink()
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (8, 3)},
        {"compression": "gzip", "chunks": (20, 2)},
        {"shuffle": True, "chunks": (20, 4)},
    ],
)
def test_dataset_in_chunks_is_an_array(tmp_path: Path, options: dict[str, Any]) -> None:
    checkpoint = open_checkpoint(write_weights(tmp_path / "a.h5", **options))
    entry = checkpoint.entries["layers/embedding/vars/0"]
    assert entry.array is not None
    assert entry.array.chunk == options["chunks"]
    np.testing.assert_array_equal(checkpoint.read(entry.key, 3, 9), TABLE[3:12])


def test_dataset_of_other_values_is_listed_and_not_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("big_endian", data=TABLE.astype(">f4"))
        file.create_dataset("text", data=["a", "b"])
        file.create_dataset("raw", data=np.zeros((20, 4), "V2"))
        file.create_dataset("half", data=np.zeros((20, 4), "V2")).attrs["dtype"] = "float16"
    checkpoint = open_checkpoint(tmp_path / "a.h5")
    assert sorted(checkpoint.entries) == ["big_endian", "half", "raw", "text"]
    assert recognise(checkpoint).candidates == ()
    with pytest.raises(CheckpointError, match="not read here"):
        checkpoint.read("big_endian", 0, 1)


def test_directory_of_one_keras_file_opens_the_file(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "a.weights.h5")
    (tmp_path / "notes.txt").write_text("")
    assert open_checkpoint(tmp_path).prefix == path
    write_weights(tmp_path / "b.weights.h5")
    with pytest.raises(CheckpointError, match=r"2 Keras files \(a.weights.h5, b.weights.h5\)"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data.replace(TABLE.tobytes(), TABLE.tobytes()[::-1]), "Bad CRC-32"),
        (lambda data: data.replace(WEIGHTS.encode(), b"model.weights.xx"), "no archive of Keras"),
        (
            lambda data: b"PK\0\0".join(data.rsplit(b"PK\3\4", 1)),
            r"a\.keras is cut short; copy it anew",
        ),
        (lambda data: data[:-1], "damaged|no checkpoint"),
        (lambda data: data[: len(data) // 2], "damaged|no checkpoint"),
    ],
)
def test_damaged_archive_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], told: str
) -> None:
    path = write_archive(tmp_path / "a.keras")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=told):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["model", "model.zip"])
def test_archive_of_another_name_is_read_as_one(tmp_path: Path, name: str) -> None:
    named = write_archive(tmp_path / "a.keras").rename(tmp_path / name)
    checkpoint = open_checkpoint(named)
    np.testing.assert_array_equal(checkpoint.read("layers/embedding/vars/0", 3, 9), TABLE[3:12])


def test_compressed_archive_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.keras", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="unzip"):
        open_checkpoint(path)


def test_damage_that_makes_the_hdf5_library_loop_is_refused(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "a.weights.h5")
    content = bytearray(path.read_bytes())
    content[content.index(b"user") + 17] = 4  # the size of the next object of the heap
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be listed within 2 s"):
        list_hdf5(str(path), None, limit_s=2)


def test_sharded_weights_are_read_as_one(tmp_path: Path) -> None:
    index = tmp_path / "a.weights.json"
    names = ["a_00000.weights.h5", "a_00001.weights.h5"]
    index.write_text(json.dumps({"weight_map": {"/x/vars": names[0], "/y/vars": names}}))
    for number, name in enumerate(names):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset(f"layers/{'xy'[number]}/vars/0", data=TABLE + number)
    np.testing.assert_array_equal(open_checkpoint(tmp_path).read_all("layers/y/vars/0"), TABLE + 1)
    (tmp_path / names[1]).unlink()
    with pytest.raises(CheckpointError, match="not beside it"):
        open_checkpoint(index)
    index.write_text("[]")
    with pytest.raises(CheckpointError, match="no index of Keras weights"):
        open_checkpoint(index)


def test_open_hdf5_without_h5py_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(CheckpointError, match=r"pip install '\.\[export\]'"):
        open_hdf5(str(tmp_path / "a.h5"), None)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"shape": (10**9, 64), "chunks": (100, 64)}, "were never written"),
        ({"shape": (10**9, 64)}, "were never written"),
        ({"shape": (10**15, 1000)}, "which nothing can have"),
        ({"shape": (2, 4), "external": [("/etc/passwd", 0, 32)]}, "lie in other files"),
    ],
)
def test_dataset_that_is_not_in_the_file_is_refused(
    tmp_path: Path, how: dict[str, Any], told: str
) -> None:
    """HDF5 reads what was never written as zeros, terabytes of them, and what lies elsewhere from
    any file.
    """
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        file.create_dataset("layers/embedding/vars/0", dtype="f4", **how)
    with pytest.raises(CheckpointError, match=told):
        open_checkpoint(tmp_path / "a.weights.h5")

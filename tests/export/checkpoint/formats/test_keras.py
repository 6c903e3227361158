from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest

from export.checkpoint.formats import keras
from export.checkpoint.formats.hdf5 import list_hdf5, open_hdf5
from export.checkpoint.formats.keras import WEIGHTS, find_keras, list_keras
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


def test_file_of_hdf5_that_is_named_as_an_archive_is_refused(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "a.keras")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(path)
    told = f"{path} cannot be read: File is not a zip file; it is damaged, copy it anew"
    assert str(error.value) == told


@pytest.mark.parametrize("name", ["a.pt", "a.npz"])
def test_archive_by_the_name_of_another_program_is_no_file_of_keras(
    tmp_path: Path, name: str
) -> None:
    assert find_keras(write_archive(tmp_path / "a.keras").rename(tmp_path / name)) is None


def test_file_whose_head_is_not_of_keras_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a")
    assert find_keras(tmp_path / "a.h5") is None
    (tmp_path / "a.weights.json").write_bytes(b"{}")
    assert find_keras(tmp_path / "a.weights.json") == tmp_path / "a.weights.json"


def test_directory_of_many_keras_files_lists_five_of_them(tmp_path: Path) -> None:
    assert find_keras(tmp_path) is None
    (tmp_path / "0.h5").mkdir()
    for number in range(1, 7):
        (tmp_path / f"{number}.h5").write_bytes(b"")
    with pytest.raises(CheckpointError) as error:
        find_keras(tmp_path)
    names = "2.h5, 3.h5, 4.h5, 5.h5, 6.h5"
    assert str(error.value) == (
        f"directory {tmp_path} holds 6 Keras files ({names}); give one of them"
    )


def write_config(path: Path, config: bytes | None) -> Path:
    """Writes an archive with a configuration, or without."""
    with zipfile.ZipFile(write_archive(path)) as archive:
        weights = archive.read(WEIGHTS)
    with zipfile.ZipFile(path, "w") as archive:
        if config is not None:
            archive.writestr("config.json", config)
        archive.writestr(WEIGHTS, weights)
    return path


@pytest.mark.parametrize(
    ("config", "model"),
    [(None, {}), (b'{"class_name": "Model"}', {"class_name": "Model"}), (b"[1]", {})],
)
def test_archive_holds_the_configuration_of_its_model(
    tmp_path: Path, config: bytes | None, model: dict[str, str]
) -> None:
    listing = list_keras(write_config(tmp_path / "a.keras", config))
    assert listing.storage.model == model
    assert listing.storage.layer_names == {
        "layers/embedding/vars/0": "user",
        "layers/dense/vars/0": "dense",
    }


def test_configuration_of_an_archive_that_is_no_json_is_damage(tmp_path: Path) -> None:
    path = write_config(tmp_path / "a.keras", b"{")
    told = r"a\.keras cannot be read: unexpected end of data: .*; it is damaged, copy it anew"
    with pytest.raises(CheckpointError, match=told):
        list_keras(path)


@pytest.mark.parametrize(
    ("config", "model"),
    [(None, {}), ('{"class_name": "M"}', {"class_name": "M"}), ("[1]", {}), ("{", {})],
)
def test_whole_model_holds_its_configuration(
    tmp_path: Path, config: str | None, model: dict[str, str]
) -> None:
    path = write_weights(tmp_path / "a.h5")
    if config is not None:
        with h5py.File(path, "r+") as file:
            file.attrs["model_config"] = config
    assert list_keras(path).storage.model == model


def test_fingerprint_of_an_archive_is_of_its_content(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.keras")
    before = list_keras(path).fingerprint
    assert re.fullmatch("crc32c:[0-9a-f]{8}", before)
    shutil.copyfile(path, tmp_path / "b.keras")
    os.utime(tmp_path / "b.keras", (1, 1))
    assert list_keras(tmp_path / "b.keras").fingerprint == before
    with zipfile.ZipFile(path) as archive:
        weights = archive.read(WEIGHTS).replace(TABLE.tobytes(), (TABLE + 1).tobytes())
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(WEIGHTS, weights)
    assert list_keras(path).fingerprint != before


def test_fingerprint_of_weights_is_of_their_time_and_listing(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "a.h5")
    os.utime(path, (1, 1))
    before = list_keras(path).fingerprint
    with h5py.File(path, "r+") as file:
        file.move("layers/dense", "layers/dense_1")
    assert path.stat().st_size == (tmp_path / "a.h5").stat().st_size
    os.utime(path, (1, 1))
    renamed = list_keras(path).fingerprint
    os.utime(path, (2, 2))
    assert len({before, renamed, list_keras(path).fingerprint}) == 3


def test_checksum_of_an_archive_of_the_largest_size_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "weights", "w") as file:
        file["t"] = np.zeros(1 << 20, np.uint8)
    content = (tmp_path / "weights").read_bytes()
    path = tmp_path / "a.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(WEIGHTS, content)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] = 1
    path.write_bytes(damaged)
    monkeypatch.setattr(keras, "CHECKED_BYTES_MAX", len(content))
    told = "a.keras cannot be read: Bad CRC-32 for file 'model.weights.h5'; it is damaged"
    with pytest.raises(CheckpointError, match=told):
        list_keras(path)


@pytest.mark.parametrize(
    ("at", "value", "told"),
    [
        (28, b"\xff\xff", r"a\.keras is cut short; copy it anew"),  # bytes of its extra field
        (26, b"\xff\xff", r"a\.keras is cut short; copy it anew"),  # bytes of its name
    ],
)
def test_archive_whose_member_lies_behind_its_end_is_refused(
    tmp_path: Path, at: int, value: bytes, told: str
) -> None:
    path = write_archive(tmp_path / "a.keras")
    content = bytearray(path.read_bytes())
    start = content.rindex(b"PK\3\4")
    content[start + at : start + at + len(value)] = value
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=told):
        list_keras(path)


def test_reason_why_an_archive_is_damaged_is_shortened(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.keras")
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = bytes(1000)
    content = bytearray(path.read_bytes())
    start = content.rindex(b"PK\3\4")
    content[start + 26 : start + 28] = (300).to_bytes(2, "little")  # bytes of its name
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        list_keras(path)
    reason = str(error.value).removeprefix(f"{path} cannot be read: ")
    reason = reason.removesuffix("; it is damaged, copy it anew")
    assert reason.startswith("File name in directory 'model.weights.h5' and header b'model")
    assert len(reason) == 200


def test_datasets_of_an_archive_lie_in_the_archive(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.keras")
    entry = list_keras(path).entries["layers/dense/vars/0"]
    (part,) = entry.slices
    assert (part.file, part.bytes, part.crc32c) == (str(path), TABLE.nbytes, None)
    assert (part.starts, part.shape) == ((0, 0), (20, 4))
    assert path.read_bytes()[part.offset :][: part.bytes] == TABLE.tobytes()


def test_dataset_in_chunks_of_an_archive_is_read(tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "weights", chunks=(8, 3))
    with zipfile.ZipFile(tmp_path / "a.keras", "w") as archive:
        archive.write(weights, WEIGHTS)
    weights.unlink()
    checkpoint = open_checkpoint(tmp_path / "a.keras")
    np.testing.assert_array_equal(checkpoint.read("layers/dense/vars/0", 3, 9), TABLE[3:12])


def test_dataset_without_rows_is_listed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["empty"] = np.zeros((0, 4), np.float32)
        file["number"] = np.float32(3)
    checkpoint = open_checkpoint(tmp_path / "a.h5")
    assert checkpoint.read_all("number") == 3
    entry = checkpoint.entries["empty"]
    assert (entry.shape, entry.bytes) == ((0, 4), 0)
    assert checkpoint.read("empty", 0, 0).shape == (0, 4)


def test_dataset_of_bfloat16_is_read(tmp_path: Path) -> None:
    values = TABLE.astype(ml_dtypes.bfloat16)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", data=values.view("V2")).attrs["dtype"] = "bfloat16"
        file.create_dataset("f", data=TABLE).attrs["dtype"] = "bfloat16"
    checkpoint = open_checkpoint(tmp_path / "a.h5")
    assert [checkpoint.entries[key].dtype for key in "tf"] == ["bfloat16", "float32"]
    np.testing.assert_array_equal(checkpoint.read("t", 3, 9), values[3:12])


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

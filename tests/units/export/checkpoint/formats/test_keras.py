"""What Keras saves in HDF5: which file is meant, and what is listed of it."""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from export.checkpoint.formats import keras, keras_archive
from export.checkpoint.formats.hdf5 import list_hdf5, open_hdf5
from export.checkpoint.formats.keras import find_keras, list_keras
from export.checkpoint.formats.keras_archive import WEIGHTS
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import OrderedLayer
from export.errors import CheckpointError
from tests.units.export.checkpoint.formats.keras_files import (
    TABLE,
    write_archive,
    write_config,
    write_ordered,
    write_shards,
    write_weights,
)


def test_dataset_of_other_values_is_listed_and_not_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("big_endian", data=TABLE.astype(">f4"))
        file.create_dataset("text", data=["a", "b"])
        file.create_dataset("raw", data=np.zeros((20, 4), "V2"))
        file.create_dataset("half", data=np.zeros((20, 4), "V2")).attrs["dtype"] = "float16"
    checkpoint = open_checkpoint(tmp_path / "a.h5")
    assert sorted(checkpoint.entries) == ["big_endian", "half", "raw", "text"]
    assert recognize(checkpoint).candidates == ()
    with pytest.raises(CheckpointError, match="not read here"):
        checkpoint.read("big_endian", 0, 1)


def test_attribute_that_says_bfloat16_is_of_two_bytes_alone(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file["layers/dense/vars/0"].attrs["dtype"] = "bfloat16"
    assert list_keras(path).entries["layers/dense/vars/0"].dtype == "float32"


@pytest.mark.parametrize("name", ["weights.h5", "model.h5"])
@pytest.mark.parametrize("numbered", [False, True])
def test_layers_are_listed_in_the_order_of_attributes(
    name: str, numbered: bool, tmp_path: Path
) -> None:
    layers = {"second": ["kernel"], "empty": [], "first": ["kernel"]}
    path = write_ordered(tmp_path / name, layers, numbered=numbered)
    storage = open_checkpoint(path).storage
    beginning = "model_weights/" if name == "model.h5" else ""
    assert storage.keras_version == "2.20.1"
    assert storage.ordered_layers == (
        OrderedLayer("second", {"kernel": f"{beginning}second/kernel"}),
        OrderedLayer("empty", {}),
        OrderedLayer("first", {"kernel": f"{beginning}first/kernel"}),
    )


def test_weights_of_a_model_itself_have_no_layer(tmp_path: Path) -> None:
    path = write_ordered(tmp_path / "weights.h5", {"dense": ["kernel"]})
    with h5py.File(path, "r+") as file:
        new_keys = file.create_group("top_level_model_weights")
        new_keys.attrs["weight_names"] = ["scale"]
        new_keys["scale"] = TABLE
    assert open_checkpoint(path).storage.ordered_layers[1:] == (
        OrderedLayer("", {"scale": "top_level_model_weights/scale"}),
    )


def test_version_of_keras_comes_from_the_metadata_of_an_archive(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.keras")
    assert list_keras(path).storage.keras_version == ""
    for metadata, version in ((b'{"keras_version": "3.15.1"}', "3.15.1"), (b"[]", ""), (b"{", "")):
        with zipfile.ZipFile(path) as archive:
            weights = archive.read(WEIGHTS)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("metadata.json", metadata)
            archive.writestr("config.json", "{}")
            archive.writestr(WEIGHTS, weights)
        assert list_keras(path).storage.keras_version == version


def test_directory_of_one_keras_file_opens_the_file(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "a.weights.h5")
    (tmp_path / "notes.txt").write_text("")
    assert open_checkpoint(tmp_path).prefix == path


def test_archive_of_another_name_is_read_as_one(tmp_path: Path) -> None:
    named = write_archive(tmp_path / "a.keras").rename(tmp_path / "model.zip")
    checkpoint = open_checkpoint(named)
    np.testing.assert_array_equal(checkpoint.read("layers/embedding/vars/0", 3, 9), TABLE[3:12])


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


def test_directory_without_files_of_keras_has_none(tmp_path: Path) -> None:
    assert find_keras(tmp_path) is None
    (tmp_path / "0.h5").mkdir()
    assert find_keras(tmp_path) is None


@pytest.mark.parametrize(
    ("config", "model"),
    [(None, {}), (b'{"class_name": "Model"}', {"class_name": "Model"})],
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


@pytest.mark.parametrize(
    ("config", "model"),
    [(None, {}), ('{"class_name": "M"}', {"class_name": "M"})],
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
    message = "a.keras cannot be read: Bad CRC-32 for file 'model.weights.h5'; it is damaged"
    with pytest.raises(CheckpointError, match=message):
        list_keras(path)


def test_description_of_a_model_is_read_up_to_its_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path / "a.keras", b'{"class_name": "M"}')
    monkeypatch.setattr(keras_archive, "CONFIG_BYTES_MAX", 19)
    assert list_keras(path).storage.model == {"class_name": "M"}
    monkeypatch.setattr(keras_archive, "CONFIG_BYTES_MAX", 18)
    with pytest.raises(CheckpointError, match="has 19 bytes decompressed; at most 18 were"):
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


def test_damage_that_makes_the_hdf5_library_loop_is_rejected(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "a.weights.h5")
    content = bytearray(path.read_bytes())
    content[content.index(b"user") + 17] = 4  # the size of the next object of the heap
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be listed within 2 s"):
        list_hdf5(str(path), None, limit_s=2)


def test_sharded_weights_are_read_as_one(tmp_path: Path) -> None:
    write_shards(tmp_path)
    np.testing.assert_array_equal(open_checkpoint(tmp_path).read_all("layers/y/vars/0"), TABLE + 1)


def test_open_hdf5_without_h5py_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(CheckpointError, match=r"pip install '\.\[export\]'"):
        open_hdf5(str(tmp_path / "a.h5"), None)

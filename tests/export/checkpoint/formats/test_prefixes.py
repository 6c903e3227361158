"""What a path means, and what is told of everything that is no V2 checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.formats.prefixes import find_prefix
from export.errors import CheckpointError
from tests.export.checkpoint.bundles import table, write_bundle


def write(prefix: Path) -> Path:
    write_bundle(prefix, {"v": np.zeros(3, np.float32)})
    return prefix


def state(directory: Path, text: str) -> None:
    (directory / "checkpoint").write_text(text)


@pytest.mark.parametrize("given", ["", "model.ckpt-5", "model.ckpt-5.index"])
def test_find_prefix_directory_prefix_or_index_means_the_same(tmp_path: Path, given: str) -> None:
    write(tmp_path / "model.ckpt-5")
    assert find_prefix(tmp_path / given) == tmp_path / "model.ckpt-5"


def test_find_prefix_directory_with_state_file_takes_what_it_names(tmp_path: Path) -> None:
    for name in ("ckpt-1", "ckpt-2", "ckpt-3"):
        write(tmp_path / name)
    state(tmp_path, 'model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-3"\n')
    assert find_prefix(tmp_path).name == "ckpt-2"


def test_find_prefix_state_file_of_a_moved_directory_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-2")
    state(tmp_path, 'model_checkpoint_path: "/gone/long/ago/ckpt-2"')
    assert find_prefix(tmp_path) == tmp_path / "ckpt-2"


def test_find_prefix_state_file_with_escapes_is_understood(tmp_path: Path) -> None:
    write(tmp_path / 'nä"me-1')
    state(tmp_path, 'model_checkpoint_path: "n\\303\\244\\"me-1"')
    assert find_prefix(tmp_path).name == 'nä"me-1'


def test_find_prefix_directory_without_state_file_takes_the_newest(tmp_path: Path) -> None:
    for age, name in enumerate(("ckpt-10", "ckpt-9")):
        os.utime(Path(f"{write(tmp_path / name)}.index"), (1e9 - age, 1e9 - age))
    assert find_prefix(tmp_path).name == "ckpt-10"


def test_find_prefix_saved_model_means_its_variables(tmp_path: Path) -> None:
    write(tmp_path / "variables" / "variables")
    (tmp_path / "saved_model.pb").touch()
    assert find_prefix(tmp_path) == tmp_path / "variables" / "variables"


def test_find_prefix_state_file_that_names_nothing_lists_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-7")
    state(tmp_path, 'model_checkpoint_path: "ckpt-9"')
    with pytest.raises(CheckpointError, match=r"'ckpt-9', which is not there \(complete beside it: ckpt-7\)"):
        find_prefix(tmp_path)
    state(tmp_path, "")
    with pytest.raises(CheckpointError, match="names no model_checkpoint_path"):
        find_prefix(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("weights.h5", b"\x89HDF\r\n\x1a\n", "a file of Keras"),
        ("model.keras", b"PK\x03\x04rest", "a file of Keras"),
        ("model.ckpt", table([(b"", b"")]), "V1 checkpoint"),
        ("ckpt-1.data-00000-of-00001", b"1234", "give its prefix, ckpt-1"),
        ("checkpoint", b"", "give its directory"),
        ("model.ckpt-1.meta", b"graph", "give its prefix, model.ckpt-1"),
        ("_METADATA", b"{}", "part of an Orbax checkpoint; give its directory"),
        ("saved_model.pb", b"", "give the SavedModel's directory"),
        ("model.pt", b"PK\x03\x04", "checkpoint of PyTorch, .*tf.train.Checkpoint"),
        ("lightning.ckpt", b"\x80\x02}", "a pickle .*tf.train.Checkpoint"),
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0{", "file of safetensors, .*tf.train.Checkpoint"),
        ("table", b"\x93NUMPY\x01\0", "file of numpy"),
        ("model.tflite", b"\x1c\0\0\0TFL3", "give its checkpoint"),
        ("notes.txt", b"hello", "no checkpoint"),
        ("empty", b"", "no checkpoint"),
    ],
)
def test_find_prefix_other_file_is_called_by_its_name(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=what):
        find_prefix(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("model.safetensors", "file of safetensors"),
        ("__0_0.distcp", "of PyTorch"),
        ("ckpt-1.data-00000-of-00001", "give its prefix, ckpt-1"),
    ],
)
def test_find_prefix_directory_of_other_files_tells_what_they_are(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"12345678")
    with pytest.raises(CheckpointError, match=f"holds no checkpoint; .*{what}"):
        find_prefix(tmp_path)


def test_find_prefix_state_file_that_names_a_v1_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt").write_bytes(table([(b"", b"")]))
    state(tmp_path, 'model_checkpoint_path: "model.ckpt"')
    with pytest.raises(CheckpointError, match="V1 checkpoint"):
        find_prefix(tmp_path)


@pytest.mark.parametrize("marker", ["manifest.ocdbt", "_METADATA", "_CHECKPOINT_METADATA"])
def test_find_prefix_orbax_directory_is_called_by_its_name(tmp_path: Path, marker: str) -> None:
    (tmp_path / marker).touch()
    with pytest.raises(CheckpointError, match="Orbax"):
        find_prefix(tmp_path)


@pytest.mark.parametrize("given", ["", "ckpt-1"])
def test_find_prefix_save_in_progress_is_told(tmp_path: Path, given: str) -> None:
    (tmp_path / "ckpt-1_temp").mkdir()
    with pytest.raises(CheckpointError, match="ckpt-1 is not complete"):
        find_prefix(tmp_path / given)


def test_find_prefix_index_not_there_yet_is_told(tmp_path: Path) -> None:
    Path(f"{write(tmp_path / 'ckpt-1')}.index").unlink()
    with pytest.raises(CheckpointError, match="data files but no ckpt-1"):
        find_prefix(tmp_path / "ckpt-1")


@pytest.mark.parametrize(
    ("given", "what"),
    [("ckpt-2", "beside it: ckpt-1"), ("no/where", "does not exist"), ("sub", "no file named `checkpoint`")],
)
def test_find_prefix_nothing_there_is_told(tmp_path: Path, given: str, what: str) -> None:
    write(tmp_path / "ckpt-1")
    (tmp_path / "sub").mkdir()
    with pytest.raises(CheckpointError, match=what):
        find_prefix(tmp_path / given)


@pytest.mark.parametrize(("given", "what"), [("a\0b", "does not exist"), ("x" * 5000, "read")])
def test_find_prefix_path_of_no_file_system_is_told(given: str, what: str) -> None:
    with pytest.raises(CheckpointError, match=what):
        find_prefix(Path(given))

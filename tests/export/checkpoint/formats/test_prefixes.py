"""What a path means, and what is told of everything that is no V2 checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.formats.prefixes import find_prefix
from export.errors import CheckpointError
from tests.export.checkpoint.tensor_bundles import table, write_bundle


def write(prefix: Path) -> Path:
    write_bundle(prefix, {"v": np.zeros(3, np.float32)})
    return prefix


def state(directory: Path, text: str) -> None:
    (directory / "checkpoint").write_text(text)


@pytest.mark.parametrize("given", ["", "model.ckpt-5", "model.ckpt-5.index"])
def test_find_prefix_directory_prefix_or_index_means_the_same(tmp_path: Path, given: str) -> None:
    write(tmp_path / "model.ckpt-5")
    assert find_prefix(tmp_path / given) == tmp_path / "model.ckpt-5"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-3"\n', "ckpt-2"),
        ('model_checkpoint_path: "/gone/long/ago/ckpt-2"', "ckpt-2"),
        ('model_checkpoint_path: "n\\303\\244\\"me-1"', 'nä"me-1'),
    ],
)
def test_find_prefix_directory_with_state_file_takes_what_it_names(
    tmp_path: Path, text: str, name: str
) -> None:
    for each in ("ckpt-1", "ckpt-2", "ckpt-3", 'nä"me-1'):
        write(tmp_path / each)
    state(tmp_path, text)
    assert find_prefix(tmp_path) == tmp_path / name


def test_find_prefix_directory_without_state_file_takes_the_newest(tmp_path: Path) -> None:
    for age, name in enumerate(("ckpt-10", "ckpt-9")):
        os.utime(Path(f"{write(tmp_path / name)}.index"), (1e9 - age, 1e9 - age))
    assert find_prefix(tmp_path).name == "ckpt-10"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            'model_checkpoint_path: "ckpt-9"',
            r"'ckpt-9', which is not there \(complete beside it: ckpt-7\)",
        ),
        ("", "names no model_checkpoint_path"),
        ('model_checkpoint_path: "old.ckpt"', "V1 checkpoint"),
    ],
)
def test_find_prefix_state_file_that_names_nothing_is_refused(
    tmp_path: Path, text: str, what: str
) -> None:
    write(tmp_path / "ckpt-7")
    (tmp_path / "old.ckpt").write_bytes(table([(b"", b"")]))
    state(tmp_path, text)
    with pytest.raises(CheckpointError, match=what):
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
        ("model.pt", b"PK\x03\x04", "a pickle of PyTorch, .*safetensors.torch.save_file"),
        ("__0_0.distcp", b"PK\x03\x04", "of torch.distributed; give its directory"),
        ("lightning.ckpt", b"\x80\x02}", "a pickle .*tf.train.Checkpoint"),
        ("table", b"\x93NUMPY\x01\0", "file of numpy"),
        ("model.tflite", b"\x1c\0\0\0TFL3", "give its checkpoint"),
        ("notes.txt", b"hello", "no checkpoint"),
        ("empty", b"", "no checkpoint"),
    ],
)
def test_find_prefix_of_another_file_names_its_format(
    tmp_path: Path, name: str, content: bytes, what: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=what):
        find_prefix(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "given", "what"),
    [
        (["model.pth", "config.json"], "", "holds no checkpoint; .*a pickle of PyTorch"),
        (["ckpt-1.data-00000-of-00001"], "", "holds no checkpoint; .*give its prefix, ckpt-1"),
        (["_METADATA"], "", "Orbax"),
        (["ckpt-1_temp/part"], "", "ckpt-1 is not complete"),
        (["ckpt-1_temp/part"], "ckpt-1", "ckpt-1 is not complete"),
        (["ckpt-1.data-00000-of-00001"], "ckpt-1", "data files but no ckpt-1"),
        (["ckpt-1.index"], "ckpt-2", "beside it: ckpt-1"),
        (["saved_model.pb"], "", "holds no checkpoint; .*saved_model.pb is a graph"),
        (["variables/variables.index"], "", "no file named `checkpoint`"),
        ([], "no/where", "does not exist"),
        ([], "a\0b", "does not exist"),
        ([], "x" * 5000, "read"),
        (["sub/notes"], "sub", "no file named `checkpoint`"),
    ],
)
def test_find_prefix_without_a_checkpoint_lists_the_files_that_are_there(
    tmp_path: Path, names: list[str], given: str, what: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345678")
    with pytest.raises(CheckpointError, match=what):
        find_prefix(tmp_path / given)

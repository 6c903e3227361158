"""Reading values: whole, by rows, through slices cut in every way, from files that are damaged."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from export.checkpoint import reader
from export.checkpoint.datafiles import DataFiles
from export.checkpoint.reader import is_jax, is_torch, open_checkpoint
from export.errors import CheckpointError
from object_store.remote_path import RemotePath
from tests.units.export.checkpoint import dump_files
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    entry,
    header,
    node,
    object_graph,
    table,
    text_data,
    write_bundle,
)
from tests.units.object_store.memory_stores import uploaded

ROWS = 37
DIM = 6
VALUES = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)


@pytest.mark.parametrize(
    "boxes",
    [
        [[(0, 10), (0, -1)], [(11, 26), (0, -1)]],
        [[(0, 30), (0, -1)], [(29, 8), (0, -1)]],
        [[(0, -1), (0, 5)]],
        [
            [(0, 30), (0, -1)],
            [(23, 7), (0, -1)],
        ],  # as many rows as there are, some twice and some not at all
    ],
)
def test_read_slices_with_a_gap_or_overlap_are_rejected(tmp_path: Path, boxes: Any) -> None:
    write_bundle(tmp_path / "c", {"v": VALUES}, boxes={"v": boxes})
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="overlap or leave a gap"):
        checkpoint.read("v", 0, ROWS)


GRID: list[Any] = [
    [(0, 10), (0, -1)],
    [(10, 20), (0, 4)],
    [(10, 9), (4, 2)],
    [(19, 11), (4, 2)],
    [(30, 7), (0, 1)],
    [(30, 7), (1, 5)],
]
"""Slices of all rows and columns, cut on both axes."""


def test_rows_are_read_through_slices_that_are_cut_on_both_axes(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"v": VALUES}, boxes={"v": GRID}, files=3)
    checkpoint = open_checkpoint(tmp_path)
    np.testing.assert_array_equal(checkpoint.read_all("v"), VALUES)
    for first in range(ROWS + 1):
        for count in (0, 1, 2, 11, ROWS - first):
            if first + count <= ROWS:
                actual = checkpoint.read("v", first, count)
                np.testing.assert_array_equal(actual, VALUES[first : first + count])


def test_variable_of_three_axes_is_read(tmp_path: Path) -> None:
    values = np.arange(60, dtype=np.int64).reshape(5, 4, 3)
    boxes = [[(0, 2), (0, -1), (0, -1)], [(2, 3), (0, 3), (0, -1)], [(2, 3), (3, 1), (0, -1)]]
    empty = np.zeros((4, 0), np.float32)
    write_bundle(tmp_path / "c", {"v": values, "empty": empty}, boxes={"v": boxes})
    checkpoint = open_checkpoint(tmp_path)
    np.testing.assert_array_equal(checkpoint.read("v", 1, 3), values[1:4])
    np.testing.assert_array_equal(checkpoint.read_all("v"), values)
    assert checkpoint.read_all("empty").shape == (4, 0)


@pytest.mark.parametrize("remote", [False, True])
def test_ranges_of_rows_are_read_in_their_order(tmp_path: Path, remote: bool) -> None:
    write_bundle(tmp_path / "made/c", {"v": VALUES}, boxes={"v": GRID})
    marker = tmp_path / "made"
    store = RemotePath(f"memory://{tmp_path}/store")
    checkpoint = open_checkpoint(uploaded(marker, store) if remote else marker)
    ranges = [(number % ROWS, 1 + number % 2 * (number % ROWS < ROWS - 1)) for number in range(150)]
    actual = list(checkpoint.read_each("v", ranges))
    assert len(actual) == 150
    for rows, (first, count) in zip(actual, ranges, strict=True):
        np.testing.assert_array_equal(rows, VALUES[first : first + count])


def test_arrays_are_read_one_after_another(tmp_path: Path) -> None:
    write_item(tmp_path / "ckpt", {"a": VALUES, "b": VALUES + 1, "n": np.array(7)}, chunk_rows=10)
    checkpoint = open_checkpoint(tmp_path / "ckpt")
    for key, values in (("a", VALUES), ("b", VALUES + 1), ("a", VALUES)):
        np.testing.assert_array_equal(checkpoint.read(key, 3, 20), values[3:23])
    assert checkpoint.read("a", 3, 0).shape == (0, DIM)
    ranges = [(0, 3), (30, 7), (5, 2)]
    for rows, (first, count) in zip(checkpoint.read_each("b", ranges), ranges, strict=True):
        np.testing.assert_array_equal(rows, VALUES[first : first + count] + 1)
    assert checkpoint.read_all("n") == 7
    reopened = checkpoint.reopened()
    assert (reopened.name, reopened.fingerprint) == (checkpoint.name, checkpoint.fingerprint)
    np.testing.assert_array_equal(reopened.read_all("a"), VALUES)


def test_rows_are_read_from_files_that_stay_open_or_are_closed(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"v": VALUES})
    checkpoint = open_checkpoint(tmp_path)

    def are_open() -> bool:
        links = [
            os.readlink(child) for child in Path("/proc/self/fd").iterdir() if child.is_symlink()
        ]
        return any(link.startswith(str(tmp_path)) for link in links)

    with DataFiles() as files:
        checkpoint.read("v", 0, 3, files)
        assert are_open()
        np.testing.assert_array_equal(checkpoint.read("v", 3, 3, files), VALUES[3:6])
    assert not are_open()
    checkpoint.read("v", 0, 3)
    assert not are_open()


def test_damaged_rows_are_found_only_where_a_whole_slice_is_read(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"number": np.array(1, np.float32), "v": VALUES}, lead=b"")
    data = tmp_path / "c.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[3] ^= 1
    content[-1] ^= 1
    data.write_bytes(content)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.read("v", 0, ROWS).shape == (ROWS, DIM)
    for key in ("number", "v"):
        with pytest.raises(CheckpointError) as error:
            checkpoint.read_all(key)
        assert str(error.value) == (
            f"{key!r} in checkpoint {tmp_path / 'c'} does not match its checksum: the data file is "
            "damaged; copy it anew"
        )


def test_variable_is_read_as_a_whole_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path / "c", {"v": VALUES, "text": b"words"})
    checkpoint = open_checkpoint(tmp_path)
    monkeypatch.setattr(reader, "SMALL_BYTES_MAX", VALUES.nbytes)
    np.testing.assert_array_equal(checkpoint.read_all("v"), VALUES)
    monkeypatch.setattr(reader, "SMALL_BYTES_MAX", VALUES.nbytes - 1)
    with pytest.raises(CheckpointError) as error:
        checkpoint.read_all("v")
    assert str(error.value) == (
        f"'v' in checkpoint {tmp_path / 'c'} is too large to be read as a whole; read rows of it"
    )
    stored = checkpoint.entries["text"].bytes
    monkeypatch.setattr(reader, "STRING_BYTES_MAX", stored)
    assert checkpoint.read_string("text") == b"words"
    monkeypatch.setattr(reader, "STRING_BYTES_MAX", stored - 1)
    with pytest.raises(CheckpointError) as error:
        checkpoint.read_string("text")
    assert str(error.value) == (
        f"'text' in checkpoint {tmp_path / 'c'} has {stored} bytes; at most {stored - 1} are read"
    )


def test_read_string_of_another_variable_is_rejected(tmp_path: Path) -> None:
    text, crc = text_data(b"a")
    index = [
        (b"", header()),
        (b"number", entry(1, (), 0, bytes(4))),
        (b"texts", entry(7, (1,), 0, text, crc)),
    ]
    (tmp_path / "c.index").write_bytes(table(index))
    (tmp_path / "c.data-00000-of-00001").write_bytes(text + bytes(9))
    checkpoint = open_checkpoint(tmp_path / "c")
    for key, what in (("number", "float32 []"), ("texts", "string [1]")):
        with pytest.raises(CheckpointError) as error:
            checkpoint.read_string(key)
        message = f"{key!r} in checkpoint {tmp_path / 'c'} is {what}, no string scalar"
        assert str(error.value) == message
    with pytest.raises(CheckpointError, match="has no variable 'absent'"):
        checkpoint.read_string("absent")


def test_read_all_flipped_byte_is_found(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"v": VALUES})
    data = tmp_path / "c.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"'v'.*does not match its checksum"):
        open_checkpoint(tmp_path).read_all("v")


def test_read_of_a_file_that_was_cut_short_after_opening_is_an_error(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"v": VALUES})
    checkpoint = open_checkpoint(tmp_path)
    data = tmp_path / "c.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="cut short"):
        checkpoint.read("v", 0, ROWS)
    data.unlink()
    with pytest.raises(CheckpointError, match="max_to_keep"):
        checkpoint.read("v", 0, ROWS)


@pytest.mark.parametrize(
    ("key", "first", "count", "what"),
    [
        ("v", -1, 2, "has no rows"),
        ("v", 0, ROWS + 1, "has no rows"),
        ("v", 3, -1, "has no rows"),
        ("scalar", 0, 1, "has no rows"),
        ("absent", 0, 1, "no variable 'absent'"),
        ("text", 0, 1, "holds string values"),
    ],
)
def test_read_of_a_missing_or_non_numeric_variable_is_rejected(
    tmp_path: Path, key: str, first: int, count: int, what: str
) -> None:
    write_bundle(tmp_path / "c", {"v": VALUES, "text": b"abc", "scalar": np.array(1.0)})
    with pytest.raises(CheckpointError, match=what):
        open_checkpoint(tmp_path).read(key, first, count)


def test_read_string_any_flipped_byte_is_found(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"text": b"words"}, lead=b"")
    data = tmp_path / "c.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    checkpoint = open_checkpoint(tmp_path)
    for offset in range(len(content)):
        content[offset] ^= 4
        data.write_bytes(content)
        content[offset] ^= 4
        with pytest.raises(CheckpointError, match="checksum"):
            checkpoint.read_string("text")


def test_graph_is_there_if_the_checkpoint_has_one(tmp_path: Path) -> None:
    write_bundle(tmp_path / "named", {"v": VALUES})
    write_bundle(tmp_path / "objects", {GRAPH: object_graph(node({"v": 1}), node(key="v"))})
    write_bundle(tmp_path / "broken", {GRAPH: object_graph(node({"v": 9}))})
    assert open_checkpoint(tmp_path / "named").graph is None
    graph = open_checkpoint(tmp_path / "objects").graph
    assert graph is not None
    assert graph.nodes[1].key == "v"
    with pytest.raises(CheckpointError, match="object graph cannot be read"):
        open_checkpoint(tmp_path / "broken").graph  # noqa: B018


def test_variable_name_that_is_not_utf8_can_be_printed(tmp_path: Path) -> None:
    write_bundle(tmp_path / os.fsdecode(b"ckpt-\xff\x1b"), {"v": VALUES})
    assert open_checkpoint(tmp_path).name == "ckpt-\\xff\x1b"


def write_tensorflow(directory: Path) -> None:
    write_bundle(directory / "ckpt-1", {"v": VALUES})


def write_state(directory: Path) -> None:
    write_bundle(directory / "elsewhere/ckpt", {"v": VALUES})
    (directory / "checkpoint").write_text('model_checkpoint_path: "elsewhere/ckpt"')


def write_orbax(directory: Path) -> None:
    write_item(directory / "made", {"a": VALUES})
    for file in (directory / "made").iterdir():
        file.rename(directory / file.name)


def write_keras(directory: Path) -> None:
    with h5py.File(directory / "a.weights.h5", "w") as file:
        file["layers/embedding/vars/0"] = VALUES


def write_safetensors(directory: Path) -> None:
    text = b'{"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    content = len(text).to_bytes(8, "little") + text + bytes(4)
    (directory / "a.safetensors").write_bytes(content)


def write_dump(directory: Path) -> None:
    dump_files.hugectr_dump(directory, np.arange(ROWS), VALUES)


def write_torch(directory: Path) -> None:
    (directory / "__0_0.distcp").write_bytes(b"")


WRITERS = {
    entry.__name__.removeprefix("write_"): entry
    for entry in (
        write_tensorflow,
        write_state,
        write_orbax,
        write_keras,
        write_safetensors,
        write_dump,
        write_torch,
    )
}


def kind_of(path: Path | RemotePath) -> str:
    """Returns what keeps the variables of a checkpoint, or why it is not opened."""
    try:
        return open_checkpoint(path).storage.kind
    except CheckpointError as error:
        return str(error)


@pytest.mark.parametrize(
    ("writers", "local", "remote"),
    [
        (["tensorflow"], "TensorFlow", "TensorFlow"),
        (["state"], "TensorFlow", "TensorFlow"),
        (["orbax"], "Orbax", "in a store that tensorstore does not read here"),
        (["keras"], "Keras", "a file of Keras, which is read from this machine's disks only"),
        (["safetensors"], "PyTorch", "PyTorch"),
        (["dump"], "HugeCTR", "holds no checkpoint"),
        (["torch"], "the save or the copy did not finish", "the save or the copy did not finish"),
        (["tensorflow", "orbax"], "TensorFlow", "TensorFlow"),
        (["tensorflow", "keras"], "TensorFlow", "TensorFlow"),
        (["tensorflow", "safetensors"], "TensorFlow", "TensorFlow"),
        (["tensorflow", "dump"], "TensorFlow", "TensorFlow"),
        (["state", "orbax"], "Orbax", "TensorFlow"),
        (["state", "keras"], "TensorFlow", "TensorFlow"),
        (["state", "safetensors"], "TensorFlow", "TensorFlow"),
        (["orbax", "keras"], "Orbax", "in a store that tensorstore does not read here"),
        (["orbax", "dump"], "HugeCTR", "in a store that tensorstore does not read here"),
        (["keras", "safetensors"], "Keras", "PyTorch"),
        ([], "no file named `checkpoint`", "does not exist"),
    ],
)
def test_directory_of_several_checkpoints_is_opened_as_one_of_them(
    tmp_path: Path, writers: list[str], local: str, remote: str
) -> None:
    marker = tmp_path / "made"
    marker.mkdir()
    for name in writers:
        WRITERS[name](marker)
    assert local in kind_of(marker)
    assert remote in kind_of(uploaded(marker, RemotePath(f"memory://{tmp_path}/store")))


@pytest.mark.parametrize(
    ("writers", "torch", "jax"),
    [
        (["safetensors"], True, False),
        (["orbax"], False, True),
        (["tensorflow", "safetensors"], False, False),
        (["state", "safetensors"], False, False),
        (["tensorflow"], False, False),
        (["orbax", "dump"], False, False),
        (["dump"], False, False),
        ([], False, False),
    ],
)
def test_is_torch_and_is_jax_of_a_directory_without_a_checkpoint_of_tensorflow(
    tmp_path: Path, writers: list[str], torch: bool, jax: bool
) -> None:
    for name in writers:
        WRITERS[name](tmp_path)
    assert is_torch(tmp_path) is torch
    assert is_jax(tmp_path) is jax
    (tmp_path / "file").write_bytes(b"")
    assert not is_torch(tmp_path / "file")
    assert not is_jax(tmp_path / "file")
    (tmp_path / ".metadata").write_bytes(b"")
    assert is_torch(tmp_path)


def test_is_jax_of_a_model_of_keras_or_beside_a_state_file_is_false(tmp_path: Path) -> None:
    write_item(tmp_path / "keras", {"trainable_variables.a": VALUES})
    assert not is_jax(tmp_path / "keras")
    write_item(tmp_path / "jax", {"a": VALUES})
    (tmp_path / "jax/checkpoint").write_bytes(b"")
    assert not is_jax(uploaded(tmp_path / "jax", RemotePath(f"memory://{tmp_path}/store")))
    assert not is_jax(RemotePath(f"memory://{tmp_path}/none"))


def test_file_of_keras_or_safetensors_is_opened_by_its_path(tmp_path: Path) -> None:
    write_keras(tmp_path)
    write_safetensors(tmp_path)
    assert kind_of(tmp_path / "a.weights.h5") == "Keras"
    assert kind_of(tmp_path / "a.safetensors") == "PyTorch"
    assert "does not exist" in kind_of(tmp_path / "b.safetensors")
    assert "does not exist" in kind_of(tmp_path / "b.h5")


def test_saved_model_beside_a_tree_of_orbax_is_no_checkpoint_of_orbax(tmp_path: Path) -> None:
    write_orbax(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"")
    message = f"{tmp_path} is an Orbax checkpoint: it holds no tree of arrays"
    assert kind_of(tmp_path).startswith(message)


def test_checkpoint_with_problems_is_opened_to_list_them(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"v": VALUES, "w": VALUES}, files=2)
    files = sorted(tmp_path.glob("c.data-*"))
    for file in files:
        file.unlink()
    actual = open_checkpoint(tmp_path, complete=False)
    assert len(actual.problems) == 2
    assert kind_of(tmp_path) == actual.problems[0]
    assert str(files[0]) in actual.problems[0]


def test_open_checkpoint_of_a_pytorch_file_names_the_format(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.ckpt", "w") as file:
        file.writestr("archive/data.pkl", b"x")
    with pytest.raises(CheckpointError, match="PyTorch"):
        open_checkpoint(tmp_path / "x.ckpt")


STORED = np.arange(600, dtype=np.float32).reshape(100, 6)


@pytest.fixture(params=["memory", "local"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> RemotePath:
    """A directory with two checkpoints and a state file that names the first."""
    for name, factor in (("ckpt-1", 1), ("ckpt-2", 2)):
        write_bundle(
            tmp_path / "made" / name, {"t": factor * STORED, "s": np.zeros(3, np.float32)}, files=2
        )
    (tmp_path / "made" / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\n')
    return uploaded(tmp_path / "made", RemotePath(f"{request.param}://{tmp_path}/store"))


@pytest.mark.parametrize("path", ["", "ckpt-1", "ckpt-1.index"])
def test_open_checkpoint_directory_prefix_or_index_in_a_store_means_the_same(
    directory: RemotePath, path: str
) -> None:
    checkpoint = open_checkpoint(directory / path if path else directory)
    assert str(checkpoint.prefix) == f"{directory}/ckpt-1"
    assert checkpoint.name == "ckpt-1"
    np.testing.assert_array_equal(checkpoint.read("t", 7, 50), STORED[7:57])
    np.testing.assert_array_equal(checkpoint.read_all("t"), STORED)


def test_open_checkpoint_directory_in_a_store_without_a_state_file_takes_the_newest(
    directory: RemotePath,
) -> None:
    (directory / "checkpoint").remove()
    index = directory / "ckpt-1.index"
    written = index.read(0, index.stamp().bytes)
    index.remove()
    index.write(written)
    assert open_checkpoint(directory).name == "ckpt-1"


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("ckpt-3", "does not exist; beside it: ckpt-1, ckpt-2"),
        ("ckpt-1.data-00000-of-00002", "is a data file of"),
    ],
)
def test_open_checkpoint_that_is_not_in_the_store_is_an_error(
    directory: RemotePath, path: str, what: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(what)):
        open_checkpoint(directory / path)


def test_open_checkpoint_without_a_data_file_in_the_store_is_an_error(
    directory: RemotePath,
) -> None:
    (directory / "ckpt-1.data-00001-of-00002").remove()
    with pytest.raises(CheckpointError, match=r"data-00001-of-00002 cannot be read: No such file"):
        open_checkpoint(directory)


def test_check_unchanged_of_a_checkpoint_that_was_saved_again_is_an_error(
    directory: RemotePath,
) -> None:
    checkpoint = open_checkpoint(directory)
    checkpoint.check_unchanged()
    file = directory / "ckpt-1.data-00000-of-00002"
    file.write(file.read(0, file.stamp().bytes))
    with pytest.raises(CheckpointError, match="data-00000-of-00002 changed while it was read"):
        checkpoint.check_unchanged()


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize(
    ("leaf", "siblings", "jax"),
    [
        ("params.t", [], True),
        ("params.t", ["notes.txt"], True),
        ("params.t", ["ckpt-1.index"], False),
        ("", ["notes.txt"], False),
        ("", [], False),
    ],
)
def test_is_jax_of_a_directory_of_orbax_without_an_index_of_tensorflow(
    tmp_path: Path, leaf: str, siblings: list[str], jax: bool, remote: bool
) -> None:
    marker = tmp_path / "made"
    if leaf:
        write_item(marker, {leaf: VALUES})
    for name in siblings:
        marker.mkdir(exist_ok=True)
        (marker / name).write_bytes(b"")
    store = RemotePath(f"memory://{tmp_path}/store")
    assert is_jax(uploaded(marker, store) if remote and marker.exists() else marker) == jax

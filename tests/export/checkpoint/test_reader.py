"""Reading values: whole, by rows, through slices cut in every way, from files that are damaged."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import is_jax, open_checkpoint
from export.errors import CheckpointError
from object_store.remote_path import RemotePath
from tests.export.checkpoint.orbax_trees import write_item
from tests.export.checkpoint.tensor_bundles import GRAPH, node, object_graph, write_bundle
from tests.object_store.memory_stores import uploaded

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
def test_read_slices_with_a_gap_or_overlap_are_refused(tmp_path: Path, boxes: Any) -> None:
    write_bundle(tmp_path / "c", {"v": VALUES}, boxes={"v": boxes})
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="overlap or leave a gap"):
        checkpoint.read("v", 0, ROWS)


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
    for at in range(len(content)):
        content[at] ^= 4
        data.write_bytes(content)
        content[at] ^= 4
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


@pytest.mark.parametrize("given", ["", "ckpt-1", "ckpt-1.index"])
def test_open_checkpoint_directory_prefix_or_index_in_a_store_means_the_same(
    directory: RemotePath, given: str
) -> None:
    checkpoint = open_checkpoint(directory / given if given else directory)
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
    ("given", "what"),
    [
        ("ckpt-3", "does not exist; beside it: ckpt-1, ckpt-2"),
        ("ckpt-1.data-00000-of-00002", "is a data file of"),
    ],
)
def test_open_checkpoint_that_is_not_in_the_store_is_an_error(
    directory: RemotePath, given: str, what: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(what)):
        open_checkpoint(directory / given)


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
    ("leaf", "beside", "jax"),
    [
        ("params.t", [], True),
        ("params.t", ["notes.txt"], True),
        ("params.t", ["ckpt-1.index"], False),
        ("", ["notes.txt"], False),
        ("", [], False),
    ],
)
def test_is_jax_of_a_directory_of_orbax_without_an_index_of_tensorflow(
    tmp_path: Path, leaf: str, beside: list[str], jax: bool, remote: bool
) -> None:
    made = tmp_path / "made"
    if leaf:
        write_item(made, {leaf: VALUES})
    for name in beside:
        made.mkdir(exist_ok=True)
        (made / name).write_bytes(b"")
    store = RemotePath(f"memory://{tmp_path}/store")
    assert is_jax(uploaded(made, store) if remote and made.exists() else made) == jax

"""Reading values: whole, by rows, through slices cut in every way, from files that are damaged."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.export.checkpoint.bundles import GRAPH, node, object_graph, write_bundle

ROWS, DIM = 37, 6
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


def test_read_file_cut_short_after_opening_is_told(tmp_path: Path) -> None:
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
def test_read_of_what_is_not_there_or_no_number_is_refused(
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


def test_name_that_is_no_utf8_can_be_told(tmp_path: Path) -> None:
    write_bundle(tmp_path / os.fsdecode(b"ckpt-\xff\x1b"), {"v": VALUES})
    assert open_checkpoint(tmp_path).name == "ckpt-\\xff\x1b"


def test_open_checkpoint_of_a_zip_file_of_pytorch_says_what_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.ckpt", "w") as file:
        file.writestr("archive/data.pkl", b"x")
    with pytest.raises(CheckpointError, match="PyTorch"):
        open_checkpoint(tmp_path / "x.ckpt")

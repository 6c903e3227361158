from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.formats.arrays import ArrayRows
from export.checkpoint.formats.orbax import find_orbax, list_orbax
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.export.checkpoint.orbax_trees import write_item, write_step

TABLE = np.arange(60, dtype=np.float32).reshape(20, 3)


def test_open_checkpoint_of_orbax_lists_arrays_by_their_dotted_paths(tmp_path: Path) -> None:
    leaves = {"params.a.embedding": TABLE, "step": np.array(7, np.int64), "nothing": None, "half": TABLE[0]}
    write_item(tmp_path / "ckpt", leaves, chunk_rows=6)
    checkpoint = open_checkpoint(tmp_path / "ckpt")
    assert {key: (entry.dtype, entry.shape) for key, entry in checkpoint.entries.items()} == {
        "params.a.embedding": ("float32", (20, 3)),
        "step": ("int64", ()),
        "half": ("float32", (3,)),
    }
    assert checkpoint.entries["params.a.embedding"].pieces == 4
    assert checkpoint.graph is None
    np.testing.assert_array_equal(checkpoint.read("params.a.embedding", 5, 9), TABLE[5:14])
    np.testing.assert_array_equal(checkpoint.read_all("half"), TABLE[0])
    assert checkpoint.read_all("step") == 7
    assert recognise(checkpoint).step == 7
    with pytest.raises(CheckpointError, match="no string scalar"):
        checkpoint.read_string("step")
    with pytest.raises(CheckpointError, match="has no rows 15 to 25"):
        checkpoint.read("params.a.embedding", 15, 10)


def test_find_orbax_takes_the_newest_complete_step(tmp_path: Path) -> None:
    for step in ("9", "10"):
        write_step(tmp_path, step, {"a": TABLE})
    write_step(tmp_path, "11", {"a": TABLE}, committed=False)
    write_step(tmp_path, "12.orbax-checkpoint-tmp-1700000000", {"a": TABLE})
    found = find_orbax(tmp_path)
    assert found is not None
    assert (found.step, found.directory, found.name) == (10, tmp_path / "10", f"{tmp_path.name}/10")


def test_find_orbax_reads_steps_with_a_prefix_and_items_by_name(tmp_path: Path) -> None:
    step = write_step(tmp_path, "ckpt_7", {"a": TABLE})
    write_item(step / "tower_1", {"b": TABLE})
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.name, checkpoint.storage.step) == ("ckpt_7", 7)
    assert sorted(checkpoint.entries) == ["default.a", "tower_1.b"]


@pytest.mark.parametrize("name", ["3.orbax-checkpoint-tmp-1700000000", "3"])
def test_find_orbax_of_what_is_being_saved_says_so(tmp_path: Path, name: str) -> None:
    write_step(tmp_path, name, {"a": TABLE}, committed=False)
    with pytest.raises(CheckpointError, match="not complete"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path / name)


def test_find_orbax_finds_nothing_in_other_directories(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    assert find_orbax(tmp_path) is None


def test_fingerprint_tells_two_saves_apart(tmp_path: Path) -> None:
    write_step(tmp_path, "1", {"a": TABLE})
    write_step(tmp_path, "2", {"a": TABLE + 1})
    one, other = (list_orbax(place)[0] for step in "12" if (place := find_orbax(tmp_path / step)) is not None)
    assert one != other


def test_array_that_the_tree_names_but_is_not_there_is_told(tmp_path: Path) -> None:
    write_item(tmp_path / "ckpt", {"a": TABLE})
    tree = tmp_path / "ckpt" / "_METADATA"
    tree.write_text(tree.read_text().replace('"key": "a"', '"key": "b"'))
    with pytest.raises(CheckpointError, match="no array 'b'"):
        open_checkpoint(tmp_path / "ckpt")


@pytest.mark.parametrize("content", ["{", "[1]", '{"tree_metadata": {"a": 1}}', '{"tree_metadata": 5}', "\udcff"])
def test_tree_that_is_damaged_is_told(tmp_path: Path, content: str) -> None:
    write_item(tmp_path / "ckpt", {"a": TABLE})
    (tmp_path / "ckpt" / "_METADATA").write_text(content, errors="surrogateescape")
    with pytest.raises(CheckpointError, match="copy"):
        open_checkpoint(tmp_path / "ckpt")


def test_leaves_by_steps_of_any_name_are_read_without_what_holds_nothing(tmp_path: Path) -> None:
    write_item(tmp_path / "ckpt", {"a": TABLE, '}}, "κ.x': TABLE, "none": None})
    assert sorted(open_checkpoint(tmp_path / "ckpt").entries) == ["a", '}}, "κ.x']
    (tmp_path / "ckpt" / "_METADATA").unlink()
    assert sorted(open_checkpoint(tmp_path / "ckpt").entries) == ["a", '}}, "κ.x']


def test_store_that_is_damaged_is_told(tmp_path: Path) -> None:
    write_item(tmp_path / "ckpt", {"a": TABLE})
    (tmp_path / "ckpt" / "manifest.ocdbt").write_bytes(b"\x00" * 50)
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_checkpoint(tmp_path / "ckpt")


def test_open_checkpoint_of_orbax_without_tensorstore_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_item(tmp_path / "ckpt", {"a": TABLE})
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(CheckpointError, match=r"pip install 'rowcast\[orbax\]'"):
        open_checkpoint(tmp_path / "ckpt")


def test_array_that_is_saved_anew_while_it_is_read_is_told(tmp_path: Path) -> None:
    write_item(tmp_path / "ckpt", {"a": TABLE})
    array = open_checkpoint(tmp_path / "ckpt").entries["a"].array
    assert array is not None
    rows = np.empty((2, 12), np.uint8)
    stored = ArrayRows(array)
    stored.read_into(0, rows)
    stored.__exit__(None, None, None)
    shutil.rmtree(tmp_path / "ckpt")
    write_item(tmp_path / "ckpt", {"a": TABLE + 1})
    with pytest.raises(CheckpointError, match="changed while it was read"):
        stored.__exit__(None, None, None)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        ArrayRows(array)
    shutil.rmtree(tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"manifest\.ocdbt"):
        ArrayRows(array)

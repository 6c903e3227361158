from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorstore

from export.checkpoint.formats.orbax import find_orbax, is_keras_state
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.tables.plan import plan_tables
from tests.export.checkpoint.orbax_trees import write_item, write_step

TABLE = np.arange(60, dtype=np.float32).reshape(20, 3)


@pytest.fixture
def item(tmp_path: Path) -> Path:
    """A tree of a single table."""
    write_item(tmp_path / "ckpt", {"a": TABLE})
    return tmp_path / "ckpt"


def test_root_of_steps_opens_the_newest_complete_step(tmp_path: Path) -> None:
    for step in ("9", "10"):
        write_step(tmp_path, step, {"a": TABLE})
    write_step(tmp_path, "11", {"a": TABLE}, committed=False)
    write_step(tmp_path, "12.orbax-checkpoint-tmp-1700000000", {"a": TABLE})
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.storage.step, checkpoint.prefix) == (10, tmp_path / "10")


def test_steps_may_have_a_prefix_and_items_names(tmp_path: Path) -> None:
    step = write_step(tmp_path, "ckpt_7", {"a": TABLE})
    write_item(step / "tower_1", {"b": TABLE})
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.name, checkpoint.storage.step) == ("ckpt_7", 7)
    assert sorted(checkpoint.entries) == ["default.a", "tower_1.b"]


def test_items_without_a_step_are_one_checkpoint(tmp_path: Path) -> None:
    for name in ("model", "towers"):
        write_item(tmp_path / "run" / name, {"a": TABLE})
    checkpoint = open_checkpoint(tmp_path / "run")
    assert (checkpoint.name, checkpoint.storage.step) == ("run", None)
    assert sorted(checkpoint.entries) == ["model.a", "towers.a"]


def test_items_that_are_called_by_numbers_are_steps(tmp_path: Path) -> None:
    for step in ("9", "10"):
        write_item(tmp_path / step, {"a": TABLE})
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.storage.step, sorted(checkpoint.entries)) == (10, ["a"])


def test_step_that_is_marked_as_committed_needs_no_time_of_its_commit(tmp_path: Path) -> None:
    step = write_step(tmp_path, "3", {"a": TABLE}, committed=False)
    for directory in (step, step / "default"):
        (directory / "commit_success.txt").write_text("Checkpoint commit was successful")
    assert open_checkpoint(tmp_path).storage.step == 3


def test_link_to_a_checkpoint_keeps_its_own_name(item: Path) -> None:
    (item.parent / "latest").symlink_to(item)
    assert open_checkpoint(item.parent / "latest").name == "latest"


@pytest.mark.parametrize(
    ("trees", "expected"),
    [
        (("trainable_variables", "optimizer_variables"), True),
        (("trainable_variables", "rng"), False),
        (("metrics_variables",), False),
    ],
)
def test_checkpoint_of_a_keras_model_has_its_trees_alone(
    tmp_path: Path, trees: tuple[str, ...], expected: bool
) -> None:
    write_item(tmp_path / "ckpt", {f"{tree}.a": TABLE for tree in trees})
    place = find_orbax(tmp_path / "ckpt")
    assert place is not None
    assert is_keras_state(place) is expected


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ([20, 3], [20]),
        ([20, 3], [0, 3]),
        ([20, 3], [20, 1 << 60]),
        ([-1, 3], [20, 3]),
        ([1 << 60, 3], [20, 3]),
    ],
)
def test_array_whose_shape_and_chunks_cannot_be_is_refused(
    item: Path, shape: list[int], chunks: list[int]
) -> None:
    where = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{item}/"}}
    store = tensorstore.KvStore.open(where).result()
    metadata = json.loads(store["a/.zarray"]) | {"shape": shape, "chunks": chunks}
    store["a/.zarray"] = json.dumps(metadata)
    told = f"array 'a' has the shape {shape} and chunks {chunks}; copy it anew"
    with pytest.raises(CheckpointError, match=re.escape(told)):
        open_checkpoint(item)


@pytest.mark.parametrize("name", ["3.orbax-checkpoint-tmp-1700000000", "3"])
def test_checkpoint_that_is_being_saved_is_refused(tmp_path: Path, name: str) -> None:
    write_step(tmp_path, name, {"a": TABLE}, committed=False)
    with pytest.raises(CheckpointError, match="not complete"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path / name)


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        *(
            ("_METADATA", text, "copy")
            for text in ("{", "[1]", '{"tree_metadata": {"a": 1}}', "\udcff")
        ),
        ("_METADATA", None, "no array 'b'"),
        ("manifest.ocdbt", "\0" * 50, "cannot be read"),
    ],
)
def test_damaged_tree_or_store_is_refused(
    item: Path, file: str, content: str | None, told: str
) -> None:
    tree = (item / file).read_bytes().replace(b'"key": "a"', b'"key": "b"')
    (item / file).write_bytes(tree if content is None else content.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=told):
        open_checkpoint(item)


def test_leaves_of_any_name_are_read_with_and_without_the_tree(tmp_path: Path) -> None:
    write_item(tmp_path / "ckpt", {"a": TABLE, '}}, "κ.x': TABLE, "none": None})
    assert sorted(open_checkpoint(tmp_path / "ckpt").entries) == ["a", '}}, "κ.x']
    (tmp_path / "ckpt" / "_METADATA").unlink()
    assert sorted(open_checkpoint(tmp_path / "ckpt").entries) == ["a", '}}, "κ.x']


def test_open_checkpoint_of_orbax_without_tensorstore_names_the_extra(
    item: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(CheckpointError, match=r"pip install '\.\[orbax\]'"):
        open_checkpoint(item)


def test_array_that_is_saved_anew_after_opening_is_refused(item: Path) -> None:
    checkpoint = open_checkpoint(item)
    shutil.rmtree(item)
    write_item(item, {"a": TABLE + 1})
    with pytest.raises(CheckpointError, match="changed while it was read"):
        checkpoint.read("a", 0, 2)
    shutil.rmtree(item)
    with pytest.raises(CheckpointError, match=r"manifest\.ocdbt"):
        checkpoint.read("a", 0, 2)


def test_path_with_dots_opens_the_directory_that_it_resolves_to(
    item: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (item.parent / "beside").mkdir()
    monkeypatch.chdir(item.parent / "beside")
    checkpoint = open_checkpoint(Path("../beside/../ckpt"))
    assert checkpoint.name == "ckpt"
    np.testing.assert_array_equal(checkpoint.read("a", 0, 20), TABLE)


HALF = np.concatenate([TABLE[:10], 0 * TABLE[:10]])
"""Its second half is a chunk of zeros."""


@pytest.mark.parametrize("zarr3", [False, True])
def test_chunks_of_zeros_are_read_where_they_are_stored(tmp_path: Path, zarr3: bool) -> None:
    write_item(tmp_path / "ckpt", {"a": HALF}, chunk_rows=10, zarr3=zarr3)
    np.testing.assert_array_equal(open_checkpoint(tmp_path / "ckpt").read("a", 0, 20), HALF)


def test_chunk_missing_from_a_store_of_all_chunks_is_an_error(tmp_path: Path) -> None:
    write_item(tmp_path / "ckpt", {"a": HALF}, chunk_rows=10, zarr3=True, zeros=False)
    with pytest.raises(CheckpointError, match=r"array 'a': 1 of 2 chunks are missing in .*ckpt"):
        open_checkpoint(tmp_path / "ckpt")


def test_chunk_missing_from_an_older_zarr_2_array_is_an_error(tmp_path: Path) -> None:
    write_item(tmp_path / "ckpt", {"a": HALF}, chunk_rows=10, zeros=None)
    assert not open_checkpoint(tmp_path / "ckpt").problems  # all chunks are stored
    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{tmp_path}/ckpt/"}}
    del tensorstore.KvStore.open(store).result()["a/1.0"]
    with pytest.raises(CheckpointError, match=r"array 'a': 1 of 2 chunks are missing in .*ckpt"):
        open_checkpoint(tmp_path / "ckpt")


def test_chunk_that_an_older_release_may_have_left_out_is_rejected_with_the_reason(
    tmp_path: Path,
) -> None:
    leaves = {"m.embedding": HALF, "step": np.array(0), "bias": np.zeros(4, np.float32)}
    write_item(tmp_path / "ckpt", leaves, chunk_rows=10, zarr3=True, zeros=None)
    checkpoint = open_checkpoint(tmp_path / "ckpt")
    inventory = recognise(checkpoint)
    assert inventory.step is None
    told = r"1 of its chunks are not stored .*lost, or held only zeros.*save it with Orbax 0\.10"
    with pytest.raises(CheckpointError, match=rf"table 'm': {told}"):
        plan_tables(checkpoint, inventory, tmp_path / "out")
    with pytest.raises(CheckpointError, match=told):
        checkpoint.read("m.embedding", 10, 2)


def test_data_file_may_end_with_its_last_value_but_not_before(tmp_path: Path) -> None:
    noise = np.random.default_rng(3).standard_normal((400, 3)).astype(np.float32)
    # What lists both arrays is written after the second, so in another file.
    write_item(tmp_path / "ckpt", {"a": noise, "b": TABLE})
    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{tmp_path}/ckpt/"}}
    chunk = tensorstore.KvStore.open(store).result()["a/0.0"]
    (file,) = (each for each in (tmp_path / "ckpt/d").iterdir() if chunk in each.read_bytes())
    content = file.read_bytes()
    end = content.index(chunk) + len(chunk)
    assert not open_checkpoint(tmp_path / "ckpt").problems

    file.write_bytes(content[: end - 1])
    with pytest.raises(CheckpointError, match=rf"has {end - 1} bytes of {end}: it was cut short"):
        open_checkpoint(tmp_path / "ckpt")
    file.write_bytes(content[:end])
    assert not open_checkpoint(tmp_path / "ckpt").problems

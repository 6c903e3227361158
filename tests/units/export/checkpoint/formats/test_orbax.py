"""Which checkpoint of Orbax a path means, and what is listed of it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.formats import orbax
from export.checkpoint.formats.orbax import (
    find_keras_lists,
    find_orbax,
    is_keras_state,
    list_orbax,
)
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import Listing
from export.errors import CheckpointError
from export.tables.plan import plan_tables
from tests.units.export.checkpoint.formats.orbax_files import (
    HALF,
    NOISE,
    TABLE,
    data_file_of,
    repacked,
    state_kind,
    store_of,
)
from tests.units.export.checkpoint.orbax_trees import write_item, write_step


@pytest.fixture
def item(tmp_path: Path) -> Path:
    """A tree of a single table."""
    write_item(tmp_path / "ckpt", {"a": TABLE})
    return tmp_path / "ckpt"


def listed(path: Path) -> Listing:
    """Returns what is listed of the checkpoint that a directory holds."""
    checkpoint = find_orbax(path)
    assert checkpoint is not None
    return list_orbax(checkpoint)


def rejected(path: Path) -> str:
    """Returns why a directory is not opened."""
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(path)
    return str(error.value)


def test_root_of_steps_opens_the_newest_complete_step(tmp_path: Path) -> None:
    for step in ("9", "10"):
        write_step(tmp_path, step, {"a": TABLE})
    write_step(tmp_path, "11", {"a": TABLE}, committed=False)
    write_step(tmp_path, "12.orbax-checkpoint-tmp-1700000000", {"a": TABLE})
    (tmp_path / "13").mkdir()
    (tmp_path / "14").write_text("no directory")
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.storage.step, checkpoint.prefix) == (10, tmp_path / "10")
    assert checkpoint.name == f"{tmp_path.name}/10"
    assert list(checkpoint.entries) == ["a"]


def test_item_of_a_step_is_named_by_its_step(tmp_path: Path) -> None:
    step = write_step(tmp_path / "run", "7", {"a": TABLE})
    checkpoint = find_orbax(step / "default")
    assert checkpoint is not None
    assert (checkpoint.directory, checkpoint.step, checkpoint.name) == (step, 7, "run/7")
    assert checkpoint.items == {"": step / "default"}


def test_directory_of_one_item_is_named_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_item(tmp_path / "run" / "model", {"a": TABLE})
    checkpoint = find_orbax(tmp_path / "run")
    assert checkpoint is not None
    assert (checkpoint.directory, checkpoint.step, checkpoint.name) == (
        tmp_path / "run",
        None,
        "run",
    )
    assert checkpoint.items == {"": tmp_path / "run" / "model"}
    monkeypatch.chdir(tmp_path / "run" / "model")
    here = find_orbax(Path())
    assert here is not None
    assert (here.step, here.name) == (None, "model")


def test_directory_without_a_checkpoint_of_orbax_has_none(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "8").write_text("no directory")
    assert find_orbax(tmp_path) is None


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
    checkpoint = find_orbax(tmp_path / "ckpt")
    assert checkpoint is not None
    assert is_keras_state(checkpoint) is expected


def test_checkpoint_without_a_tree_is_none_of_a_keras_model(item: Path) -> None:
    (item / "_METADATA").unlink()
    checkpoint = find_orbax(item)
    assert checkpoint is not None
    assert not is_keras_state(checkpoint)


def test_configuration_may_lie_beside_the_tree_of_a_keras_model(tmp_path: Path) -> None:
    write_item(tmp_path / "config", {"a": TABLE})
    write_item(tmp_path / "pytree", {"trainable_variables.a": TABLE})
    checkpoint = find_orbax(tmp_path)
    assert checkpoint is not None
    assert is_keras_state(checkpoint)


def test_item_without_a_step_says_itself_that_it_was_committed(tmp_path: Path) -> None:
    for name in ("model", "towers"):
        write_item(tmp_path / name, {"a": TABLE})
    metadata = json.dumps({"commit_timestamp_nsecs": 2})
    (tmp_path / "towers/_CHECKPOINT_METADATA").write_text(metadata)
    assert sorted(open_checkpoint(tmp_path).entries) == ["model.a", "towers.a"]


@pytest.mark.parametrize(
    "file",
    ["_CHECKPOINT_METADATA", "default/_CHECKPOINT_METADATA", "default/_METADATA"],
)
def test_fingerprint_is_of_the_metadata_of_step_item_and_tree(tmp_path: Path, file: str) -> None:
    step = write_step(tmp_path, "3", {"a": TABLE})
    before = listed(tmp_path).fingerprint
    assert re.fullmatch(r"sha256:[0-9a-f]{16}", before)
    assert listed(tmp_path).fingerprint == before
    content = (step / file).read_text() if (step / file).is_file() else "{}"
    (step / file).write_text(f"{content} ")
    assert listed(tmp_path).fingerprint != before


def test_fingerprint_is_of_the_store(item: Path) -> None:
    before = listed(item).fingerprint
    store_of(item)["notes"] = b"written later"
    assert listed(item).fingerprint != before


def test_leaf_that_is_no_array_of_numbers_may_be_left_out(tmp_path: Path) -> None:
    write_item(tmp_path / "c", {"a": TABLE, "b": None})
    state_kind(tmp_path / "c", "b", "string")
    assert list(open_checkpoint(tmp_path / "c").entries) == ["a"]


def test_store_whose_keys_were_all_deleted_has_no_arrays(tmp_path: Path) -> None:
    write_item(tmp_path / "c", {"none": None})
    store = store_of(tmp_path / "c")
    store["notes"] = bytes(1000)
    del store["notes"]
    checkpoint = open_checkpoint(tmp_path / "c")
    assert (dict(checkpoint.entries), checkpoint.problems) == ({}, ())


def test_tree_of_a_store_may_have_nodes_up_to_a_limit(
    item: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orbax, "_NODES_MAX", 1)
    assert list(open_checkpoint(item).entries) == ["a"]

    deep = repacked(item, 1)
    assert rejected(deep) == (
        f"Orbax checkpoint {deep} cannot be read: more than 1 nodes; copy it anew"
    )
    monkeypatch.undo()
    assert list(open_checkpoint(deep).entries) == ["a"]


def test_data_file_that_only_an_older_version_needs_may_be_gone(item: Path) -> None:
    store_of(item)["z"] = bytes(1000)
    file, _ = data_file_of(item, "z")
    store_of(item)["z"] = b"short"
    file.unlink()
    assert list(open_checkpoint(item).entries) == ["a"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int8"])
def test_array_is_listed_with_the_memory_that_reading_it_takes(tmp_path: Path, dtype: str) -> None:
    write_item(tmp_path / "c", {"a": TABLE.astype(dtype)}, chunk_rows=8)
    entry = open_checkpoint(tmp_path / "c").entries["a"]
    itemsize = {"float32": 4, "bfloat16": 2, "complex64": 0, "int8": 1}[dtype]
    assert (entry.dtype, entry.shape, entry.itemsize) == (dtype, (20, 3), itemsize)
    assert entry.array is not None
    assert entry.array.chunk == (8, 3)
    assert entry.array.memory_bytes == 2 * 24 * 3 * itemsize  # three chunks, stored and decoded
    assert entry.array.file == str(tmp_path / "c/manifest.ocdbt")


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


def test_array_that_is_saved_anew_after_opening_is_rejected(item: Path) -> None:
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


def test_chunk_that_an_older_release_may_have_left_out_is_rejected_with_the_reason(
    tmp_path: Path,
) -> None:
    leaves = {"m.embedding": HALF, "step": np.array(0), "bias": np.zeros(4, np.float32)}
    write_item(tmp_path / "ckpt", leaves, chunk_rows=10, zarr3=True, zeros=None)
    checkpoint = open_checkpoint(tmp_path / "ckpt")
    inventory = recognize(checkpoint)
    assert inventory.step is None
    message = r"1 of its chunks are not stored .*lost, or held only zeros.*save it with Orbax 0\.10"
    with pytest.raises(CheckpointError, match=rf"table 'm': {message}"):
        plan_tables(checkpoint, inventory, tmp_path / "out")
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read("m.embedding", 10, 2)


def test_data_file_may_end_with_its_last_value(tmp_path: Path) -> None:
    # What lists both arrays is written after the second, so in another file.
    write_item(tmp_path / "ckpt", {"a": NOISE, "b": TABLE})
    file, end = data_file_of(tmp_path / "ckpt", "a/0.0")
    file.write_bytes(file.read_bytes()[:end])
    assert not open_checkpoint(tmp_path / "ckpt").problems


@pytest.mark.parametrize(
    ("paths", "lists"),
    [
        (["0.0", "0.1", "1.0", "2.0"], {"": ("0", "1")}),
        (["0.0", "0.1", "2.0"], {"": ("0", "1")}),  # no variable that is not trained
        (["step", "tvars.0", "ntvars.0", "opt_state.0.mu.0/x"], {"": ("tvars", "ntvars")}),
        (
            ["state.trainable_variables.0"],
            {"state.": ("state.trainable_variables", "state.non_trainable_variables")},
        ),
        (
            ["a.tvars.0", "b.tvars.0"],
            {"a.": ("a.tvars", "a.ntvars"), "b.": ("b.tvars", "b.ntvars")},
        ),
        (["tvars.0", "tvars.2"], {}),
        (["tvars.0", "tvars.1.mean"], {}),
        (["tvars.kernel"], {}),
        (["trainable_variables.two.0"], {}),
        (["0", "1"], {}),
        ([], {}),
    ],
)
def test_lists_of_variables_of_keras_have_all_numbers_and_nothing_else(
    paths: list[str], lists: dict[str, tuple[str, str]]
) -> None:
    assert find_keras_lists(paths) == lists

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore

from export.checkpoint.formats import orbax
from export.checkpoint.formats.orbax import find_orbax, is_keras_state, list_orbax
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import Listing
from export.errors import CheckpointError
from export.tables.plan import plan_tables
from tests.export.checkpoint.orbax_trees import write_item, write_step

TABLE = np.arange(60, dtype=np.float32).reshape(20, 3)


@pytest.fixture
def item(tmp_path: Path) -> Path:
    """A tree of a single table."""
    write_item(tmp_path / "ckpt", {"a": TABLE})
    return tmp_path / "ckpt"


def listed(path: Path) -> Listing:
    """Returns what is listed of the checkpoint that a directory holds."""
    place = find_orbax(path)
    assert place is not None
    return list_orbax(place)


def refused(path: Path) -> str:
    """Returns why a directory is not opened."""
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(path)
    return str(error.value)


def store_of(item: Path, **options: Any) -> Any:
    """Opens the OCDBT store of an item."""
    base = {"driver": "file", "path": f"{item}/"}
    return tensorstore.KvStore.open({"driver": "ocdbt", "base": base, **options}).result()


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
    place = find_orbax(step / "default")
    assert place is not None
    assert (place.directory, place.step, place.name) == (step, 7, "run/7")
    assert place.items == {"": step / "default"}


def test_directory_of_one_item_is_named_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_item(tmp_path / "run" / "model", {"a": TABLE})
    place = find_orbax(tmp_path / "run")
    assert place is not None
    assert (place.directory, place.step, place.name) == (tmp_path / "run", None, "run")
    assert place.items == {"": tmp_path / "run" / "model"}
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
    place = find_orbax(tmp_path / "ckpt")
    assert place is not None
    assert is_keras_state(place) is expected


def test_checkpoint_without_a_tree_is_none_of_a_keras_model(item: Path) -> None:
    (item / "_METADATA").unlink()
    place = find_orbax(item)
    assert place is not None
    assert not is_keras_state(place)


def test_configuration_may_lie_beside_the_tree_of_a_keras_model(tmp_path: Path) -> None:
    write_item(tmp_path / "config", {"a": TABLE})
    write_item(tmp_path / "pytree", {"trainable_variables.a": TABLE})
    place = find_orbax(tmp_path)
    assert place is not None
    assert is_keras_state(place)


def test_keras_state_of_a_damaged_tree_is_refused(item: Path) -> None:
    (item / "_METADATA").write_text('{"tree_metadata": {"a": {}}}')
    place = find_orbax(item)
    assert place is not None
    with pytest.raises(CheckpointError) as error:
        is_keras_state(place)
    told = f"Orbax checkpoint {item} cannot be read: 'value_metadata'; copy it anew"
    assert str(error.value) == told


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
    store = store_of(item)
    metadata = json.loads(store["a/.zarray"]) | {"shape": shape, "chunks": chunks}
    store["a/.zarray"] = json.dumps(metadata)
    told = f"array 'a' has the shape {shape} and chunks {chunks}; copy it anew"
    with pytest.raises(CheckpointError, match=re.escape(told)):
        open_checkpoint(item)


@pytest.mark.parametrize(
    ("name", "committed"),
    [
        ("3", False),
        ("3.orbax-checkpoint-tmp-1700000000", False),
        ("3.orbax-checkpoint-tmp-1700000000", True),
    ],
)
def test_checkpoint_that_is_being_saved_is_refused(
    tmp_path: Path, name: str, committed: bool
) -> None:
    write_step(tmp_path, name, {"a": TABLE}, committed=committed)
    told = (
        f"Orbax checkpoint {tmp_path / name} is not complete: it is being saved, or the save was "
        "interrupted; wait for it, or take an older one"
    )
    assert refused(tmp_path) == told
    assert refused(tmp_path / name) == told


@pytest.mark.parametrize("committed", [False, True])
def test_item_without_a_step_says_itself_whether_it_was_committed(
    tmp_path: Path, committed: bool
) -> None:
    for name in ("model", "towers"):
        write_item(tmp_path / name, {"a": TABLE})
    time = 2 if committed else None
    (tmp_path / "towers/_CHECKPOINT_METADATA").write_text(
        json.dumps({"commit_timestamp_nsecs": time})
    )
    if committed:
        assert sorted(open_checkpoint(tmp_path).entries) == ["model.a", "towers.a"]
    else:
        assert refused(tmp_path).startswith(f"Orbax checkpoint {tmp_path} is not complete")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is no JSON: unexpected end of data: line 1 column 2 (char 1); copy the checkpoint "),
        ("[1]", "holds no JSON object; copy the checkpoint "),
    ],
)
def test_damaged_metadata_of_a_step_is_refused(tmp_path: Path, content: str, told: str) -> None:
    step = write_step(tmp_path, "3", {"a": TABLE}, committed=False)
    (step / "_CHECKPOINT_METADATA").write_text(content)
    assert refused(tmp_path) == f"{step / '_CHECKPOINT_METADATA'} {told}anew"


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


def test_error_of_a_library_is_shortened(tmp_path: Path) -> None:
    write_item(tmp_path / "c", {"a": TABLE})
    tree = (tmp_path / "c/_METADATA").read_text()
    (tmp_path / "c/_METADATA").write_text(tree.replace('"key": "a"', f'"key": "{"b" * 300}"'))
    reason = f"it has no array '{'b' * 183}"
    assert len(reason) == 200
    assert refused(tmp_path / "c") == (
        f"Orbax checkpoint {tmp_path / 'c'} cannot be read: {reason}; copy it anew"
    )


@pytest.mark.parametrize(
    ("kind", "must_be"),
    [("jax.Array", True), ("np.ndarray", True), ("scalar", True), ("string", False)],
)
def test_leaf_of_numbers_must_have_an_array(tmp_path: Path, kind: str, must_be: bool) -> None:
    write_item(tmp_path / "c", {"a": TABLE, "b": None})
    tree = json.loads((tmp_path / "c/_METADATA").read_text())
    leaf = {"value_type": kind, "skip_deserialize": False}
    tree["tree_metadata"]["('b',)"]["value_metadata"] = leaf
    (tmp_path / "c/_METADATA").write_text(json.dumps(tree))
    if must_be:
        assert "it has no array 'b'" in refused(tmp_path / "c")
    else:
        assert list(open_checkpoint(tmp_path / "c").entries) == ["a"]


def test_store_whose_keys_were_all_deleted_has_no_arrays(tmp_path: Path) -> None:
    write_item(tmp_path / "c", {"none": None})
    store = store_of(tmp_path / "c")
    store["notes"] = bytes(1000)
    del store["notes"]
    checkpoint = open_checkpoint(tmp_path / "c")
    assert (dict(checkpoint.entries), checkpoint.problems) == ({}, ())


def repacked(item: Path, node_bytes: int) -> Path:
    """Writes the store of an item anew, with at most a number of bytes in a node of its tree."""
    config = {"max_decoded_node_bytes": node_bytes}
    other = item.with_name("repacked")
    other.mkdir()
    new = store_of(other, config=config)
    old = store_of(item)
    for key in old.list().result():
        new[key] = old[key]
    shutil.copy(item / "_METADATA", other / "_METADATA")
    return other


def test_tree_of_a_store_may_have_nodes_up_to_a_limit(
    item: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orbax, "_NODES_MAX", 1)
    assert list(open_checkpoint(item).entries) == ["a"]

    deep = repacked(item, 1)
    assert refused(deep) == (
        f"Orbax checkpoint {deep} cannot be read: more than 1 nodes; copy it anew"
    )
    monkeypatch.undo()
    assert list(open_checkpoint(deep).entries) == ["a"]


NOISE = np.random.default_rng(3).standard_normal((400, 3)).astype(np.float32)
"""Values that do not lie in a node of a store's tree, as a small array's do."""


def data_file_of(item: Path, key: str) -> tuple[Path, int]:
    """Returns the data file that holds a value of a store, and where the value ends in it."""
    value = store_of(item)[key]
    (file,) = (each for each in (item / "d").iterdir() if value in each.read_bytes())
    return file, file.read_bytes().index(value) + len(value)


def test_data_file_of_a_tree_of_several_nodes_must_be_whole(tmp_path: Path) -> None:
    write_item(tmp_path / "ckpt", {f"t{number}": NOISE + number for number in range(4)})
    deep = repacked(tmp_path / "ckpt", 200)
    store = store_of(deep)
    store["t0/.zarray"] = store["t0/.zarray"]  # moves the node beside the value to another file
    file, end = data_file_of(deep, "t0/0.0")
    assert not open_checkpoint(deep).problems

    file.write_bytes(file.read_bytes()[: end - 1])
    assert refused(deep) == (
        f"data file {file} has {end - 1} bytes of {end}: it was cut short; copy it anew"
    )
    file.unlink()
    assert refused(deep) == f"data file {file} is missing; copy all files of the checkpoint"


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
    assert entry.array.held_bytes == 2 * 24 * 3 * itemsize  # three chunks, stored and decoded
    assert entry.array.file == str(tmp_path / "c/manifest.ocdbt")


def test_array_in_a_directory_of_its_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    where = {"driver": "file", "path": f"{tmp_path}/c/a/"}
    metadata = {"shape": TABLE.shape, "chunks": [8, 3], "dtype": "<f4"}
    spec = {"driver": "zarr", "metadata": metadata, "kvstore": where, "create": True}
    tensorstore.open(spec).result().write(TABLE).result()
    leaf = {"key_metadata": [{"key": "a"}], "value_metadata": {"value_type": "jax.Array"}}
    (tmp_path / "c/_METADATA").write_text(json.dumps({"tree_metadata": {"a": leaf}}))
    checkpoint = open_checkpoint(tmp_path / "c")
    entry = checkpoint.entries["a"]
    assert entry.array is not None
    assert entry.array.file == str(tmp_path / "c/a/.zarray")
    np.testing.assert_array_equal(checkpoint.read("a", 3, 9), TABLE[3:12])


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


@pytest.mark.parametrize("columns", [1, 3])
def test_missing_chunks_of_a_single_row_are_counted(tmp_path: Path, columns: int) -> None:
    values = np.ones((20, columns), np.float32)
    write_item(tmp_path / "ckpt", {"a": values, "a0": values}, chunk_rows=1)
    assert not open_checkpoint(tmp_path / "ckpt").problems
    store = store_of(tmp_path / "ckpt")
    del store["a/3.0"]
    del store["a/19.0"]
    assert refused(tmp_path / "ckpt") == (
        f"array 'a': 2 of 20 chunks are missing in {tmp_path / 'ckpt'}; copy all files"
    )


def test_chunk_missing_from_an_older_zarr_2_array_is_an_error(tmp_path: Path) -> None:
    write_item(tmp_path / "ckpt", {"a": HALF}, chunk_rows=10, zeros=None)
    assert not open_checkpoint(tmp_path / "ckpt").problems  # all chunks are stored
    del store_of(tmp_path / "ckpt")["a/1.0"]
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
    # What lists both arrays is written after the second, so in another file.
    write_item(tmp_path / "ckpt", {"a": NOISE, "b": TABLE})
    file, end = data_file_of(tmp_path / "ckpt", "a/0.0")
    content = file.read_bytes()
    assert not open_checkpoint(tmp_path / "ckpt").problems

    file.write_bytes(content[: end - 1])
    with pytest.raises(CheckpointError, match=rf"has {end - 1} bytes of {end}: it was cut short"):
        open_checkpoint(tmp_path / "ckpt")
    file.write_bytes(content[:end])
    assert not open_checkpoint(tmp_path / "ckpt").problems

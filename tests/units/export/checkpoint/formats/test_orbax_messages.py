"""The errors of broken checkpoints of Orbax."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.formats.orbax import find_orbax, is_keras_state
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.units.export.checkpoint.formats.orbax_files import (
    HALF,
    NOISE,
    TABLE,
    data_file_of,
    repacked,
    state_kind,
    store_of,
)
from tests.units.export.checkpoint.orbax_trees import Leaves, write_item, write_step

Write = Callable[[Path], Path]


def changed(file: str, change: Callable[[bytes], bytes]) -> Write:
    """Returns what writes an item of one table, with other bytes in one of its files."""

    def write(directory: Path) -> Path:
        item = directory / "c"
        write_item(item, {"a": TABLE})
        (item / file).write_bytes(change((item / file).read_bytes()))
        return item

    return write


def with_file(file: str, content: bytes) -> Write:
    """Returns what writes an item of one table whose file holds something else."""
    return changed(file, lambda _: content)


def with_name(name: str) -> Write:
    """Returns what writes an item whose tree calls its table by another name."""
    return changed("_METADATA", lambda tree: tree.replace(b'"a"', json.dumps(name).encode()))


def with_metadata(**changes: object) -> Write:
    """Returns what writes an item whose array has other metadata."""

    def write(directory: Path) -> Path:
        item = directory / "c"
        write_item(item, {"a": TABLE})
        store = store_of(item)
        metadata = json.loads(store["a/.zarray"]) | changes
        store["a/.zarray"] = json.dumps(metadata)
        return item

    return write


def without_array(kind: str) -> Write:
    """Returns what writes an item with a leaf of a kind that has no array."""

    def write(directory: Path) -> Path:
        write_item(directory / "c", {"a": TABLE, "b": None})
        state_kind(directory / "c", "b", kind)
        return directory / "c"

    return write


def uncommitted(name: str, committed: bool, path: str) -> Write:
    """Returns what writes a step that is being saved; `path` is the path that is opened."""

    def write(directory: Path) -> Path:
        write_step(directory / "run", name, {"a": TABLE}, committed=committed)
        return directory / path

    return write


def uncommitted_item(directory: Path) -> Path:
    for name in ("model", "towers"):
        write_item(directory / "run" / name, {"a": TABLE})
    metadata = json.dumps({"commit_timestamp_nsecs": None})
    (directory / "run/towers/_CHECKPOINT_METADATA").write_text(metadata)
    return directory / "run"


def with_step_metadata(content: str) -> Write:
    """Returns what writes a step whose own metadata are something else."""

    def write(directory: Path) -> Path:
        step = write_step(directory, "3", {"a": TABLE}, committed=False)
        (step / "_CHECKPOINT_METADATA").write_text(content)
        return step

    return write


def without_chunks(leaves: Leaves, chunk_rows: int, *keys: str, zeros: bool | None = True) -> Write:
    """Returns what writes an item in zarr 2 from which chunks are deleted."""

    def write(directory: Path) -> Path:
        write_item(directory / "c", leaves, chunk_rows=chunk_rows, zeros=zeros)
        assert not open_checkpoint(directory / "c").problems
        store = store_of(directory / "c")
        for key in keys:
            del store[key]
        return directory / "c"

    return write


def chunk_left_out(directory: Path) -> Path:
    write_item(directory / "c", {"a": HALF}, chunk_rows=10, zarr3=True, zeros=False)
    return directory / "c"


INCOMPLETE = (
    " is not complete: it is being saved, or the save was interrupted; wait for it, or take an "
    "older one"
)
UNREADABLE = "Orbax checkpoint {path} cannot be read: "
NOT_STORED = (
    "{path}/_METADATA: its 'tree_metadata' and 'use_zarr3' call for '{path}/b/.zarray', which is "
    "not stored; copy all files of the checkpoint"
)
TEMPORARY = "3.orbax-checkpoint-tmp-1700000000"
ROWS = np.ones((20, 3), np.float32)
COLUMN = np.ones((20, 1), np.float32)

BROKEN: dict[str, tuple[Write, str]] = {
    "step that is not committed": (
        uncommitted("3", committed=False, path="run"),
        "Orbax checkpoint {path}/3" + INCOMPLETE,
    ),
    "path of a step that is not committed": (
        uncommitted("3", committed=False, path="run/3"),
        "Orbax checkpoint {path}" + INCOMPLETE,
    ),
    "step by its first name": (
        uncommitted(TEMPORARY, committed=False, path="run"),
        f"Orbax checkpoint {{path}}/{TEMPORARY}{INCOMPLETE}",
    ),
    "committed step by its first name": (
        uncommitted(TEMPORARY, committed=True, path=f"run/{TEMPORARY}"),
        "Orbax checkpoint {path}" + INCOMPLETE,
    ),
    "item that is not committed": (uncommitted_item, "Orbax checkpoint {path}" + INCOMPLETE),
    "metadata of a step cut short": (
        with_step_metadata("{"),
        "{path}/_CHECKPOINT_METADATA: its content is not what was expected (Invalid JSON: ",
    ),
    "metadata of a step in a list": (
        with_step_metadata("[1]"),
        "{path}/_CHECKPOINT_METADATA: its content is not what was expected (Input should be an ",
    ),
    **{
        f"tree {content!r}": (with_file("_METADATA", content), "{path}/_METADATA: " + words)
        for content, words in (
            (b"{", "its content is not what was expected (Invalid JSON"),
            (b"[1]", "its content is not what was expected (Input should be an object"),
            (b'{"tree_metadata": {"a": 1}}', "the field 'tree_metadata.a' is 1 ("),
            (b"\xff", "its content is not what was expected (Invalid JSON"),
        )
    },
    "manifest of the store": (with_file("manifest.ocdbt", bytes(50)), UNREADABLE),
    "name of an array": (with_name("b"), NOT_STORED),
    **{
        f"no array of {kind}": (without_array(kind), NOT_STORED)
        for kind in ("jax.Array", "np.ndarray", "scalar")
    },
    "chunks of more memory than there is": (
        with_metadata(chunks=[1 << 33, 3]),
        f"{UNREADABLE}array 'a' has the shape [20, 3] and chunks [{1 << 33}, 3], which would be "
        "much larger than the array; copy it anew",
    ),
    **{
        f"shape {shape} in chunks of {chunks}": (
            with_metadata(shape=shape, chunks=chunks),
            f"{UNREADABLE}array 'a' has the shape {shape} and chunks {chunks}; copy it anew",
        )
        for shape, chunks in (
            ([20, 3], [20]),
            ([20, 3], [0, 3]),
            ([20, 3], [20, 1 << 60]),
            ([-1, 3], [20, 3]),
            ([1 << 60, 3], [20, 3]),
        )
    },
    **{
        f"dtype {dtype}": (
            with_metadata(dtype=dtype),
            f"{UNREADABLE}{dtype!r} is no dtype of an array in zarr 2; copy it anew",
        )
        for dtype in (",f4", "|a1", "float32", "<f9")
    },
    "chunk left out of zarr 3": (
        chunk_left_out,
        "array 'a': 1 of 2 chunks are missing in {path}; copy all files",
    ),
    "chunk lost from an older zarr 2": (
        without_chunks({"a": HALF}, 10, "a/1.0", zeros=None),
        "array 'a': 1 of 2 chunks are missing in {path}; copy all files",
    ),
    "chunks of one row": (
        without_chunks({"a": ROWS, "a0": ROWS}, 1, "a/3.0", "a/19.0"),
        "array 'a': 2 of 20 chunks are missing in {path}; copy all files",
    ),
    "chunks of one value": (
        without_chunks({"a": COLUMN, "a0": COLUMN}, 1, "a/3.0", "a/19.0"),
        "array 'a': 2 of 20 chunks are missing in {path}; copy all files",
    ),
}
"""What is broken, and the error of the path that is opened."""


@pytest.mark.parametrize(("write", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_checkpoint_of_orbax_is_rejected_with_the_reason(
    tmp_path: Path, write: Write, message: str
) -> None:
    path = write(tmp_path)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(path)
    assert str(error.value).startswith(message.format(path=path))


def test_tree_that_cannot_be_that_of_a_keras_model_is_rejected(tmp_path: Path) -> None:
    item = with_file("_METADATA", b'{"tree_metadata": {"a": {}}}')(tmp_path)
    checkpoint = find_orbax(item)
    assert checkpoint is not None
    with pytest.raises(CheckpointError) as error:
        is_keras_state(checkpoint)
    words = f"{item}/_METADATA: the field 'tree_metadata.a.key_metadata' is missing; "
    assert str(error.value).startswith(words)


@pytest.mark.parametrize("deep", [False, True])
def test_data_file_that_is_cut_short_or_gone_is_named(tmp_path: Path, deep: bool) -> None:
    item = tmp_path / "c"
    # What lists all arrays is written after the last, so in another file.
    write_item(item, {f"t{number}": NOISE + number for number in range(4)})
    if deep:
        item = repacked(item, 200)
        store = store_of(item)
        store["t0/.zarray"] = store["t0/.zarray"]  # moves the node beside the value elsewhere
    file, end = data_file_of(item, "t0/0.0")
    content = file.read_bytes()
    assert not open_checkpoint(item).problems

    file.write_bytes(content[: end - 1])
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(item)
    assert str(error.value) == (
        f"data file {file} has {end - 1} bytes of {end}: it was cut short; copy it anew"
    )
    file.unlink()
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(item)
    assert str(error.value) == f"data file {file} is missing; copy all files of the checkpoint"


def changed_tree(item: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tree = json.loads((item / "_METADATA").read_text())
    change(tree)
    (item / "_METADATA").write_text(json.dumps(tree))


def changed_array(item: Path, more: dict[str, Any]) -> None:
    store = store_of(item)
    store["a/zarr.json"] = json.dumps(json.loads(store["a/zarr.json"]) | more).encode()


def first_value(tree: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = next(iter(tree["tree_metadata"].values()))["value_metadata"]
    return value


def array_metadatas(item: Path, content: object) -> None:
    """Writes what a process says of its arrays."""
    (item / "array_metadatas").mkdir(exist_ok=True)
    (item / "array_metadatas" / "process_0").write_text(json.dumps(content))


def metadata_of_a(**more: object) -> dict[str, Any]:
    described = {"param_name": "a", "write_shape": [2, 4], "chunk_shape": [2, 4], **more}
    return {"array_metadatas": [{"array_metadata": described}]}


MORE_METADATA: dict[str, tuple[Callable[[Path], object], str]] = {
    "of the tree": (
        lambda item: changed_tree(item, lambda tree: tree.update(row_order="mod")),
        r"_METADATA: written by .* than Orbax .* these fields are unknown: 'row_order'\.",
    ),
    "of a user, in the tree": (
        lambda item: changed_tree(item, lambda tree: tree.update(custom_metadata={"cores": 4})),
        r"_METADATA has 'custom_metadata\.cores', which is not understood",
    ),
    "of a user, no object": (
        lambda item: changed_tree(item, lambda tree: tree.update(custom_metadata=4)),
        r"_METADATA has 'custom_metadata', which is not understood",
    ),
    "of a value": (
        lambda item: changed_tree(item, lambda tree: first_value(tree).update(rotation=1)),
        r"unknown: \"tree_metadata\.\('a',\)\.value_metadata\.rotation\"\.",
    ),
    "of an array": (
        lambda item: changed_array(item, {"attributes": {"order": "mod"}}),
        r"/a has 'order', which is not understood",
    ),
    "of a user, in the step": (
        lambda item: (item / "_CHECKPOINT_METADATA").write_text(
            '{"commit_timestamp_nsecs": 1, "custom_metadata": {"s": 1}}'
        ),
        r"_CHECKPOINT_METADATA has 'custom_metadata\.s', which is not understood",
    ),
    "a sharding": (
        lambda item: (item / "_sharding").write_text(
            json.dumps({"YQ==": json.dumps({"sharding_type": "ModSharding"})})
        ),
        r"_sharding: an array has the 'sharding_type' 'ModSharding', which is not understood",
    ),
    "of the arrays of a process": (
        lambda item: array_metadatas(item, {"array_metadatas": [], "cores": 4}),
        r"process_0: .* these fields are unknown: 'cores'\.",
    ),
    "beside an array of a process": (
        lambda item: array_metadatas(item, {"array_metadatas": [{"array_metadata": {}, "x": 1}]}),
        r"process_0: .* these fields are unknown: 'array_metadatas\.0\.x'\.",
    ),
    "of an array of a process": (
        lambda item: array_metadatas(item, metadata_of_a(rotation=1)),
        r"process_0: .*'array_metadatas\.0\.array_metadata\.rotation'\.",
    ),
    "more of an array of a process": (
        lambda item: array_metadatas(item, metadata_of_a(ext_metadata={"layout": "mod"})),
        r"process_0: .*'array_metadatas\.0\.array_metadata\.ext_metadata\.layout'\.",
    ),
    "no arrays of a process": (
        lambda item: array_metadatas(item, {"array_metadatas": [1]}),
        r"process_0: the field 'array_metadatas\.0' is 1 \(",
    ),
    "a sharding without its kind": (
        lambda item: (item / "_sharding").write_text('{"YQ==": "{}"}'),
        r"_sharding\['YQ=='\]: the field 'sharding_type' is missing",
    ),
    "no sharding": (
        lambda item: (item / "_sharding").write_text('{"YQ==": "{"}'),
        r"_sharding\['YQ=='\]: its content is not what was expected \(Invalid JSON",
    ),
}


@pytest.mark.parametrize("case", MORE_METADATA)
def test_metadata_that_may_say_how_rows_lie_are_rejected(case: str, tmp_path: Path) -> None:
    write, message = MORE_METADATA[case]
    item = tmp_path / "c"
    write_item(item, {"a": TABLE}, zarr3=True)
    assert open_checkpoint(item).entries
    write(item)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(item)


def test_attributes_of_an_array_in_zarr_2_are_rejected(tmp_path: Path) -> None:
    write_item(tmp_path / "c", {"a": TABLE})
    store_of(tmp_path / "c")["a/.zattrs"] = b'{"order": "mod"}'
    with pytest.raises(CheckpointError, match=r"/a has '\.zattrs', which is not"):
        open_checkpoint(tmp_path / "c")


def test_metadata_that_say_nothing_of_rows_are_passed_over(tmp_path: Path) -> None:
    item = tmp_path / "c"
    write_item(item, {"a": TABLE})
    changed_tree(item, lambda tree: tree.update(custom_metadata=None))
    changed_tree(item, lambda tree: first_value(tree).update(write_shape=[10, 3]))
    stated = {"sharding_type": "NamedSharding", "shape": [8]}
    (item / "_sharding").write_text(json.dumps({"YQ==": json.dumps(stated)}))
    array_metadatas(item, metadata_of_a(ext_metadata={"random_key_impl": "fry"}))
    assert open_checkpoint(item).entries
    array_metadatas(item, metadata_of_a(ext_metadata=None))
    (item / "_CHECKPOINT_METADATA").write_text(
        '{"metrics": {"loss": 0.1}, "custom_metadata": {}, "commit_timestamp_nsecs": 1, "host": 2}'
    )
    checkpoint = open_checkpoint(item)
    assert list(checkpoint.entries) == ["a"]
    (note,) = checkpoint.storage.notes
    assert note.endswith("were skipped, as no row depends on them: host")

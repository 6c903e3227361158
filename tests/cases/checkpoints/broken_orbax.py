"""Checkpoints of Orbax that are broken, or say what is not understood."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from tests.cases.checkpoints.inspections import Case, Write
from tests.units.export.checkpoint.orbax_trees import write_item, write_step

TABLE = np.arange(60, dtype=np.float32).reshape(20, 3)
HALF = np.concatenate([TABLE[:10], 0 * TABLE[:10]])
"""Its second half is a chunk of zeros."""
NOISE = np.random.default_rng(3).standard_normal((400, 3)).astype(np.float32)
"""Values that do not lie in a node of a store's tree, as a small array's do."""
TEMPORARY = "3.orbax-checkpoint-tmp-1700000000"


def store_of(item: Path) -> Any:
    """Opens the OCDBT store of an item."""
    base = {"driver": "file", "path": f"{item}/"}
    return tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()


def data_file_of(item: Path, key: str) -> tuple[Path, int]:
    """Returns the data file that holds a value of a store, and where the value ends in it."""
    value = store_of(item)[key]
    (file,) = (child for child in (item / "d").iterdir() if value in child.read_bytes())
    return file, file.read_bytes().index(value) + len(value)


def item_with(change: Callable[[Path], object], **options: Any) -> Write:
    """Returns what writes an item of one table and changes it."""

    def write(directory: Path) -> Path:
        item = directory / "c"
        write_item(item, {"a": TABLE, "b": None}, **options)
        change(item)
        return item

    return write


def with_file(name: str, content: bytes | str | dict[str, Any]) -> Write:
    """Returns what writes an item of one table, one of whose files is another."""
    if isinstance(content, dict):
        content = json.dumps(content)
    data = content.encode() if isinstance(content, str) else content

    def change(item: Path) -> None:
        (item / name).parent.mkdir(exist_ok=True)
        (item / name).write_bytes(data)

    return item_with(change)


def with_tree(change: Callable[[dict[str, Any]], object]) -> Write:
    """Returns what writes an item whose tree is changed."""

    def rewrite(item: Path) -> None:
        tree = json.loads((item / "_METADATA").read_text())
        change(tree)
        (item / "_METADATA").write_text(json.dumps(tree))

    return item_with(rewrite)


def value_of(tree: dict[str, Any], leaf: str) -> dict[str, Any]:
    value: dict[str, Any] = tree["tree_metadata"][str((leaf,))]["value_metadata"]
    return value


def leaf_of(kind: str) -> Write:
    """Returns what writes an item with a leaf of a kind that has no array."""
    stated = {"value_type": kind, "skip_deserialize": False}
    return with_tree(lambda tree: value_of(tree, "b").update(stated))


def with_array(file: str, **changes: object) -> Write:
    """Returns what writes an item whose array has other metadata."""

    def change(item: Path) -> None:
        store = store_of(item)
        store[file] = json.dumps(json.loads(store[file]) | changes)

    return item_with(change, zarr3=file.endswith("zarr.json"))


def with_process(**more: Any) -> Write:
    """Returns what writes an item of which a process says more of the array."""
    described = {"param_name": "a", "write_shape": [2, 4], "chunk_shape": [2, 4], **more}
    return with_file(
        "array_metadatas/process_0", {"array_metadatas": [{"array_metadata": described}]}
    )


def without_chunks(values: Any, chunk_rows: int, *rows: int, zeros: bool | None = True) -> Write:
    """Returns what writes an item in zarr 2 from which chunks are deleted."""

    def write(directory: Path) -> Path:
        write_item(directory / "c", {"a": values, "a0": values}, chunk_rows=chunk_rows, zeros=zeros)
        for row in rows:
            del store_of(directory / "c")[f"a/{row}.0"]
        return directory / "c"

    return write


def chunk_left_out(directory: Path) -> Path:
    write_item(directory / "c", {"a": HALF}, chunk_rows=10, zarr3=True, zeros=False)
    return directory / "c"


def step(name: str, path: str, *, committed: bool = False, **metadata: object) -> Write:
    """Returns what writes a step; `path` is the path that is opened."""

    def write(directory: Path) -> Path:
        written = write_step(directory / "run", name, {"a": TABLE}, committed=committed)
        if metadata:
            (written / "_CHECKPOINT_METADATA").write_text(json.dumps(metadata["content"]))
        return directory / path

    return write


def uncommitted_item(directory: Path) -> Path:
    for name in ("model", "towers"):
        write_item(directory / "run" / name, {"a": TABLE})
    metadata = '{"commit_timestamp_nsecs": null}'
    (directory / "run/towers/_CHECKPOINT_METADATA").write_text(metadata)
    return directory / "run"


def with_data_file(directory: Path, extra_bytes: int | None) -> Path:
    """Writes an item of which a data file is cut short, or gone."""
    # What lists all arrays is written after the last, so in another file.
    write_item(directory / "c", {f"t{number}": NOISE + number for number in range(4)})
    file, end = data_file_of(directory / "c", "t0/0.0")
    if extra_bytes is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: end + extra_bytes])
    return directory / "c"


ROWS = np.ones((20, 3), np.float32)
NOT_COMPLETE = "is not complete"
NOT_STORED = ("_METADATA", "is not stored")
UNKNOWN = "fields are unknown"
NOT_UNDERSTOOD = "not understood"
LOST = "copy all files"

BROKEN_ORBAX: dict[str, Case] = {
    "step that is not committed": (step("3", "run"), "run/3", NOT_COMPLETE),
    "step by its first name": (step(TEMPORARY, "run"), TEMPORARY, NOT_COMPLETE),
    "committed step by its first name": (
        step(TEMPORARY, f"run/{TEMPORARY}", committed=True),
        NOT_COMPLETE,
    ),
    "item that is not committed": (uncommitted_item, "{path}", NOT_COMPLETE),
    "manifest of the store": (with_file("manifest.ocdbt", bytes(50)), "{path} cannot be read"),
    "data file cut short": (partial(with_data_file, extra_bytes=-1), "cut short", "/d/"),
    "data file that is gone": (partial(with_data_file, extra_bytes=None), "is missing", LOST),
    # Arrays.
    **{
        f"no array of {kind}": (leaf_of(kind), "b/.zarray", *NOT_STORED)
        for kind in ("jax.Array", "np.ndarray", "scalar")
    },
    "chunks of more memory than there is": (
        with_array("a/.zarray", chunks=[1 << 33, 3]),
        "'a'",
        "much larger than the array",
    ),
    **{
        f"shape {shape} in chunks of {chunks}": (
            with_array("a/.zarray", shape=shape, chunks=chunks),
            f"shape {shape} and chunks {chunks}",
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
        f"dtype {dtype}": (with_array("a/.zarray", dtype=dtype), repr(dtype), "no dtype")
        for dtype in (",f4", "|a1", "float32", "<f9")
    },
    "chunk left out of zarr 3": (chunk_left_out, "'a': 1 of 2 chunks", LOST),
    "chunk lost from an older zarr 2": (
        without_chunks(HALF, 10, 1, zeros=None),
        "'a': 1 of 2 chunks",
        LOST,
    ),
    "chunks of one row": (without_chunks(ROWS, 1, 3, 19), "'a': 2 of 20 chunks", LOST),
    "chunks of one value": (without_chunks(ROWS[:, :1], 1, 3, 19), "'a': 2 of 20 chunks", LOST),
    # What may say how rows lie.
    "more of a user, in the tree": (
        with_tree(lambda tree: tree.update(custom_metadata={"cores": 4})),
        "'custom_metadata.cores'",
        NOT_UNDERSTOOD,
    ),
    "more of an array in zarr 3": (
        with_array("a/zarr.json", attributes={"order": "mod"}),
        "/a has 'order'",
        NOT_UNDERSTOOD,
    ),
    "more of an array in zarr 2": (
        item_with(lambda item: store_of(item).write("a/.zattrs", b'{"order": "mod"}').result()),
        "/a has '.zattrs'",
    ),
    "more of a user, in the step": (
        with_file(
            "_CHECKPOINT_METADATA", {"commit_timestamp_nsecs": 1, "custom_metadata": {"s": 1}}
        ),
        "'custom_metadata.s'",
        NOT_UNDERSTOOD,
    ),
    "sharding of another kind": (
        with_file("_sharding", {"YQ==": json.dumps({"sharding_type": "ModSharding"})}),
        "'ModSharding'",
        NOT_UNDERSTOOD,
    ),
    "extension of an array of a process": (
        with_process(ext_metadata={"layout": "mod"}),
        UNKNOWN,
        "ext_metadata.layout",
    ),
}

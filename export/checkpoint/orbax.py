"""Finds and lists an Orbax checkpoint: a tree of arrays, each a zarr array by its dotted path; no array is read.

    <root>/<step>/<item>/   CheckpointManager: a directory per step, in it one per item, mostly `default`
    <root>/<item>/          Orbax' newer functions, without steps
    <item>/                 a Checkpointer alone

An item holds `_METADATA` (the tree, JSON) and its arrays, in an OCDBT store (`manifest.ocdbt`, `d/`) or as directories.
Source: Orbax 0.12.8, checkpoint/_src/{metadata/tree,path/atomicity,path/step,serialization/tensorstore_utils}.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import orjson

from export.checkpoint.arrays import held_bytes, load_tensorstore
from export.checkpoint.chunk_pieces import piece_format
from export.checkpoint.variables import NUMPY_DTYPES, ArrayStore, Entry
from export.errors import CheckpointError
from runtime.remote import local_stamp

MANIFEST, TREE, STEP, COMMITTED = "manifest.ocdbt", "_METADATA", "_CHECKPOINT_METADATA", "commit_success.txt"
_UNFINISHED = ".orbax-checkpoint-tmp"
_STEP_NAME = re.compile(r"^(?:.*_)?(\d+)$")
_METADATA_CACHE_BYTES = 64 << 20
_AT_ONCE = 1024
_DRIVERS = {".zarray": "zarr", "zarr.json": "zarr3"}
_ARRAYS = ("jax.Array", "np.ndarray", "scalar")


class OrbaxPlace(NamedTuple):
    """One complete checkpoint.

    Attributes:
      directory: of the step, or of the item if there are no steps.
      items: item name -> its directory; the name is "" if there is only one.
      step: as the directory's name says it.
    """

    directory: Path
    items: Mapping[str, Path]
    step: int | None

    @property
    def name(self) -> str:
        """Name of the checkpoint, e.g. `run1/1200`."""
        directory = self.directory.absolute()
        return f"{directory.parent.name}/{directory.name}" if directory.name.isdigit() else directory.name


def find_orbax(path: Path) -> OrbaxPlace | None:
    """Returns the Orbax checkpoint that a directory holds, the newest complete one of several steps; None: it has none.

    Raises:
      CheckpointError: there is none but one that is being saved, or whose save was interrupted.
    """
    found = _at(path)
    there = [found] if found is not None else _steps(path)
    complete = [place for place in there if _is_complete(place)]
    if complete:
        return complete[-1]
    started = [place.directory for place in there] or [child for child in path.iterdir() if _UNFINISHED in child.name]
    if started:
        raise CheckpointError(
            f"Orbax checkpoint {started[-1]} is not complete: it is being saved, or the save was interrupted; wait for "
            "it, or take an older one"
        )
    return None


def list_orbax(place: OrbaxPlace) -> tuple[str, dict[str, Entry]]:
    """Lists the arrays of a checkpoint.

    Returns:
      Its fingerprint, and every array by the dotted path in the tree, after the item's name if there are several.
    Raises:
      CheckpointError: a part of it is missing or damaged, or tensorstore is.
    """
    digest = 0
    entries: dict[str, Entry] = {}
    for name, directory in place.items.items():
        for file in (directory.parent / STEP, directory / STEP, directory / MANIFEST, directory / TREE):
            if file.is_file():
                digest = google_crc32c.extend(digest, file.read_bytes())
        entries.update(_entries(directory, f"{name}." if name else ""))
    return f"crc32c:{digest:08x}", entries


def _at(directory: Path) -> OrbaxPlace | None:
    """Returns what a directory holds, taken as a step or as an item."""
    if _is_item(directory):
        step = directory.parent if (directory.parent / STEP).is_file() else directory
        return OrbaxPlace(step, {"": directory}, _step(step))
    items = {child.name: child for child in sorted(directory.iterdir()) if child.is_dir() and _is_item(child)}
    if not items or (any(_step(child) is not None for child in items.values()) and not (directory / STEP).is_file()):
        return None
    return OrbaxPlace(directory, items if len(items) > 1 else {"": next(iter(items.values()))}, _step(directory))


def _is_item(directory: Path) -> bool:
    return (directory / MANIFEST).is_file() or (directory / TREE).is_file()


def _step(directory: Path) -> int | None:
    found = _STEP_NAME.match(directory.name)
    return int(found[1]) if found else None


def _is_complete(place: OrbaxPlace) -> bool:
    """Tells whether a checkpoint was committed: renamed when it was, or marked so where a store cannot rename."""
    if _UNFINISHED in place.directory.name:
        return False
    for directory in (place.directory, *place.items.values()):
        told = directory / STEP
        if not (directory / COMMITTED).is_file() and told.is_file():
            return _json(told).get("commit_timestamp_nsecs") is not None
    return True


def _steps(root: Path) -> list[OrbaxPlace]:
    """Returns the checkpoints in the step directories of a root, the newest last."""
    steps = [child for child in root.iterdir() if _step(child) is not None and child.is_dir()]
    found = [(_step(child) or 0, place) for child in steps if (place := _at(child)) is not None]
    return [place for _, place in sorted(found, key=lambda each: each[0])]


def _entries(directory: Path, prefix: str) -> Iterator[tuple[str, Entry]]:
    """Yields every array of an item, by the metadata that each keeps beside its chunks."""
    tensorstore = load_tensorstore(f"Orbax checkpoint {directory}")
    packed = (directory / MANIFEST).is_file()
    base = {"driver": "file", "path": f"{directory.absolute()}/"}
    kvstore: dict[str, Any] = {"driver": "ocdbt", "base": base} if packed else base
    limits = tensorstore.Context({"cache_pool": {"total_bytes_limit": _METADATA_CACHE_BYTES}})
    try:
        store = tensorstore.KvStore.open(kvstore, context=limits).result()
        leaves = _leaves(directory)
        if leaves is None:  # of an Orbax that kept the tree in another format
            listed = (key.decode().rpartition("/") for key in store.list().result())
            leaves = [_Leaf(name, file, True) for name, _, file in listed if file in _DRIVERS]
        for start in range(0, len(leaves), _AT_ONCE):
            asked, together = leaves[start : start + _AT_ONCE], tensorstore.Batch()
            answers = [store.read(f"{leaf.path}/{leaf.file}", batch=together) for leaf in asked]
            together.submit()
            for leaf, answer in zip(asked, answers, strict=True):
                metadata = answer.result().value
                if metadata:
                    there = {"path": f"{leaf.path}/"} if packed else {"path": f"{base['path']}{leaf.path}/"}
                    entry = _entry(prefix + leaf.path, _DRIVERS[leaf.file], kvstore | there, orjson.loads(metadata))
                    yield entry.key, _watched(entry, directory / (MANIFEST if packed else f"{leaf.path}/{leaf.file}"))
                elif leaf.is_array:
                    raise CheckpointError(f"Orbax checkpoint {directory} has no array {leaf.path!r}; copy it anew")
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        reason = str(problem).splitlines()[0][:200]
        raise CheckpointError(f"Orbax checkpoint {directory} cannot be read: {reason}; copy it anew") from problem


class _Leaf(NamedTuple):
    """A leaf of the tree by its dotted path, the file that describes its array, and whether it must have one."""

    path: str
    file: str
    is_array: bool


def _leaves(directory: Path) -> list[_Leaf] | None:
    """Returns the leaves of an item's tree that hold something; None: no tree is told."""
    if not (directory / TREE).is_file():
        return None
    tree = _json(directory / TREE)
    file = "zarr.json" if tree.get("use_zarr3") else ".zarray"
    return [
        _Leaf(".".join(str(step["key"]) for step in leaf["key_metadata"]), file, told.get("value_type") in _ARRAYS)
        for leaf in tree["tree_metadata"].values()
        if not (told := leaf["value_metadata"]).get("skip_deserialize")
    ]


def _entry(key: str, driver: str, kvstore: dict[str, Any], metadata: dict[str, Any]) -> Entry:
    """Returns an array by its `.zarray` or `zarr.json`."""
    shape = tuple(int(size) for size in metadata["shape"])
    form = piece_format(metadata)
    if driver == "zarr":
        dtype, chunk = _numpy_name(str(metadata["dtype"])), metadata["chunks"]
    else:
        dtype, chunk = str(metadata["data_type"]), metadata["chunk_grid"]["configuration"]["chunk_shape"]
        for codec in metadata["codecs"]:
            chunk = codec["configuration"]["chunk_shape"] if codec["name"] == "sharding_indexed" else chunk
    chunk = tuple(int(size) for size in chunk)
    if len(chunk) != len(shape) or min((*shape, *(size - 1 for size in chunk), 0)) < 0:
        raise ValueError(f"array {key!r} has the shape {list(shape)} and chunks {list(chunk)}")
    itemsize = NUMPY_DTYPES[dtype].itemsize if dtype in NUMPY_DTYPES else 0
    held = held_bytes(shape, chunk, itemsize, in_pieces=form is not None)
    spec = orjson.dumps({"driver": driver, "kvstore": kvstore}).decode()
    return Entry(key, dtype, shape, (), ArrayStore(spec, chunk, held))


def _watched(entry: Entry, file: Path) -> Entry:
    """Notes the file that says whether an array was saved anew."""
    assert entry.array is not None  # noqa: S101
    return replace(entry, array=replace(entry.array, file=str(file), stamp=local_stamp(file.stat())))


@cache
def _numpy_name(dtype: str) -> str:
    """Returns the dtype of a zarr 2 array by TensorFlow's name, e.g. of `<f4`."""
    return dtype if dtype == "bfloat16" or dtype.startswith("[") else np.dtype(dtype).name


def _json(path: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as problem:
        raise CheckpointError(f"{path} is no JSON: {problem}; copy the checkpoint anew") from problem
    return found if isinstance(found, dict) else {}

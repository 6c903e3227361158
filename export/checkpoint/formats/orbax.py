"""Finds and lists an Orbax checkpoint: a tree of arrays, each a zarr array by its dotted path; no array is read.

    <root>/<step>/<item>/   CheckpointManager: a directory per step, in it one per item, mostly `default`
    <root>/<item>/          Orbax' newer functions, without steps
    <item>/                 a Checkpointer alone

An item holds `_METADATA` (the tree: steps of each leaf's path, kind of its value) and its arrays, in an OCDBT store
(`manifest.ocdbt`, `d/`) or as directories.
Source: tensorstore 0.1.86, kvstore/ocdbt; Orbax 0.12.8, checkpoint/_src/{metadata/tree,path/atomicity,path/step,
serialization/tensorstore_utils}.py.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from export.checkpoint.formats.arrays import held_bytes, load_tensorstore
from export.checkpoint.formats.chunk_pieces import piece_format
from export.checkpoint.variables import NUMPY_DTYPES, ArrayStore, Entry, Listing, Storage, can_be
from export.errors import CheckpointError
from runtime.object_store import local_stamp

MANIFEST, TREE, STEP, COMMITTED = (
    "manifest.ocdbt",
    "_METADATA",
    "_CHECKPOINT_METADATA",
    "commit_success.txt",
)
_UNFINISHED = ".orbax-checkpoint-tmp"
_DRIVERS = {".zarray": "zarr", "zarr.json": "zarr3"}
"""tensorstore's name of the format, by the file that describes an array."""
_ARRAYS = ("jax.Array", "np.ndarray", "scalar")
_NODES_MAX = 1_000_000
_CACHE_BYTES = 64 << 20
"""Of nodes, each of which is decoded anew for every value else."""
_STEP_NAME = re.compile(r"^(?:.*_)?(\d+)$")


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
        return (
            f"{directory.parent.name}/{directory.name}"
            if directory.name.isdigit()
            else directory.name
        )


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
    started = [place.directory for place in there] or [
        child for child in path.iterdir() if _UNFINISHED in child.name
    ]
    if started:
        raise CheckpointError(
            f"Orbax checkpoint {started[-1]} is not complete: it is being saved, or the save was interrupted; wait for "
            "it, or take an older one"
        )
    return None


def list_orbax(place: OrbaxPlace) -> Listing:
    """Lists the arrays of a checkpoint by their dotted paths, after the item's name if there are several.

    Raises:
      CheckpointError: its listing is damaged, or tensorstore is missing.
    """
    digest = (
        hashlib.sha256()
    )  # a file that ends with its own crc32c, as OCDBT's do, has the crc32c of every other
    entries: dict[str, Entry] = {}
    problems: list[str] = []
    for name, directory in place.items.items():
        for file in (directory.parent / STEP, directory / STEP, directory / MANIFEST):
            digest.update(_bytes_of(file))
        tree = (directory / TREE).read_bytes() if (directory / TREE).is_file() else None
        digest.update(tree or b"")
        held, wrong = _list_item(directory, tree, f"{name}." if name else "")
        entries |= held
        problems += wrong
    storage = Storage("Orbax", place.step, problems=tuple(problems))
    return Listing(f"sha256:{digest.hexdigest()[:16]}", entries, storage)


def _at(directory: Path) -> OrbaxPlace | None:
    """Returns what a directory holds, taken as a step or as an item."""
    if _is_item(directory):
        step = directory.parent if (directory.parent / STEP).is_file() else directory
        return OrbaxPlace(step, {"": directory}, _step(step))
    items = {
        child.name: child
        for child in sorted(directory.iterdir())
        if child.is_dir() and _is_item(child)
    }
    if not items or (
        any(_step(child) is not None for child in items.values())
        and not (directory / STEP).is_file()
    ):
        return None
    return OrbaxPlace(
        directory, items if len(items) > 1 else {"": next(iter(items.values()))}, _step(directory)
    )


def _is_item(directory: Path) -> bool:
    return (directory / MANIFEST).is_file() or (directory / TREE).is_file()


def _step(directory: Path) -> int | None:
    found = _STEP_NAME.match(directory.name)
    return int(found[1]) if found else None


def _is_complete(place: OrbaxPlace) -> bool:
    """Returns whether a checkpoint was committed: renamed when it was, or marked so where a store cannot rename."""
    if _UNFINISHED in place.directory.name:
        return False
    for directory in (place.directory, *place.items.values()):
        step = directory / STEP
        if not (directory / COMMITTED).is_file() and step.is_file():
            return _json(step).get("commit_timestamp_nsecs") is not None
    return True


def _steps(root: Path) -> list[OrbaxPlace]:
    """Returns the checkpoints in the step directories of a root, the newest last."""
    steps = [child for child in root.iterdir() if _step(child) is not None and child.is_dir()]
    found = [(_step(child) or 0, place) for child in steps if (place := _at(child)) is not None]
    return [place for _, place in sorted(found, key=lambda each: each[0])]


def _bytes_of(file: Path) -> bytes:
    """Returns what a file holds; nothing if there is none."""
    return file.read_bytes() if file.is_file() else b""


def _list_item(
    directory: Path, tree_json: bytes | None, prefix: str
) -> tuple[dict[str, Entry], list[str]]:
    """Returns every array of an item, by the metadata that each keeps beside its chunks, and what is missing.

    Args:
      directory: of the item.
      tree_json: of its tree; None if it has none.
      prefix: of the arrays' names.
    """
    tensorstore = load_tensorstore(f"Orbax checkpoint {directory}")
    packed = (directory / MANIFEST).is_file()
    base = {"driver": "file", "path": f"{directory.absolute()}/"}
    try:
        files = tensorstore.KvStore.open(base).result()
        stored, ends = _stored(tensorstore.ocdbt, files) if packed else ([], {})
        problems = list(_file_problems(directory, ends))
        tree = None if tree_json is None else orjson.loads(tree_json)
        complete = bool(
            tree and tree.get("store_array_data_equal_to_fill_value")
        )  # chunks of zeros, too
        where = {"driver": "ocdbt", "base": base, "path": ""} if packed else base
        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
        store = tensorstore.KvStore.open(where, context=context).result()
        entries: dict[str, Entry] = {}
        for path, file, is_array in _listed_leaves(stored) if tree is None else _leaves(tree):
            read = store.read(f"{path}/{file}").result()
            if read.state == "missing":
                if is_array:
                    raise ValueError(f"it has no array {path!r}")
                continue
            metadata = orjson.loads(read.value)
            told_by = directory / MANIFEST if packed else directory / path / file
            kvstore = where | {"path": f"{where['path']}{path}/"}
            spec = {
                "driver": _DRIVERS[file],
                "kvstore": kvstore,
                "fill_missing_data_reads": not complete,
            }
            entries[prefix + path] = entry = _entry(prefix + path, metadata, spec, told_by)
            if complete and not packed:
                problems += _missing_chunks(entry, metadata)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        reason = str(problem).splitlines()[0][:200]
        raise CheckpointError(
            f"Orbax checkpoint {directory} cannot be read: {reason}; copy it anew"
        ) from problem
    return entries, problems


def _leaves(tree: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yields the leaves of a tree: dotted path, the file that describes its array, and whether it must have one."""
    file = "zarr.json" if tree.get("use_zarr3") else ".zarray"
    for leaf in tree["tree_metadata"].values():
        value = leaf["value_metadata"]
        if not value.get("skip_deserialize"):
            yield (
                ".".join(str(step["key"]) for step in leaf["key_metadata"]),
                file,
                value.get("value_type") in _ARRAYS,
            )


def _listed_leaves(names: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """Yields the arrays that a store has, where no tree tells them."""
    for name in names:
        path, _, file = name.rpartition("/")
        if file in _DRIVERS:
            yield path, file, True


def _stored(ocdbt: Any, files: Any) -> tuple[list[str], dict[str, int]]:
    """Returns every key of an OCDBT store, by its B+tree, and how far its values reach into each data file."""
    versions = ocdbt.dump(files).result()["versions"]
    root = versions[-1]["root"].get("location") if versions else None
    waiting = [(root, b"")] if root else []
    keys: list[str] = []
    ends: dict[str, int] = {}
    for location, prefix in waiting:  # grows while it is walked
        if len(waiting) > _NODES_MAX:
            raise ValueError(f"more than {_NODES_MAX} nodes")
        for entry in ocdbt.dump(files, location).result()["entries"]:
            if "location" in entry:
                waiting.append((entry["location"], prefix + entry["subtree_common_prefix"]))
                continue
            keys.append((prefix + entry["key"]).decode())
            if (
                "indirect_value" in entry
            ):  # `value:<directory>:<file>:<offset>:<bytes>`; a small value is in the node
                _, folder, file, offset, count = entry["indirect_value"].rsplit(":", 4)
                ends[folder + file] = max(ends.get(folder + file, 0), int(offset) + int(count))
    return keys, ends


def _file_problems(directory: Path, ends: Mapping[str, int]) -> Iterator[str]:
    for file, end in ends.items():
        path = directory / file
        if not path.is_file():
            yield f"data file {path} is missing; copy all files of the checkpoint"
        elif path.stat().st_size < end:
            yield f"data file {path} has {path.stat().st_size} bytes of {end}: it was cut short; copy it anew"


def _missing_chunks(entry: Entry, metadata: dict[str, Any]) -> Iterator[str]:
    """Yields what is wrong with an array that lies in a directory of its own, each chunk a file."""
    assert entry.array is not None  # noqa: S101
    directory = Path(entry.array.file).parent
    sizes = metadata.get("chunks") or metadata.get("chunk_grid", {}).get("configuration", {}).get(
        "chunk_shape", ()
    )
    count = math.prod(
        -(-size // max(1, chunk)) for size, chunk in zip(entry.shape, sizes, strict=True)
    )
    found = sum(1 for file in directory.rglob("*") if file.is_file() and file.name not in _DRIVERS)
    if found < count:
        yield f"array {entry.key!r}: {count - found} of {count} chunks are missing in {directory}; copy all files"


def _entry(key: str, metadata: dict[str, Any], spec: dict[str, Any], told_by: Path) -> Entry:
    """Returns an array by its metadata, `.zarray` or `zarr.json`."""
    shape = tuple(int(size) for size in metadata["shape"])
    if spec["driver"] == "zarr":
        dtype, chunk = _numpy_name(str(metadata["dtype"])), metadata["chunks"]
    else:
        dtype, chunk = (
            str(metadata["data_type"]),
            metadata["chunk_grid"]["configuration"]["chunk_shape"],
        )
        for codec in metadata["codecs"]:
            chunk = (
                codec["configuration"]["chunk_shape"]
                if codec["name"] == "sharding_indexed"
                else chunk
            )
    chunk = tuple(int(size) for size in chunk)
    if (
        len(chunk) != len(shape)
        or min(chunk, default=1) < 1
        or not (can_be(shape) and can_be(chunk))
    ):
        raise ValueError(f"array {key!r} has the shape {list(shape)} and chunks {list(chunk)}")
    itemsize = NUMPY_DTYPES[dtype].itemsize if dtype in NUMPY_DTYPES else 0
    held = held_bytes(shape, chunk, itemsize, in_pieces=piece_format(metadata) is not None)
    array = ArrayStore(
        orjson.dumps(spec).decode(), chunk, held, str(told_by), local_stamp(told_by.stat())
    )
    return Entry(key, dtype, shape, (), array)


def _numpy_name(dtype: str) -> str:
    """Returns the dtype of a zarr 2 array by TensorFlow's name, e.g. of `<f4`."""
    return dtype if dtype == "bfloat16" or dtype.startswith("[") else np.dtype(dtype).name


def _json(path: Path) -> dict[str, Any]:
    """Returns the JSON object that a file holds."""
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as problem:
        raise CheckpointError(
            f"{path} is no JSON: {problem}; copy the checkpoint anew"
        ) from problem
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no JSON object; copy the checkpoint anew")
    return found

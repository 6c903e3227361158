"""Finds and lists an Orbax checkpoint: a tree of arrays, where each array is a zarr array with a
dotted path. No array is read.

    <root>/<step>/<item>/   CheckpointManager: one per step, in it one per item, mostly `default`
    <root>/<item>/          Orbax's newer functions, without steps
    <item>/                 a Checkpointer alone

An item holds `_METADATA` (the tree: the steps of each leaf's path and the kind of its value) and
its arrays, in an OCDBT store (`manifest.ocdbt`, `d/`) or as directories.

In zarr 2, where Orbax states no fill value, chunks of zeros are stored like any other. In zarr 3
they are stored since Orbax 0.10, which records that in the tree
(`store_array_data_equal_to_fill_value`). In these arrays a chunk that is not stored was lost. In an
older zarr 3 array it may have been zeros: such an array is listed with the number of its `absent`
chunks and is not read.

Source: tensorstore, kvstore/ocdbt; Keras, callbacks/orbax_checkpoint.py; Orbax,
checkpoint/_src/{metadata/tree,path/atomicity,path/step, serialization/tensorstore_utils}.py.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from bundle.arithmetic import ceil_div
from bundle.shown_values import SHOWN_MAX, shown
from bundle.storage.regular_files import check_regular_tree, read_regular
from export.checkpoint.formats.arrays import load_tensorstore, memory_bytes
from export.checkpoint.formats.keras_archive import CONFIG_BYTES_MAX, parse_config
from export.checkpoint.formats.orbax_metadata import (
    KerasStrings,
    ProcessArrays,
    Sharding,
    Shardings,
    StepMetadata,
    Tree,
    Zarr2Array,
    Zarr3Array,
)
from export.checkpoint.formats.upstreams import (
    KERAS,
    ORBAX,
    TENSORSTORE,
    parse_metadata,
    skipped_fields,
)
from export.checkpoint.variables import (
    NUMPY_DTYPES,
    ArrayStore,
    Asset,
    Entry,
    Listing,
    Storage,
    can_be,
)
from export.errors import CheckpointError
from object_store.locations import Location, children, stamp_of
from object_store.remote_path import RemotePath

MANIFEST = "manifest.ocdbt"
TREE = "_METADATA"
STEP = "_CHECKPOINT_METADATA"
COMMITTED = "commit_success.txt"
KERAS_TREES = (
    "trainable_variables",
    "non_trainable_variables",
    "optimizer_variables",
    "metrics_variables",
)
"""The trees of the item that `keras.callbacks.OrbaxCheckpoint` saves, as
`keras.Model.get_state_tree` returns them.
"""
KERAS_LISTS = (
    ("0", "1"),
    ("tvars", "ntvars"),
    ("trainable_variables", "non_trainable_variables"),
)
"""Pairs of lists that hold the trainable and the other variables of a Keras model without their
names: RecML's `KerasTrainer` saves the tuple of Keras's JAX trainer, RecML's `JaxTrainer` saves a
`KerasState`, and the last pair has the names in Keras.
"""
KERAS_ITEM = "pytree"
_KERAS_CONFIG = "model_config"
_KERAS_ASSETS = "assets"
"""Items beside KERAS_ITEM, if not only the weights are saved."""
_STRINGS = "_strings.json"
"""The file that holds the strings of an item."""
_UNFINISHED = ".orbax-checkpoint-tmp"
_ZARR_2 = ".zarray"
_ZARR_3 = "zarr.json"
_DRIVERS = {_ZARR_2: "zarr", _ZARR_3: "zarr3"}
"""tensorstore's name of the format, by the file that describes an array."""
_ARRAYS = ("jax.Array", "np.ndarray", "scalar")
_NODES_MAX = 1_000_000
"""The maximum number of nodes of an OCDBT store's tree that are read; a damaged tree may have a
cycle.
"""
_CACHE_BYTES = 64 << 20
"""The size of the cache for the nodes of an OCDBT store's tree. Without it, every read of a value
would decode its nodes again.
"""
_CHUNK_VALUES = 1 << 24
"""The maximum number of values in a chunk that is more than twice as large as its array, as the
chunk of a small array may be.
"""
_ARRAY_METADATAS = "array_metadatas"
_USER_METADATA = "custom_metadata"
"""The key under which Orbax saves the metadata of a user's program."""
_ATTRIBUTES = ".zattrs"
"""The file with users' attributes of an array in zarr 2; zarr 3 has them in the array's metadata.
"""
_SHARDING = "_sharding"
_SHARDINGS = {"NamedSharding", "SingleDeviceSharding"}
"""The shardings of a global array over devices whose rows lie in the array in their order."""
_ZARR_2_DTYPE = re.compile(r"[<>|][biufcSUVmM]\d+(\[\w+\])?")
_STEP_NAME = re.compile(r"^(?:.*_)?(\d+)$")


class OrbaxCheckpoint(NamedTuple):
    """One complete checkpoint.

    Attributes:
      directory: The directory of the step, or of the item if there are no steps.
      items: The directory of each item by its name, which is "" if there is only one.
      step: The step in the directory's name; None if there are no steps.
    """

    directory: Location
    items: Mapping[str, Location]
    step: int | None

    @property
    def name(self) -> str:
        """The name of the checkpoint, e.g. `run1/1200`."""
        directory = self.directory
        if isinstance(directory, Path):
            directory = directory.absolute()
        # The number of a step alone would name a checkpoint of any run.
        if directory.name.isdigit():
            return f"{directory.parent.name}/{directory.name}"
        return directory.name


def find_orbax(path: Location) -> OrbaxCheckpoint | None:
    """Returns the Orbax checkpoint in a directory, or the newest complete one if it has several
    steps. Returns None if there is no checkpoint.

    Raises:
      CheckpointError: The only checkpoint is still being saved, or its save was interrupted.
    """
    # tensorstore rejects `..`, and a name could be `..`.
    if isinstance(path, Path) and ".." in path.parts:
        path = path.resolve()

    only_checkpoint = _checkpoint_in(path)
    checkpoints = _steps(path)
    if only_checkpoint is not None:
        checkpoints = iter([only_checkpoint])
    unfinished: list[Location] = []
    for checkpoint in checkpoints:
        if _is_complete(checkpoint):
            return checkpoint
        unfinished.append(checkpoint.directory)
    unfinished += [child for child in children(path) if _UNFINISHED in child.name]
    if unfinished:
        raise CheckpointError(
            f"Orbax checkpoint {unfinished[0]} is not complete: it is being saved, or the save was "
            "interrupted; wait for it, or take an older one"
        )
    return None


def is_keras_state(checkpoint: OrbaxCheckpoint) -> bool:
    """Returns whether a checkpoint holds the variables of a Keras model. Reads only its tree.

    Raises:
      CheckpointError: The tree is damaged.
    """
    return any(_holds_keras_state(directory) for directory in checkpoint.items.values())


def _holds_keras_state(directory: Location) -> bool:
    """Returns whether an item is the tree of a Keras model, with or without its configuration."""
    trees = {path.partition(".")[0] for path in _paths(directory)}
    return KERAS_TREES[0] in trees and trees.issubset(KERAS_TREES)


def _paths(directory: Location) -> list[str]:
    """Returns the paths of the arrays of an item, as its tree lists them; [] if it has no tree."""
    content = _content(directory / TREE)
    if content is None:
        return []
    return [path for path, _, _ in _leaves(_tree(directory / TREE, content))]


def may_hold_keras_lists(checkpoint: OrbaxCheckpoint) -> bool:
    """Returns whether a checkpoint may hold the variables of a Keras model in lists. Other JAX
    programs have such lists, too. Reads only the tree.

    Raises:
      CheckpointError: The tree is damaged.
    """
    return any(bool(find_keras_lists(_paths(directory))) for directory in checkpoint.items.values())


def find_keras_lists(paths: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Returns the paths of the two lists of a model's variables in a tree, by the path that holds
    both lists. The second list may be empty and therefore absent.

    Args:
      paths: The dotted paths of all arrays.
    """
    # A list has the members 0, 1, ... and no deeper paths.
    members: dict[str, set[str]] = defaultdict(set)
    deeper: set[str] = set()
    for path in paths:
        *parent, last = path.split(".")
        members[".".join(parent)].add(last)
        deeper.update(".".join(parent[:count]) for count in range(len(parent)))
    lists = {
        path
        for path, names in members.items()
        if path not in deeper and names == {str(number) for number in range(len(names))}
    }
    pairs = {}
    for trainable, non_trainable in KERAS_LISTS:
        for path in sorted(lists):
            if path == trainable or path.endswith(f".{trainable}"):
                beginning = path.removesuffix(trainable)
                pairs[beginning] = path, f"{beginning}{non_trainable}"
    return pairs


def list_orbax(checkpoint: OrbaxCheckpoint) -> Listing:
    """Lists the arrays of a checkpoint by their dotted paths, which begin with the item's name if
    there are several items.

    Raises:
      CheckpointError: The checkpoint's listing is damaged, or tensorstore is missing.
      OSError: A file cannot be read, or is no regular file.
    """
    # Not a CRC: all files that end with their own crc32c, as OCDBT's do, have the same crc32c.
    digest = hashlib.sha256()
    entries: dict[str, Entry] = {}
    problems: list[str] = []
    notes: dict[str, None] = {}
    for name, directory in checkpoint.items.items():
        for file in (directory.parent / STEP, directory / STEP, directory / MANIFEST):
            digest.update(_content(file) or b"")
        for file in (directory.parent / STEP, directory / STEP):
            if _content(file) is not None:
                step = _step_metadata(file)
                _check_user_metadata(file, _USER_METADATA, step.custom_metadata)
                notes |= dict.fromkeys(skipped_fields(step, file, ORBAX))
        _check_shardings(directory / _SHARDING)
        _check_array_metadatas(directory / _ARRAY_METADATAS)
        tree = None
        content = _content(directory / TREE)
        if content is not None:
            digest.update(content)
            tree = _tree(directory / TREE, content)
            _check_user_metadata(directory / TREE, _USER_METADATA, tree.custom_metadata)
        prefix = f"{name}." if name else ""
        item_entries, item_problems = _list_item(directory, tree, prefix)
        entries |= item_entries
        problems += item_problems
    storage = Storage(
        "Orbax",
        checkpoint.step,
        model=_keras_config(checkpoint),
        assets=_keras_assets(checkpoint, entries),
        problems=tuple(problems),
        notes=tuple(notes),
    )
    return Listing(f"sha256:{digest.hexdigest()[:16]}", entries, storage)


def _keras_config(checkpoint: OrbaxCheckpoint) -> dict[str, Any]:
    """Returns the configuration of the Keras model whose variables are saved; {} if there is none.

    Raises:
      CheckpointError: The configuration is not JSON, or is too large.
    """
    if KERAS_ITEM not in checkpoint.items or _KERAS_CONFIG not in checkpoint.items:
        return {}
    file = checkpoint.items[_KERAS_CONFIG] / _STRINGS
    content = _content(file)
    if content is None or len(content) > CONFIG_BYTES_MAX:
        raise CheckpointError(
            f"{file} is missing, or has more than {CONFIG_BYTES_MAX} bytes; the description of a "
            "model was expected: copy the checkpoint anew"
        )
    strings = parse_metadata(KerasStrings, content, file, KERAS)
    return parse_config(strings.config, file)


def _keras_assets(checkpoint: OrbaxCheckpoint, entries: Mapping[str, Entry]) -> dict[str, Asset]:
    """Returns the assets that Keras layers saved beside their variables, as arrays of bytes."""
    if KERAS_ITEM not in checkpoint.items or _KERAS_ASSETS not in checkpoint.items:
        return {}
    beginning = f"{_KERAS_ASSETS}."
    return {
        key.removeprefix(beginning): Asset(entry.bytes, "", key)
        for key, entry in entries.items()
        if key.startswith(beginning)
    }


def _checkpoint_in(directory: Location) -> OrbaxCheckpoint | None:
    """Returns the checkpoint in a directory that is a step or an item; None if it is neither."""
    if _is_item(directory):
        step = directory
        if (directory.parent / STEP).is_file():
            step = directory.parent
        return OrbaxCheckpoint(step, {"": directory}, _step(step))

    items = {child.name: child for child in children(directory) if _is_item(child)}
    # Children with numbers are steps, unless the directory is marked as a step itself: then they
    # are items that happen to have such names.
    have_numbers = any(_step(child) is not None for child in items.values())
    if not items or (have_numbers and not (directory / STEP).is_file()):
        return None
    if len(items) == 1:
        items = {"": next(iter(items.values()))}
    return OrbaxCheckpoint(directory, items, _step(directory))


def _is_item(directory: Location) -> bool:
    return (directory / MANIFEST).is_file() or (directory / TREE).is_file()


def _step(directory: Location) -> int | None:
    match = _STEP_NAME.match(directory.name)
    if match is None:
        return None
    return int(match[1])


def _is_complete(checkpoint: OrbaxCheckpoint) -> bool:
    """Returns whether a checkpoint was committed: renamed on commit, or marked in a store that
    cannot rename.
    """
    if _UNFINISHED in checkpoint.directory.name:
        return False
    for directory in (checkpoint.directory, *checkpoint.items.values()):
        step = directory / STEP
        if not (directory / COMMITTED).is_file() and step.is_file():
            return _step_metadata(step).commit_timestamp_nsecs is not None
    return True


def _steps(root: Location) -> Iterator[OrbaxCheckpoint]:
    """Yields the checkpoints in the step directories of a root, the newest first."""
    steps = [(step, child) for child in children(root) if (step := _step(child)) is not None]
    # Sorted by numbers: as texts, 999 would come after 1000.
    for _, child in sorted(steps, key=lambda numbered: numbered[0], reverse=True):
        if not child.is_dir():
            continue
        checkpoint = _checkpoint_in(child)
        if checkpoint is not None:
            yield checkpoint


def _content(file: Location) -> bytes | None:
    """Returns the content of a file; None if there is no such file."""
    try:
        if isinstance(file, RemotePath):
            return file.read(0, file.stamp().bytes)
        return read_regular(file)
    except (FileNotFoundError, IsADirectoryError):
        return None


def _kvstore(directory: Location) -> dict[str, Any]:
    """Returns tensorstore's description of a directory. Credentials are never part of it:
    tensorstore takes them from the environment, as the store's other libraries do.
    """
    if isinstance(directory, Path):
        return {"driver": "file", "path": f"{directory.absolute()}/"}
    protocol, _, path = directory.url.partition("://")
    bucket, _, inner = path.partition("/")
    if inner:
        inner = f"{inner}/"
    if protocol in ("gs", "gcs"):
        return {"driver": "gcs", "bucket": bucket, "path": inner}
    if protocol in ("s3", "s3a"):
        return {"driver": "s3", "bucket": bucket, "path": inner, **_s3_access()}
    raise CheckpointError(
        f"Orbax checkpoint {directory} is in a store that tensorstore does not read here: s3, gs "
        "and the disks of this machine were expected; copy it to one of them"
    )


def _s3_access() -> dict[str, Any]:
    """Returns tensorstore's options for the endpoint and the credentials that s3fs uses."""
    from fsspec.config import conf

    settings = conf.get("s3", {})
    endpoint = (
        settings.get("endpoint_url")
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
    )
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    access: dict[str, Any] = {}
    if endpoint:
        access["endpoint"] = endpoint
    if region:
        access["aws_region"] = region
    if str(settings.get("anon", "")).lower() in ("true", "1"):
        access["aws_credentials"] = {"type": "anonymous"}
    elif "AWS_ACCESS_KEY_ID" in os.environ:
        # Without this, tensorstore searches further for credentials and logs its failures.
        access["aws_credentials"] = {"type": "environment"}
    return access


def _list_item(
    directory: Location, tree: Tree | None, prefix: str
) -> tuple[dict[str, Entry], list[str]]:
    """Returns every array of an item, from the metadata beside its chunks, and a list of what is
    missing.

    Args:
      directory: The item's directory.
      tree: The item's tree; None if it has none.
      prefix: The prefix of the arrays' names.
    """
    tensorstore = load_tensorstore(f"Orbax checkpoint {directory}")
    is_ocdbt = (directory / MANIFEST).is_file()
    base = _kvstore(directory)
    if isinstance(directory, Path):
        check_regular_tree(directory)
    try:
        kvstore = base
        end_of_file = {}
        if is_ocdbt:
            files = tensorstore.KvStore.open(base).result()
            end_of_file = _ends_of_files(tensorstore.ocdbt, files)
            kvstore = {"driver": "ocdbt", "base": base, "path": ""}
        problems = list(_file_problems(directory, end_of_file))

        # Only then is a chunk that is not stored surely lost; see the module's docstring.
        stores_zeros = tree is not None and tree.store_array_data_equal_to_fill_value

        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
        store = tensorstore.KvStore.open(kvstore, context=context).result()
        keys = sorted(store.list().result())
        leaves = list(_leaves(tree, keys))
        paths = Counter(path for path, _, _ in leaves)
        problems += [
            f"array {prefix + path!r}: {count} arrays of the tree have this path, as a key has a "
            "dot, and Orbax stores one of them; rename the key in the training program, and save "
            "the checkpoint anew"
            for path, count in paths.items()
            if count > 1
        ]
        # All reads begin before the first is awaited: from a store, each takes a round trip.
        reads = [store.read(f"{path}/{file}") for path, file, _ in leaves]

        entries: dict[str, Entry] = {}
        stored_keys = set(keys)
        for (path, file, is_array), pending_read in zip(leaves, reads, strict=True):
            if f"{path}/{_ATTRIBUTES}".encode() in stored_keys:
                _check_user_metadata(directory / path, _ATTRIBUTES, _ATTRIBUTES)
            read_result = pending_read.result()
            description_file = directory / f"{path}/{file}"
            if read_result.state == "missing":
                if is_array:
                    raise CheckpointError(
                        f"{directory / TREE}: its 'tree_metadata' and 'use_zarr3' call for "
                        f"{shown(str(description_file))}, which is not stored; copy all files of "
                        "the checkpoint"
                    )
                continue

            metadata = _array_metadata(description_file, read_result.value)
            _check_user_metadata(directory / path, "", metadata.attributes)
            array_store = kvstore | {"path": f"{kvstore['path']}{path}/"}
            if is_ocdbt:
                description_file = directory / MANIFEST
                array_store["cache_pool"] = "cache_pool#nodes"
            spec = {"driver": _DRIVERS[file], "kvstore": array_store}
            entry = _entry(prefix + path, metadata, spec, description_file)

            stored_count = _stored_count(entry, metadata)
            absent_count = max(0, stored_count - _chunks_in(keys, path))
            # Arrays of zarr 2 have no fill value: their chunks of zeros are stored, too (ADR 38).
            if absent_count and (stores_zeros or metadata.fill_value is None):
                problems.append(
                    f"array {entry.key!r}: {absent_count} of {stored_count} "
                    f"chunks are missing in {directory}; copy all files"
                )
                absent_count = 0
            entries[entry.key] = _with_absent_chunks(entry, absent_count)
    except (OSError, ValueError) as problem:
        # tensorstore's errors may repeat a whole specification.
        reason = str(problem).splitlines()[0][:SHOWN_MAX]
        raise CheckpointError(
            f"Orbax checkpoint {directory} cannot be read: {reason}; copy it anew"
        ) from problem
    return entries, problems


def _with_absent_chunks(entry: Entry, absent: int) -> Entry:
    """Returns the entry of an array that lacks chunks, of which nothing shows whether they were
    lost.
    """
    if entry.array is None:
        return entry
    return entry._replace(array=entry.array._replace(absent=absent))


def _step_metadata(file: Location) -> StepMetadata:
    return parse_metadata(StepMetadata, _content(file) or b"", file, ORBAX)


def _tree(file: Location, content: bytes) -> Tree:
    return parse_metadata(Tree, content, file, ORBAX)


def _array_metadata(file: Location, content: bytes) -> Zarr2Array | Zarr3Array:
    if file.name == _ZARR_3:
        return parse_metadata(Zarr3Array, content, file, TENSORSTORE)
    return parse_metadata(Zarr2Array, content, file, TENSORSTORE)


def _check_shardings(file: Location) -> None:
    """Checks that arrays were sharded as JAX shards them.

    Raises:
      CheckpointError: An array has another sharding.
    """
    content = _content(file)
    if content is None:
        return
    for name, sharding in parse_metadata(Shardings, content, file, ORBAX).root.items():
        # The metadata of each sharding are a JSON object in a text.
        text = file.with_name(f"{file.name}[{name[:SHOWN_MAX]!r}]")
        kind = parse_metadata(Sharding, sharding.encode(), text, ORBAX).sharding_type
        if kind not in _SHARDINGS:
            raise CheckpointError(
                f"{file}: an array has the 'sharding_type' {shown(kind)}, which is not "
                "understood and may say in which order rows lie; expected was "
                f"{' or '.join(sorted(_SHARDINGS))}"
            )


def _check_array_metadatas(folder: Location) -> None:
    """Checks that everything that the processes of the training program recorded about their arrays
    is known.

    Raises:
      CheckpointError: A process recorded something unknown, or its file is damaged.
    """
    if folder.is_dir():
        for file in children(folder):
            parse_metadata(ProcessArrays, _content(file) or b"", file, ORBAX)


def _check_user_metadata(owner: Location, name: str, metadata: Any) -> None:
    """Rejects metadata of the user's program, which may specify the order of the rows of tables.

    Args:
      owner: The file or the array that has the metadata.
      name: The name under which they are saved; "" if they have none.
      metadata: What is saved.

    Raises:
      CheckpointError: There are such metadata.
    """
    if not metadata:
        return
    if isinstance(metadata, dict):
        name = ".".join(filter(None, (name, min(metadata))))
    raise CheckpointError(
        f"{owner} has {shown(name)}, which is not understood and may say in which order the rows "
        "of tables lie; save the checkpoint without it"
    )


def _leaves(tree: Tree | None, keys: Iterable[bytes] = ()) -> Iterator[tuple[str, str, bool]]:
    """Yields the leaves of a tree: the dotted path, the file that describes the array, and whether
    there must be an array. Without a tree, the leaves are the arrays that the keys of the store
    list.
    """
    if tree is None:
        yield from _leaves_of_keys(keys)
        return
    file = _ZARR_3 if tree.use_zarr3 else _ZARR_2
    for leaf in tree.tree_metadata.values():
        value = leaf.value_metadata
        # A value that Orbax skips when it restores, such as None, is no array.
        if not value.skip_deserialize:
            path = ".".join(str(step.key) for step in leaf.key_metadata)
            yield path, file, value.value_type in _ARRAYS


def _leaves_of_keys(keys: Iterable[bytes]) -> list[tuple[str, str, bool]]:
    """Returns the arrays of a store without a tree, by the keys of the store."""
    split_keys = (key.decode().rpartition("/") for key in keys)
    return [(path, file, True) for path, _, file in split_keys if file in _DRIVERS]


def _ends_of_files(ocdbt: Any, files: Any) -> dict[str, int]:
    """Returns the end of the last value of an OCDBT store in each data file, by its B+tree."""
    # tensorstore itself notices a missing file only when a value in it is read.
    versions = ocdbt.dump(files).result()["versions"]
    nodes = []
    if versions:
        # The newest version comes last; an empty store has no root.
        root = versions[-1]["root"].get("location")
        if root:
            nodes.append(root)

    end_of_file: dict[str, int] = {}
    # The list grows while it is walked.
    for location in nodes:
        if len(nodes) > _NODES_MAX:
            raise ValueError(f"more than {_NODES_MAX} nodes")
        for entry in ocdbt.dump(files, location).result()["entries"]:
            if "location" in entry:
                nodes.append(entry["location"])
            elif "indirect_value" in entry:
                # `value:<directory>:<file>:<offset>:<bytes>`; a small value is in the node itself.
                _, folder, file, offset, count = entry["indirect_value"].rsplit(":", 4)
                end = int(offset) + int(count)
                end_of_file[folder + file] = max(end, end_of_file.get(folder + file, end))
    return end_of_file


def _file_problems(directory: Location, end_of_file: Mapping[str, int]) -> Iterator[str]:
    """Yields the problems of the data files of an OCDBT store."""
    folders: dict[str, list[str]] = defaultdict(list)
    for file in end_of_file:
        folder, _, name = file.rpartition("/")
        folders[folder].append(name)
    for folder, names in folders.items():
        sizes = _sizes_in(directory / folder, names)
        for name in names:
            path = directory / folder / name
            end = end_of_file[f"{folder}/{name}" if folder else name]
            size = sizes.get(name)
            if size is None:
                yield f"data file {path} is missing; copy all files of the checkpoint"
            elif size < end:
                yield (
                    f"data file {path} has {size} bytes of {end}: it was cut short; copy it anew"
                )


def _sizes_in(folder: Location, names: Iterable[str]) -> dict[str, int]:
    """Returns the sizes of the files of a folder that exist, by name."""
    # In a store, one request lists all of them.
    if isinstance(folder, RemotePath):
        return {name: stamp.bytes for name, stamp in folder.listing().items()}
    paths = {name: folder / name for name in names}
    return {name: path.stat().st_size for name, path in paths.items() if path.is_file()}


def _stored_count(entry: Entry, metadata: Zarr2Array | Zarr3Array) -> int:
    """Returns the number of stored values that hold an array's chunks. Several chunks may share a
    value (a shard).
    """
    sizes = zip(entry.shape, metadata.stored_shape, strict=True)
    return math.prod(ceil_div(size, max(1, stored)) for size, stored in sizes)


def _chunks_in(keys: Sequence[bytes], path: str) -> int:
    """Returns the number of values of a store that hold an array's chunks.

    Args:
      keys: All keys of the store, sorted.
      path: The array's path in the store.
    """
    # The keys of one array lie together. "0" follows "/" in ASCII.
    low = bisect_left(keys, f"{path}/".encode())
    high = bisect_left(keys, f"{path}0".encode())
    return sum(key.rpartition(b"/")[2].decode() not in _DRIVERS for key in keys[low:high])


def _entry(
    key: str,
    metadata: Zarr2Array | Zarr3Array,
    spec: dict[str, Any],
    description_file: Location,
) -> Entry:
    """Returns the entry of an array from its metadata, `.zarray` or `zarr.json`."""
    if isinstance(metadata, Zarr2Array):
        dtype = _numpy_name(metadata.dtype)
    else:
        dtype = metadata.data_type
    shape = tuple(metadata.shape)
    chunk = tuple(metadata.chunk_shape)
    # The chunks of a grid of shards are checked as well as what they lie in.
    sizes = (chunk, tuple(metadata.stored_shape))
    is_valid = all(len(size) == len(shape) and min(size, default=1) >= 1 for size in sizes)
    if not is_valid or not can_be(shape) or not can_be(chunk):
        raise ValueError(f"array {shown(key)} has {_shown_shapes(shape, chunk)}")
    # The library decodes a chunk as a whole, and ends the process if it has no memory for one.
    if math.prod(chunk) > max(2 * math.prod(shape), _CHUNK_VALUES):
        raise ValueError(
            f"array {shown(key)} has {_shown_shapes(shape, chunk)}, which would be much larger "
            "than the array"
        )

    itemsize = 0
    if dtype in NUMPY_DTYPES:
        itemsize = NUMPY_DTYPES[dtype].itemsize
    array = ArrayStore(
        orjson.dumps(spec).decode(),
        chunk,
        memory_bytes(shape, chunk, itemsize),
        str(description_file),
        stamp_of(description_file),
    )
    return Entry(key, dtype, shape, (), array)


def _shown_shapes(shape: tuple[int, ...], chunk: tuple[int, ...]) -> str:
    return f"the shape {shown(list(shape))} and chunks {shown(list(chunk))}"


def _numpy_name(dtype: str) -> str:
    """Returns TensorFlow's name of the dtype of a zarr 2 array, such as `<f4`.

    Raises:
      ValueError: No array of numbers or bytes has this dtype.
    """
    if dtype == "bfloat16":
        return dtype
    # NumPy also accepts lists of dtypes, and evaluates texts that look like one.
    if _ZARR_2_DTYPE.fullmatch(dtype) is not None:
        # Some such texts name no dtype: there is no <f9.
        with suppress(TypeError):
            return np.dtype(dtype).name
    raise ValueError(f"{shown(dtype)} is no dtype of an array in zarr 2")

"""Finds the checkpoint that a path refers to. Files that are not V2 checkpoints are rejected by
name, with the remedy.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from bundle.storage.regular_files import check_regular
from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.protos import parse_text
from export.checkpoint.formats.sstable import MAGIC
from export.errors import CheckpointError
from object_store.locations import (
    Location,
    children,
    is_url,
    location_of,
    read_range,
    stamp_of,
)
from object_store.remote_path import RemotePath

STATE_FILE = "checkpoint"
_SAVE = (
    "is not read here; load it in a program that also imports TensorFlow, write each table as an "
    "array by tf.train.Checkpoint(NAME=tf.Variable(array)).write(PATH), then export PATH with "
    "--table NAME=NAME"
)
_FLAX = (
    "a file of msgpack (flax.serialization, flax.training.checkpoints, T5X), which is not read "
    "here; load it in a program with Flax by flax.serialization.msgpack_restore or "
    "restore_checkpoint(PATH, target=None), and save the tree with "
    "orbax.checkpoint.StandardCheckpointer().save(DIRECTORY, tree)"
)
_MSGPACK = re.compile(rb"([\x81-\x8f]|\xde..|\xdf....)([\xa1-\xbf]|\xd9.)", re.DOTALL)
"""The first bytes of a map whose first key is a text."""
_FLAX_STEP = re.compile(r"checkpoint_\d+")
"""The names of files that flax.training.checkpoints wrote."""
_SNAPSHOT = (
    "a snapshot of PyTorch (torchsnapshot), which is not read here; load it in the program that "
    "wrote it by Snapshot(PATH).restore(app_state), and save the tables by "
    "torch.distributed.checkpoint.save or safetensors.torch.save_file"
)
_SNAPSHOT_FILE = ".snapshot_metadata"
_DYNAMIC = re.compile(r"(.+)_mht_\d+of\d+(_rank\d+_size\d+)?-(keys|values)")
_DYNAMIC_KIND = (
    "keys or values of a dynamic embedding (TensorFlow Recommenders Addons), which is not read "
    "here; write the table in a program with that library as int64 keys and float32 rows: "
    "keys, rows = variable.export(); keys.numpy().astype('<i8').tofile('NAME_keys.file'); "
    "rows.numpy().astype('<f4').tofile('NAME_values.file'); then give their directory"
)
_BY_SUFFIX = {
    ".msgpack": _FLAX,
    **dict.fromkeys(
        (".pt", ".pth"),
        "a pickle of PyTorch, which is not read, since reading it can run any code; load it in the "
        "program that wrote it, and save the tables by safetensors.torch.save_file or "
        "torch.distributed.checkpoint.save",
    ),
    ".distcp": "a data file of a checkpoint of torch.distributed; give its directory",
    **dict.fromkeys((".npy", ".npz"), f"a file of numpy, which {_SAVE}"),
    **dict.fromkeys(
        (".onnx", ".tflite"),
        "a model for inference, without the tables' names; give its checkpoint",
    ),
    **dict.fromkeys(
        (".pb", ".pbtxt"),
        "a graph of TensorFlow; give the SavedModel's directory, or a checkpoint of it",
    ),
}
_KERAS = "a file of Keras, which is read from this machine's disks only"
_BY_HEAD = {
    b"\x89HDF": _KERAS,
    b"PK\x03\x04": _KERAS,
    b"\x93NUMPY": _BY_SUFFIX[".npy"],
    b"\x80": f"a pickle (PyTorch's and scikit-learn's), which {_SAVE}",
}
ORBAX_PARTS = ("manifest.ocdbt", "_CHECKPOINT_METADATA", "_METADATA")
"""Files that mark the directory of an Orbax checkpoint."""
STATE_BYTES_MAX = 1 << 20
"""The maximum number of bytes that are read of a state file, which names a few checkpoints."""
_PREFIXES_SHOWN = 5
"""The maximum number of prefixes that a message lists."""


def find_prefix(path: Location) -> Location:
    """Returns the prefix of the checkpoint that a path or a URL refers to.

    Args:
      path: A directory (for the checkpoint that its state file names, else the newest), a prefix,
        or its `.index` file.
    Raises:
      CheckpointError: There is no checkpoint, or it is of another kind; the error says which kind
        and what to do.
    """
    try:
        if path.is_dir():
            return _prefix_in_directory(path)
        if path.suffix == ".index" and path.is_file():
            return path.with_name(path.stem)
        # A prefix is the beginning of the names of several files, and no file itself.
        if _sibling(path, ".index").is_file():
            return path
        if path.is_file():
            raise CheckpointError(_kind_of(path))
        if isinstance(path, Path) and path.exists():
            check_regular(path)
        raise CheckpointError(_missing_message(path))
    except OSError as problem:
        raise CheckpointError(f"checkpoint {path} cannot be read: {problem.strerror}") from problem


def _sibling(prefix: Location, suffix: str) -> Location:
    return prefix.with_name(prefix.name + suffix)


def _indexes(directory: Location) -> list[Location]:
    """Returns the index files in a directory."""
    return [file for file in children(directory) if file.suffix == ".index" and file.is_file()]


def _modified_s(file: Location) -> float:
    if isinstance(file, RemotePath):
        return file.modified_s() or 0.0
    return file.stat().st_mtime


def _prefix_in_directory(directory: Location) -> Location:
    state = directory / STATE_FILE
    if state.is_file():
        return _prefix_from_state(state)
    indexes = [(_modified_s(file), file.name, file) for file in _indexes(directory)]
    if indexes:
        # Among equal times, the name decides. Names differ, so that no two files are compared.
        newest = max(indexes)[2]
        return newest.with_name(newest.stem)

    files = children(directory)
    _reject_other_formats(directory, files)
    variables = directory / "variables" / "variables"
    is_saved_model = (directory / "saved_model.pb").is_file()
    if is_saved_model and _sibling(variables, ".index").is_file():
        return variables
    raise CheckpointError(_absence_reason(directory, files))


def _reject_other_formats(directory: Location, files: Sequence[Location]) -> None:
    """Rejects the directory of a checkpoint that another program wrote.

    Raises:
      CheckpointError: The directory is a snapshot of PyTorch, or an Orbax checkpoint that
        `open_checkpoint` did not open.
    """
    if (directory / _SNAPSHOT_FILE).is_file():
        raise CheckpointError(f"{directory} is {_SNAPSHOT}")
    if any(file.name in ORBAX_PARTS for file in files):
        reason = "it holds no tree of arrays; give the directory of a step, or of all steps"
        if isinstance(directory, RemotePath):
            reason = "it is read from this machine's disks only; copy it there first"
        raise CheckpointError(f"{directory} is an Orbax checkpoint: {reason}")


def _absence_reason(directory: Location, files: Sequence[Location]) -> str:
    """Returns why a directory holds no checkpoint that is read here, and what to do.

    Raises:
      OSError: A file cannot be read.
    """
    for file in files:
        if file.name.endswith("_temp") and file.is_dir():
            return _unfinished_message(str(file)[: -len("_temp")])
    for file in files:
        is_keras = file.suffix in (".h5", ".hdf5", ".keras")
        is_foreign = is_keras or kind_by_name(file) or _FLAX_STEP.fullmatch(file.name)
        if is_foreign and file.is_file():
            return f"{directory} holds no checkpoint; {_kind_of(file)}"
    return f"directory {directory} holds no checkpoint: no file named `{STATE_FILE}` and no *.index"


def _prefix_from_state(state: Location) -> Location:
    """Returns the prefix that a state file names. A checkpoint that was moved with its directory is
    found beside the state file.
    """
    try:
        content = parse_text("CheckpointState", read_range(state, 0, STATE_BYTES_MAX))
        path = os.fsdecode(content.model_checkpoint_path)
    except Malformed:
        path = ""
    # Flax names its files `checkpoint`, too.
    if not path and _MSGPACK.match(read_range(state, 0, 8)):
        raise CheckpointError(f"{state} is {_FLAX}")
    if not path:
        raise CheckpointError(
            f"state file {state} names no model_checkpoint_path; give the checkpoint's prefix "
            "instead"
        )

    stated_prefix = state.parent / path
    if is_url(path):
        stated_prefix = location_of(path)
    for prefix in (stated_prefix, state.parent / stated_prefix.name):
        if _sibling(prefix, ".index").is_file():
            return prefix
        if prefix.is_file():
            raise CheckpointError(_kind_of(prefix))
        if _sibling(prefix, "_temp").is_dir():
            raise CheckpointError(_unfinished_message(str(prefix)))
    stems = sorted(file.stem for file in _indexes(state.parent))
    present = ", ".join(stems[-_PREFIXES_SHOWN:]) or "none"
    raise CheckpointError(
        f"state file {state} names {path!r}, which is not there (complete beside it: {present}); "
        "give a prefix"
    )


def _unfinished_message(prefix: str) -> str:
    return (
        f"checkpoint {prefix} is not complete: {Path(prefix).name}_temp is there, its .index is "
        "not, so it is being saved or the save was interrupted; wait for it, or take an older one"
    )


def _missing_message(path: Location) -> str:
    if _sibling(path, "_temp").is_dir():
        return _unfinished_message(str(path))
    if path.parent.is_dir():
        # TensorFlow writes the index last.
        if any(file.name.startswith(f"{path.name}.data-") for file in children(path.parent)):
            return (
                f"checkpoint {path} has data files but no {path.name}.index: the save or the "
                "copy did not finish"
            )
        stems = sorted(file.stem for file in _indexes(path.parent))
        if stems:
            present = ", ".join(stems[-_PREFIXES_SHOWN:])
            return f"checkpoint {path} does not exist; beside it: {present}"
        names = [file.name for file in children(path.parent)]
        matches = difflib.get_close_matches(path.name, names, n=1)
        suggestion = ""
        if matches:
            suggestion = f"; did you mean {matches[0]!r}?"
        return f"checkpoint {path} does not exist{suggestion}"
    return f"checkpoint {path} does not exist"


def kind_by_name(file: Location) -> str:
    """Returns what a file is, if its name alone shows it, and what to do; "" for any other file."""
    name = file.name
    if ".data-" in name:
        return f"a data file of a checkpoint; give its prefix, {name.split('.data-')[0]}"
    if file.suffix == ".meta":
        prefix = name.removesuffix(".meta")
        return f"the graph beside a checkpoint of TF1; give its prefix, {prefix}"
    if _DYNAMIC.fullmatch(name):
        return _DYNAMIC_KIND
    by_name = {
        _SNAPSHOT_FILE: f"a part of {_SNAPSHOT}",
        STATE_FILE: f"a state file; give its directory, {file.parent}",
        **dict.fromkeys(
            ORBAX_PARTS, f"a part of an Orbax checkpoint; give its directory, {file.parent}"
        ),
    }
    return by_name.get(name) or _BY_SUFFIX.get(file.suffix, "")


def _kind_of(file: Location) -> str:
    """Returns what a file is, by its name or its first and last bytes, and what to do.

    Raises:
      OSError: The file cannot be read.
    """
    head = read_range(file, 0, 8)
    tail = read_range(file, max(0, stamp_of(file).bytes - len(MAGIC)), len(MAGIC))
    # The name says more than the first bytes, which several programs share.
    kinds = [
        kind_by_name(file),
        *(kind for begins, kind in _BY_HEAD.items() if head.startswith(begins)),
    ]
    if _MSGPACK.match(head):
        kinds.append(_FLAX)
    if tail == MAGIC:
        kinds.append(
            "a V1 checkpoint (a Saver with write_version=V1), which is not read here; save it with "
            "a V2 Saver"
        )
    kind = next(filter(None, kinds), "no checkpoint; give a directory, a prefix or an .index file")
    return f"{file} is {kind}"

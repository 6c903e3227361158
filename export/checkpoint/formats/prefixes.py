"""Which checkpoint a path means; what is no V2 checkpoint is told by its name, with the way out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.other_files import STATE_FILE, is_orbax_part, told_by_ends, told_by_name
from export.checkpoint.formats.protos import parse_text
from export.errors import CheckpointError
from runtime.object_store import Place, RemotePath, is_url, located

STATE_BYTES_MAX = 16 << 20


def find_prefix(path: Place) -> Place:
    """Returns the prefix of the checkpoint that a path or a URL means.

    Args:
      path: a directory (the checkpoint that its state file names, else the newest), a prefix, or its `.index` file.
    Raises:
      CheckpointError: there is none, or it is of another kind; says which and what to do.
    """
    try:
        if path.is_dir():
            return _in_directory(path)
        if path.suffix == ".index" and path.is_file():
            return path.with_name(path.stem)
        if _beside(path, ".index").is_file():
            return path
        raise CheckpointError(told_by_ends(path) if path.is_file() else _missing(path))
    except OSError as problem:
        raise CheckpointError(f"checkpoint {path} cannot be read: {problem.strerror}") from problem


def _beside(prefix: Place, suffix: str) -> Place:
    return prefix.with_name(prefix.name + suffix)


def _indexes(directory: Place) -> list[Place]:
    """Returns the index files in a directory."""
    return [file for file in _within(directory) if file.suffix == ".index" and file.is_file()]


def _within(directory: Place) -> list[Place]:
    return sorted(directory.iterdir(), key=str)


def _modified(file: Place) -> Any:
    return file.modified() if isinstance(file, RemotePath) else file.stat().st_mtime_ns


def _head(file: Place) -> bytes:
    """Returns the first STATE_BYTES_MAX bytes of a file."""
    if isinstance(file, RemotePath):
        return file.read(0, min(STATE_BYTES_MAX, file.stamp().bytes))
    with file.open("rb") as stream:
        return stream.read(STATE_BYTES_MAX)


def _in_directory(directory: Place) -> Place:
    state = directory / STATE_FILE
    if state.is_file():
        return _from_state(state)
    indexes = [(_modified(file), file.name, file) for file in _indexes(directory)]
    if indexes:
        newest = max(indexes)[2]
        return newest.with_name(newest.stem)
    held = _within(directory)
    if any(is_orbax_part(file.name) for file in held):
        remote = "it is read from this machine's disks only; copy it there first"
        missing = "it holds no tree of arrays; give the directory of a step, or of all steps"
        raise CheckpointError(
            f"{directory} is an Orbax checkpoint: {remote if isinstance(directory, RemotePath) else missing}"
        )
    if (directory / "saved_model.pb").is_file() and (directory / "variables" / "variables.index").is_file():
        return directory / "variables" / "variables"
    for file in held:
        if file.name.endswith("_temp") and file.is_dir():
            raise CheckpointError(_unfinished(str(file)[: -len("_temp")]))
    for file in held:
        if (file.suffix in (".h5", ".hdf5", ".keras") or told_by_name(file)) and file.is_file():
            raise CheckpointError(f"{directory} holds no checkpoint; {told_by_ends(file)}")
    raise CheckpointError(f"directory {directory} holds no checkpoint: no file named `{STATE_FILE}` and no *.index")


def _from_state(state: Place) -> Place:
    """Returns the prefix that a state file names; one that was moved with its directory is found beside it."""
    try:
        named = os.fsdecode(parse_text("CheckpointState", _head(state)).model_checkpoint_path)
    except Malformed as problem:
        raise CheckpointError(f"state file {state}: {problem}; give the checkpoint's prefix instead") from problem
    if not named:
        raise CheckpointError(
            f"state file {state} names no model_checkpoint_path; give the checkpoint's prefix instead"
        )
    told = located(named) if is_url(named) else state.parent / named
    for prefix in (told, state.parent / told.name):
        if _beside(prefix, ".index").is_file():
            return prefix
        if prefix.is_file() or _beside(prefix, "_temp").is_dir():
            raise CheckpointError(told_by_ends(prefix) if prefix.is_file() else _unfinished(str(prefix)))
    present = ", ".join(sorted(file.stem for file in _indexes(state.parent))[-5:]) or "none"
    raise CheckpointError(
        f"state file {state} names {named!r}, which is not there (complete beside it: {present}); give a prefix"
    )


def _unfinished(prefix: str) -> str:
    return (
        f"checkpoint {prefix} is not complete: {Path(prefix).name}_temp is there, its .index is not, so it is being "
        "saved or the save was interrupted; wait for it, or take an older one"
    )


def _missing(path: Place) -> str:
    if _beside(path, "_temp").is_dir():
        return _unfinished(str(path))
    if path.parent.is_dir():
        if any(file.name.startswith(f"{path.name}.data-") for file in _within(path.parent)):
            return f"checkpoint {path} has data files but no {path.name}.index: the save or the copy did not finish"
        present = ", ".join(sorted(file.stem for file in _indexes(path.parent))[-5:])
        return f"checkpoint {path} does not exist" + (f"; beside it: {present}" if present else "")
    return f"checkpoint {path} does not exist"

"""The checkpoint that TensorFlow restores dense variables from: the original, or local files that replace it.

For a checkpoint in an object store, a local copy without its tables: TensorFlow restores from local files only. Its
data files are sparse: they have their full length and hold the dense variables at their offsets. Holes are never read:
no table is part of the model that is restored (`export/verify/reference_model.py`). With
moving averages, a separate index in which the entry of each variable is that of its average.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from export.checkpoint.datafiles import DataFiles, stamps_of
from export.checkpoint.formats.tensorbundle import data_file, write_index
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from runtime.object_store import RemotePath


def local_prefix(checkpoint: Checkpoint, inventory: Inventory, directory: Path) -> Path:
    """Returns a local prefix of a checkpoint: its own, or that of the files that replace it.

    Args:
      checkpoint: the open checkpoint.
      inventory: lists its dense variables.
      directory: where files are written; created if needed.
    Raises:
      CheckpointError: the checkpoint cannot be read.
      OSError: the copy cannot be written.
    """
    prefix = checkpoint.prefix
    if isinstance(prefix, RemotePath):
        prefix = _copied(checkpoint, prefix, inventory, directory)
    return _averaged(checkpoint, directory) if checkpoint.storage.averages else prefix


def _copied(
    checkpoint: Checkpoint, prefix: RemotePath, inventory: Inventory, directory: Path
) -> Path:
    directory.mkdir(exist_ok=True)
    index = prefix.with_name(f"{prefix.name}.index")
    (directory / index.name).write_bytes(index.read(0, index.stamp().bytes))
    dense = {entry.key for entry in inventory.dense}
    dense |= {average for key, average in checkpoint.storage.averages.items() if key in dense}
    entries = [
        entry
        for entry in checkpoint.entries.values()
        if entry.key in dense or entry.dtype == "string"
    ]
    slices = [part for entry in entries for part in entry.slices]
    with DataFiles(stamps_of(slices)) as files:
        for part in sorted(slices, key=lambda part: (part.file, part.offset)):
            local = directory / RemotePath(part.file).name
            data = np.empty(part.bytes, np.uint8)
            files.read_into(part.file, part.offset, data)
            with local.open("r+b" if local.exists() else "w+b") as file:
                file.seek(part.offset)
                file.write(data.data)
    return directory / prefix.name


def _averaged(checkpoint: Checkpoint, directory: Path) -> Path:
    """Writes an index in which variables have the entries of their averages, with links to the data files."""
    directory.mkdir(exist_ok=True)
    remote = isinstance(checkpoint.prefix, RemotePath)
    averages = checkpoint.storage.averages
    entries = {
        key: checkpoint.entries[averages.get(key, key)]
        for key, entry in checkpoint.entries.items()
        if all(part.crc32c is not None for part in entry.slices)  # a dumped table has none
    }
    files = sorted({part.file for entry in entries.values() for part in entry.slices})
    prefix = directory / "averages"
    links = {file: data_file(prefix, number, len(files)) for number, file in enumerate(files)}
    for file, link in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(directory / RemotePath(file).name if remote else Path(file).absolute())
    placed = {
        key: entry._replace(
            slices=tuple(part._replace(file=str(links[part.file])) for part in entry.slices)
        )
        for key, entry in entries.items()
    }
    write_index(prefix, placed, len(files))
    return prefix

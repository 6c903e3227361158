"""The checkpoint that TensorFlow restores dense variables from: the original, or local files that
replace it.

TensorFlow restores from local files only. For a checkpoint in an object store, that is a local copy
of everything that the reference model may restore (`reference/model.py`): all
variables except the tables that left the towers, tables that are too large to be restored, and slot
variables. The data files of the copy are sparse: they hold these variables at their offsets, and
gaps instead of all other ones. With moving averages, a separate index is written in which the entry
of each variable is that of its average.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from export.checkpoint.datafiles import DataFiles, stamps_of
from export.checkpoint.formats.tensorbundle import data_file, write_index
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.front_end.specs import ModelSpec
from export.graphs.placeholders import FIRST_VALUE_BYTES
from export.recipe.schema import ExportJob
from object_store.remote_path import RemotePath


def local_prefix(
    checkpoint: Checkpoint, inventory: Inventory, model: ModelSpec, job: ExportJob, directory: Path
) -> Path:
    """Returns a local prefix of a checkpoint: its own, or that of the files that replace it.

    Args:
      checkpoint: The open checkpoint.
      inventory: What it holds.
      model: The traced model; its tables left the towers.
      job: The recipe.
      directory: Where files are written; created if needed.

    Raises:
      CheckpointError: The checkpoint cannot be read.
      OSError: The copy cannot be written.
    """
    prefix = checkpoint.prefix
    if checkpoint.storage.kind != "TensorFlow":
        # TensorFlow cannot restore it; nothing reads these files.
        return Path(str(prefix))
    if isinstance(prefix, RemotePath):
        absent = _never_restored(checkpoint, inventory, model, restored_bytes_max(job, model))
        prefix = _copied(checkpoint, prefix, absent, directory)
    if checkpoint.storage.averages:
        return _averaged(checkpoint, directory)
    return prefix


def restored_bytes_max(job: ExportJob, model: ModelSpec) -> int:
    """Returns the size of the largest table that may be inside a tower and is restored whole."""
    largest = max((tower.largest_bytes for tower in model.towers.values()), default=0)
    return max(job.code.inline_bytes_max, largest)


def _never_restored(
    checkpoint: Checkpoint, inventory: Inventory, model: ModelSpec, bytes_max: int
) -> set[str]:
    """Returns the keys of the variables that TensorFlow does not read for the reference model."""
    extracted = {table.key for table in inventory.tables if table.name in model.tables}
    extracted |= {
        duplicate.key for duplicate in inventory.duplicates if duplicate.original_key in extracted
    }
    slots = {slot.key for slot in inventory.slots}

    # Until the model is built, matrices up to FIRST_VALUE_BYTES are restored whatever the recipe
    # says.
    bytes_max = max(bytes_max, FIRST_VALUE_BYTES)
    other_tables = {table.key for table in inventory.tables}
    other_tables |= {rejected.key for rejected in inventory.rejected}
    other_tables |= {duplicate.key for duplicate in inventory.duplicates}
    too_large = {
        key
        for key in other_tables & checkpoint.entries.keys()
        if checkpoint.entries[key].bytes > bytes_max
    }
    return extracted | slots | too_large


def _copied(checkpoint: Checkpoint, prefix: RemotePath, absent: set[str], directory: Path) -> Path:
    """Copies the index and the variables that are not absent; returns the prefix of the copy."""
    directory.mkdir(exist_ok=True)
    index = prefix.with_name(f"{prefix.name}.index")
    content = index.read(0, index.stamp().bytes)
    (directory / index.name).write_bytes(content)

    averages = checkpoint.storage.averages
    copied = {key for key in checkpoint.entries if key not in absent}
    copied |= {averages[key] for key in copied if key in averages}
    entries = [checkpoint.entries[key] for key in sorted(copied)]
    slices = [part for entry in entries for part in entry.slices]
    with DataFiles(stamps_of(slices)) as files:
        # In the order of the file, so that it is read forwards.
        for part in sorted(slices, key=lambda part: (part.file, part.offset)):
            local = directory / RemotePath(part.file).name
            data = np.empty(part.bytes, np.uint8)
            files.read_into(part.file, part.offset, data)
            local.touch()
            # Written at the offset of the original: the index of the copy is the original's.
            with local.open("r+b") as file:
                file.seek(part.offset)
                file.write(data.data)
    return directory / prefix.name


def _averaged(checkpoint: Checkpoint, directory: Path) -> Path:
    """Writes an index in which variables have the entries of their averages, with links to the data
    files.
    """
    directory.mkdir(exist_ok=True)
    remote = isinstance(checkpoint.prefix, RemotePath)
    averages = checkpoint.storage.averages
    entries = {
        key: checkpoint.entries[averages.get(key, key)]
        for key, entry in checkpoint.entries.items()
        # A dumped table has no checksums.
        if all(part.crc32c is not None for part in entry.slices)
    }
    files = sorted({part.file for entry in entries.values() for part in entry.slices})

    prefix = directory / "averages"
    links = {file: data_file(prefix, number, len(files)) for number, file in enumerate(files)}
    for file, link in links.items():
        target = Path(file).absolute()
        if remote:
            target = directory / RemotePath(file).name
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    linked_entries = {}
    for key, entry in entries.items():
        slices = [part._replace(file=str(links[part.file])) for part in entry.slices]
        linked_entries[key] = entry._replace(slices=tuple(slices))
    write_index(prefix, linked_entries, len(files))
    return prefix

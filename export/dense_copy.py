"""A local copy of a checkpoint in a store, without its tables: for TensorFlow, which restores from local files only.

Its data files have their full length and hold the dense variables at their places; what was not copied is a hole that
takes no disk. Holes are never read: no table is part of the model that is restored (`export/oracle/original.py`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from export.checkpoint.datafiles import DataFiles, stamps_of
from export.checkpoint.reader import Checkpoint
from export.checkpoint.specs import Inventory
from runtime.remote import RemotePath


def local_prefix(checkpoint: Checkpoint, inventory: Inventory, directory: Path) -> Path:
    """Returns the prefix of a checkpoint on this machine: its own, or that of a copy without tables.

    Args:
      checkpoint: open.
      inventory: tells which of its variables are dense.
      directory: of the copy; made if it is needed.
    Raises:
      CheckpointError: the checkpoint cannot be read.
      OSError: the copy cannot be written.
    """
    prefix = checkpoint.prefix
    if not isinstance(prefix, RemotePath):
        return prefix
    directory.mkdir(exist_ok=True)
    index = prefix.with_name(f"{prefix.name}.index")
    (directory / index.name).write_bytes(index.read(0, index.stamp().bytes))
    dense = {entry.key for entry in inventory.dense}
    entries = [entry for entry in checkpoint.entries.values() if entry.key in dense or entry.dtype == "string"]
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

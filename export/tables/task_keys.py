"""Whether what a table task wrote in an earlier run is what it would write now. Contents decide,
and never the time, the inode or the place of a data file.

A slice of a TensorBundle has a crc32c in the checkpoint's index, which is part of the task's key:
nothing is read, and a checkpoint that was moved or mounted elsewhere is the same. HDF5, dumps and
arrays have no such checksum. There, a task sums what it reads while it reads it, and its receipt
holds the sums. A resumed run reads the same bytes again and compares: the content that counts is
what the task saw, not what the file held when it was opened.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from export.checkpoint.variables import Slice
from export.steps import StepKey
from export.tables.segments import Receipt, is_written, read_sources
from export.tables.tasks import SumTask, TableTask


def task_key(task: TableTask | SumTask) -> StepKey:
    """Returns all that decides what a task writes, except contents of which the checkpoint has no
    checksum.
    """
    # Left out is what changes no byte of the result: sizes of reads, and paths of this machine.
    chunk = None
    plain = replace(task, slices=(), block_bytes=0)
    if isinstance(plain, TableTask):
        if plain.array is not None:
            chunk = plain.array.chunk
        # Whichever older version it is compared with, the segment has the same bytes.
        plain = replace(plain, older=None, older_scales=None)
        plain = replace(plain, array=None, directory="", attempts=None)

    inputs = {"task": plain, "chunk": chunk}
    return StepKey(task.step, inputs, content=[_content(part) for part in task.slices])


def is_current(task: TableTask | SumTask, receipt: Receipt) -> bool:
    """Returns whether the storage still holds the bytes that a task read, and a file that several
    tasks fill those that it wrote. Reads them again where no checksum of them is known.

    Args:
      task: A task whose key is the one that it was finished under.
      receipt: The receipt that the task returned.

    Raises:
      CheckpointError: A data file is gone, cut short or cannot be read.
    """
    array = None
    if isinstance(task, TableTask):
        array = task.array
        # The journal vouches for whole files alone.
        shared = None
        if task.offset is not None:
            shared = receipt.segment
        if shared is not None and not is_written(task, shared):
            return False
    # The key of the task holds these checksums, so that it would be another key otherwise.
    if array is None and all(part.crc32c is not None for part in task.slices):
        return True
    read = sorted(receipt.sources, key=lambda source: (source.file, source.slice_offset))
    return tuple(read) == read_sources(task)


def _content(part: Slice) -> list[Any]:
    # The name of the file and the offset are how receipts name a slice.
    return [Path(part.file).name, part.offset, part.bytes, part.crc32c, part.starts, part.shape]

"""Decides whether a table task would write now what it wrote in an earlier run. Contents decide,
and never the time, the inode or the path of a data file.

A slice of a TensorBundle has a crc32c in the checkpoint's index, which is part of the task's key:
nothing is read, and a checkpoint that was moved or mounted elsewhere is the same. HDF5, dumps and
arrays have no such checksum. There, a task sums what it reads while it reads it, and its receipt
holds the sums. A resumed run reads the same bytes again and compares: the content that counts is
what the task saw, not what the file held when it was opened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from export.tables.segments import Receipt, is_written, read_sources
from export.tables.tasks import SumTask, TableTask


@dataclass(frozen=True)
class KeyedTask:
    """A task, as the input of its step."""

    task: TableTask | SumTask

    def key_parts(self) -> Any:
        """Returns all that decides what the task writes, except contents of which the checkpoint
        has no checksum.
        """
        # Sizes of reads and paths of this machine are left out: they change no byte of the result.
        chunk = None
        plain_task = replace(self.task, block_bytes=0)
        if isinstance(plain_task, TableTask):
            if plain_task.array is not None:
                chunk = plain_task.array.chunk
            # Whichever older version it is compared with, the segment has the same bytes.
            plain_task = replace(plain_task, older=None, older_scales=None)
            plain_task = replace(plain_task, array=None, directory="", attempts=None)
        return [plain_task, chunk]


def is_current(task: TableTask | SumTask, receipt: Receipt) -> bool:
    """Returns whether the storage still holds the bytes that a task read, and a file that several
    tasks fill those that the task wrote. Reads bytes again where no checksum of them is known.

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
        shared_segment = None
        if task.offset is not None:
            shared_segment = receipt.segment
        if shared_segment is not None and not is_written(task, shared_segment):
            return False
    # The key of the task holds these checksums, so that it would be another key otherwise.
    if array is None and all(part.crc32c is not None for part in task.slices):
        return True
    recorded_sums = sorted(receipt.sources, key=lambda source: (source.file, source.slice_offset))
    return tuple(recorded_sums) == read_sources(task)

"""Decides which tables need their array decoded first, and plans the tasks that decode it.

A chunk of an array is decoded as a whole, by one task and once, whatever the table's layout. Where
segments of a table end with chunks, the task of a segment decodes those of its rows. Where they do
not (the rows of a SparseCore stack are dealt to all devices, and the chunk of each device holds
rows of every segment), the array is unpacked first: tasks of whole chunks write its rows to files
in the staging directory, and the table's tasks read these files as they read a checkpoint's slices.
The files stay until the bundle is published, so that a resumed run decodes nothing again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bundle.tables import segments
from export.checkpoint.formats.arrays import absent_chunks
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layouts import Plain
from export.checkpoint.variables import ArrayStore, Entry, Slice
from export.errors import CheckpointError
from export.tables.tasks import SumTask, TableTask, block_bytes

_BYTES = "int8"
"""Dtype of rows that are written as they are stored, whatever they hold."""


def check_whole(table: str, array: ArrayStore) -> None:
    """Rejects an array that lacks chunks.

    Raises:
      CheckpointError: The array lacks chunks; names the table.
    """
    if array.absent:
        raise CheckpointError(f"table {table!r}: {absent_chunks(array)}")


def cuts_chunks(spec: TableSpec, array: ArrayStore, segment_rows: int | None) -> bool:
    """Returns whether chunks of an array hold rows of several segments of a table; `segment_rows`:
    the rows of a segment that the options state.
    """
    if not isinstance(spec.layout, Plain):
        return spec.layout.lanes > 1
    chunk_rows = array.chunk[0]
    rows = segment_rows or spec.rows
    return rows < spec.rows and rows % chunk_rows > 0


def whole_chunks(rows_max: int, array: ArrayStore) -> int:
    """Returns how many rows a segment holds, so that it ends with a chunk: `rows_max`, or fewer,
    but at least those of one chunk.
    """
    chunk_rows = array.chunk[0]
    return max(chunk_rows, rows_max - rows_max % chunk_rows)


def unpack(
    entry: Entry, number: int, directory: Path, budget_bytes: int
) -> tuple[Entry, tuple[TableTask, ...]]:
    """Plans the decoding of an array into files.

    Args:
      entry: The array.
      number: The number of the array among the unpacked arrays of a plan.
      directory: The directory where bundle paths begin.
      budget_bytes: Memory that one worker may hold beyond its libraries.

    Returns:
      The variable as it lies in the files, and the tasks that write them.
    """
    array = entry.array
    assert array is not None  # noqa: S101
    row_bytes = entry.shape[1] * entry.itemsize
    rows_max = whole_chunks(segments.segment_rows(row_bytes), array)
    slices = []
    tasks = []
    for segment_number, part in enumerate(segments.cut(entry.shape[0], rows_max)):
        file = f"unpacked/{number:05d}/rows-{segment_number:05d}.bin"
        shape = (part.rows, entry.shape[1])
        path = str(directory / file)
        # The crc32c is known only once the file is written: `with_sums` adds it then.
        slices.append(Slice(path, 0, part.rows * row_bytes, None, (part.first, 0), shape))
        tasks.append(
            TableTask(
                table="",
                dim=row_bytes,
                key=entry.key,
                dtype=_BYTES,
                first_row=part.first,
                rows=part.rows,
                layout=Plain(),
                stored=(entry.shape[0], row_bytes),
                slices=(),
                array=array,
                written_dtype=_BYTES,
                directory=str(directory),
                file=file,
                block_bytes=block_bytes(1, budget_bytes),
            )
        )
    return entry._replace(slices=tuple(slices), array=None), tuple(tasks)


def with_sums(
    tasks: Sequence[TableTask | SumTask], crcs: Mapping[str, int]
) -> list[TableTask | SumTask]:
    """Returns tasks whose slices in unpacked files have the crc32c of these files.

    Args:
      tasks: The tasks.
      crcs: crc32c by the path of a file.
    """
    return [
        replace(
            task,
            slices=tuple(
                part._replace(crc32c=crcs.get(part.file, part.crc32c)) for part in task.slices
            ),
        )
        for task in tasks
    ]

"""Arrow IPC files: opened memory-mapped and checked whole. pyarrow is imported on first use."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bundle.errors import DigestMismatch, FormatError
from bundle.text_arrays import text_array


def write(path: Path, table: Any) -> None:
    """Writes a `pyarrow.Table` as one record batch, so that a mapped column is contiguous."""
    import pyarrow as pa

    path.parent.mkdir(parents=True, exist_ok=True)
    batches = table.combine_chunks().to_batches()
    # A table without rows has no batch; readers expect one.
    if not batches:
        batches = [pa.RecordBatch.from_pylist([], schema=table.schema)]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def open_trusted(path: Path) -> tuple[Any, Callable[[], None]]:
    """Maps an Arrow IPC file that this program wrote, whose content is not checked.

    Returns:
      A `pyarrow.Table`, and a function that drops the pages that were read from memory.

    Raises:
      DigestMismatch: The file is missing.
      FormatError: It is no Arrow IPC file.
    """
    import pyarrow as pa

    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        table = pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
    except FileNotFoundError as problem:
        raise DigestMismatch(f"file {path.name!r} is missing; copy the bundle again") from problem
    # ValueError: an empty file, or names that are no UTF-8.
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise FormatError(f"file {path.name!r} is no sound Arrow IPC file: {problem}") from problem
    return table, lambda: mapped.madvise(mmap.MADV_DONTNEED)


def open_mapped(path: Path) -> Any:
    """Maps an Arrow IPC file and checks all of it, so that no later read leaves its buffers.

    Returns:
      A `pyarrow.Table`.

    Raises:
      DigestMismatch: The file is missing.
      FormatError: It is no Arrow IPC file, or one that contradicts itself.
    """
    import pyarrow as pa

    table, _ = open_trusted(path)
    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as problem:
        raise FormatError(f"file {path.name!r} is no sound Arrow IPC file: {problem}") from problem
    return table


def column(table: Any, name: str, where: str) -> Any:
    """Returns one column.

    Raises:
      FormatError: The table has no such column, or two; `where` names the file.
    """
    # Arrow allows several columns of one name.
    indices = table.schema.get_all_field_indices(name)
    if len(indices) != 1:
        raise FormatError(
            f"{where} has {len(indices)} columns {name!r}, one was expected; it has "
            f"{table.column_names}"
        )
    return table.column(indices[0])


def kind_of(arrow_type: Any) -> str:
    """Returns the type's name in the manifest; without the width of offsets and the
    names of items.
    """
    import pyarrow as pa

    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return f"list<{kind_of(arrow_type.value_type)}>"
    return str(arrow_type).removeprefix("large_")


def values(stored: Any) -> NDArray[Any]:
    """Returns the values of an Arrow array without nulls: [m] object holding str, or a view of [m]
    numbers.
    """
    import pyarrow as pa

    # Not by its name: pyarrow writes that anew each time.
    if pa.types.is_large_string(stored.type) or pa.types.is_string(stored.type):
        return text_array(stored.to_pylist())
    numbers: NDArray[Any] = stored.to_numpy()
    return numbers

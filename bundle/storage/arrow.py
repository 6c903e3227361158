"""Arrow IPC files: written as one batch, opened memory-mapped and checked whole. pyarrow is imported on first use."""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import DigestMismatch, FormatError

_PIECE_BYTES = 8 << 20


def write(path: Path, table: Any) -> None:
    """Writes a `pyarrow.Table` as one record batch, so that every column lies in one piece when mapped."""
    import pyarrow as pa

    path.parent.mkdir(parents=True, exist_ok=True)
    batches = table.combine_chunks().to_batches()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in batches or [pa.RecordBatch.from_pylist([], schema=table.schema)]:
            writer.write_batch(batch)


def write_mapped(path: Path, batch: Any, release: Callable[[], None]) -> None:
    """Writes one `pyarrow.RecordBatch` whose columns are mapped from files, without holding them in memory.

    Args:
      path: of the Arrow IPC file.
      batch: of any size.
      release: lets go of the pages of the maps; called every few MiB.
    """
    import pyarrow as pa

    with path.open("wb", buffering=0) as file:
        sink = pa.PythonFile(_Sink(file, release), "w")
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)


class _Sink(io.RawIOBase):
    """What pyarrow writes whole columns to; it hands them over as they are, without a copy."""

    def __init__(self, file: io.RawIOBase, release: Callable[[], None]) -> None:
        self._file, self._release = file, release

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            left = left[self._file.write(left[:_PIECE_BYTES]) :]
            if size > _PIECE_BYTES:
                self._release()
        return size


def open_streamed(path: Path) -> tuple[Any, Callable[[], None]]:
    """Maps an Arrow IPC file that this program wrote, whose content is not checked.

    Returns:
      A `pyarrow.Table`, each column in one piece, and what lets go of the pages that were read.
    Raises:
      DigestMismatch: the file is missing.
      FormatError: it is no Arrow IPC file.
    """
    import pyarrow as pa

    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        table = pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
    except FileNotFoundError as problem:
        raise DigestMismatch(f"file {path.name!r} is missing; copy the bundle again") from problem
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise FormatError(f"file {path.name!r} is no sound Arrow IPC file: {problem}") from problem
    return table, lambda: mapped.madvise(mmap.MADV_DONTNEED)


def open_mapped(path: Path) -> Any:
    """Maps an Arrow IPC file and checks all of it, so that no later read leaves its buffers.

    Returns:
      A `pyarrow.Table`, each column in one piece.
    Raises:
      DigestMismatch: the file is missing.
      FormatError: it is no Arrow IPC file, or one that contradicts itself.
    """
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(pa.memory_map(str(path), "rb")).read_all()
        table.validate(full=True)
        return table.combine_chunks()
    except FileNotFoundError as problem:
        raise DigestMismatch(f"file {path.name!r} is missing; copy the bundle again") from problem
    except (pa.ArrowException, OSError, ValueError) as problem:  # ValueError: names that are no UTF-8
        raise FormatError(f"file {path.name!r} is no sound Arrow IPC file: {problem}") from problem


def column(table: Any, name: str, where: str) -> Any:
    """Returns one column as a single `pyarrow.Array`.

    Raises:
      FormatError: the table has no such column, or two; `where` names the file.
    """
    found = table.schema.get_all_field_indices(name)
    if len(found) != 1:
        raise FormatError(f"{where} has {len(found)} columns {name!r}, one was expected; it has {table.column_names}")
    chunked = table.column(found[0])
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def kind_of(arrow_type: Any) -> str:
    """Returns the type's name in the manifest; the width of offsets and the names of items are not told."""
    import pyarrow as pa

    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return f"list<{kind_of(arrow_type.value_type)}>"
    return str(arrow_type).removeprefix("large_")


def taken(values: Any, positions: NDArray[np.int64]) -> Any:
    """Copies what a `pyarrow.Array` has at [m] positions, none of which lies outside.

    As its own `take`, whose module of all functions takes 40 ms to import, in each process.
    """
    import pyarrow as pa
    from pyarrow._compute import call_function

    return call_function("take", [values, pa.array(positions)])


def items(lists: Any) -> Any:
    """Views the items of a `pyarrow.FixedSizeListArray`, those of lists that are null left out.

    As its own `flatten`, which imports that module, too.
    """
    if lists.null_count:
        return lists.flatten()
    size = lists.type.list_size
    return lists.values.slice(lists.offset * size, len(lists) * size)


def integers(values: Any) -> NDArray[np.int64]:
    """Views an Arrow int64 array without nulls as [m] int64, without a copy."""
    result: NDArray[np.int64] = values.to_numpy(zero_copy_only=True)
    return result


def texts(values: Any) -> NDArray[Any]:
    """Copies an Arrow string array without nulls to [m] object holding str."""
    result = np.empty(len(values), object)
    result[:] = values.to_pylist()
    return result

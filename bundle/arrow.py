"""Arrow IPC files: written as one batch, opened memory-mapped and checked whole. pyarrow is imported on first use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import DigestMismatch, FormatError


def write(path: Path, table: Any) -> None:
    """Writes a `pyarrow.Table` as one record batch, so that every column lies in one piece when mapped."""
    import pyarrow as pa

    path.parent.mkdir(parents=True, exist_ok=True)
    batches = table.combine_chunks().to_batches()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in batches or [pa.RecordBatch.from_pylist([], schema=table.schema)]:
            writer.write_batch(batch)


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


def integers(values: Any) -> NDArray[np.int64]:
    """Views an Arrow int64 array without nulls as [m] int64, without a copy."""
    result: NDArray[np.int64] = values.to_numpy(zero_copy_only=True)
    return result


def texts(values: Any) -> NDArray[Any]:
    """Copies an Arrow string array without nulls to [m] object holding str."""
    result = np.empty(len(values), object)
    result[:] = values.to_pylist()
    return result

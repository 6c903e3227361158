"""Lists of candidates by segment, such as the popular ones of each country: an Arrow IPC file with
the columns `id` and `segment`, in the order of the lists.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormatError
from bundle.format.manifest import CandidateList
from bundle.storage import arrow

Ids = NDArray[Any]

_ID = "id"
_SEGMENT = "segment"


def write_list(path: Path, ids: Any, segments: Any) -> None:
    """Writes a list.

    Args:
      path: The file.
      ids: A `pyarrow.Array` of integers or strings, best first in each segment.
      segments: A `pyarrow.Array` of the segment of each, strings.

    Raises:
      OSError: The file cannot be written.
    """
    import pyarrow as pa

    arrow.write(path, pa.table({_ID: ids, _SEGMENT: segments.cast(pa.large_string())}))


def read_list(path: Path, entry: CandidateList, id_dtype: str) -> dict[str, Ids]:
    """Reads a list, and compares it with the manifest.

    Args:
      path: The file.
      entry: The manifest entry of the list.
      id_dtype: The type of the ids of its corpus: int64 or string.

    Returns:
      [m] int64, or [m] object holding str, by segment.

    Raises:
      DigestMismatch: The file is missing.
      FormatError: It is no sound Arrow IPC file, or not what the manifest says.
    """
    table = arrow.open_mapped(path)
    where = f"list {path.name!r}"
    if table.num_rows != entry.size:
        raise FormatError(f"{where} has {table.num_rows} rows, the manifest says {entry.size}")
    ids = arrow.column(table, _ID, where)
    segments = arrow.column(table, _SEGMENT, where)
    kinds = arrow.kind_of(ids.type), arrow.kind_of(segments.type)
    if kinds != (id_dtype, "string") or ids.null_count or segments.null_count:
        raise FormatError(
            f"{where} has ids of {kinds[0]} and segments of {kinds[1]}, with "
            f"{ids.null_count + segments.null_count} nulls; {id_dtype} and string without nulls "
            "were expected"
        )
    values = arrow.values(ids)
    rows: dict[str, list[int]] = {}
    for row, segment in enumerate(segments.to_pylist()):
        rows.setdefault(segment, []).append(row)
    if entry.default not in rows:
        raise FormatError(f"{where} has no segment {entry.default!r}, its default")
    return {segment: values[np.array(numbers)] for segment, numbers in rows.items()}

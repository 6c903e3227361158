"""Tables of a bundle, written into segments by the real writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.format.manifest import Segment, Table, TableError, TableSource
from bundle.tables.segment_writer import SegmentWriter


def write_table(
    directory: Path, name: str, stored: NDArray[Any], dtype: Any, cuts: Sequence[int]
) -> Table:
    """Writes a table as it is stored.

    Args:
      directory: The directory of the bundle.
      name: The name of the table.
      stored: [rows, dim] of the stored dtype.
      dtype: The dtype that the manifest states.
      cuts: The rows at which a further segment begins.
    """
    rows, dim = stored.shape
    segments = _write_segments(directory, stored, cuts, partial(paths.table_segment, name))
    return Table(rows=rows, dim=dim, dtype=dtype, segments=segments, source=_plain_source(name))


def write_int8_table(
    directory: Path,
    name: str,
    rows: NDArray[Any],
    cuts: Sequence[int],
    scale_cuts: Sequence[int],
) -> Table:
    """Converts [rows, dim] float32 to int8 rows with scales, and writes both."""
    scales = (np.abs(rows).max(axis=1) / 127).astype("<f4")
    stored = np.rint(rows / scales[:, np.newaxis]).astype(np.int8)
    served = stored * scales[:, np.newaxis]
    products = (rows * served).sum(axis=1)
    cosines = products / np.linalg.norm(rows, axis=1) / np.linalg.norm(served, axis=1)
    return Table(
        rows=len(rows),
        dim=rows.shape[1],
        dtype="int8",
        segments=_write_segments(directory, stored, cuts, partial(paths.table_segment, name)),
        scales=_write_segments(directory, scales, scale_cuts, partial(paths.table_scales, name)),
        error=TableError(
            source_dtype="float32",
            max_abs=float(np.abs(rows - served).max()),
            rms=float(np.sqrt(np.square(rows - served).mean())),
            cosine_min=float(cosines.min()),
            cosine_mean=float(cosines.mean()),
        ),
        source=_plain_source(name),
    )


def write_floats(
    directory: Path, name: str, rows: NDArray[np.float32], dtype: str, cuts: Sequence[int]
) -> Table:
    """Converts [rows, dim] float32 by NumPy and ml_dtypes, and writes them."""
    if dtype == "int8":
        return write_int8_table(directory, name, rows, cuts, cuts)
    stored: NDArray[Any] = rows
    if dtype == "float16":
        stored = rows.astype("<f2")
    elif dtype == "bfloat16":
        stored = rows.astype(ml_dtypes.bfloat16).view("<u2")
    return write_table(directory, name, stored, dtype, cuts)


def write_linked_table(
    directory: Path, name: str, rows: NDArray[Any], cuts: Sequence[int]
) -> Table:
    """Writes [rows, dim] float32 as they lie in a checkpoint: amid other bytes of one file."""
    before = b"\xff" * 13
    after = b"\xff" * 6
    file = paths.table_segment(name, 0, 1)
    segments = []
    first = 0
    offset = len(before)
    with SegmentWriter(directory / file) as writer:
        writer.write(before)
        for end in [*cuts, len(rows)]:
            data = np.ascontiguousarray(rows[first:end]).tobytes()
            writer.write(data + after)
            segments.append(
                Segment(
                    file=file,
                    offset=offset,
                    first_row=first,
                    rows=end - first,
                    crc32c=crc32c(data),
                    blocks=(),
                )
            )
            offset += len(data) + len(after)
            first = end
    return Table(
        rows=len(rows),
        dim=rows.shape[1],
        dtype="float32",
        segments=tuple(segments),
        source=_plain_source(name),
    )


def _plain_source(table: str) -> TableSource:
    return TableSource(layout="plain", key=f"model/{table}")


def _write_segments(
    directory: Path,
    stored: NDArray[Any],
    cuts: Sequence[int],
    file_of: Callable[[int, int], str],
) -> tuple[Segment, ...]:
    ends = [*cuts, len(stored)]
    segments = []
    first = 0
    for number, end in enumerate(ends):
        file = file_of(number, len(ends))
        with SegmentWriter(directory / file) as writer:
            writer.write(np.ascontiguousarray(stored[first:end]).tobytes())
        digest = writer.close()
        segments.append(
            Segment(
                file=file,
                first_row=first,
                rows=end - first,
                crc32c=digest.crc32c,
                blocks=digest.blocks,
            )
        )
        first = end
    return tuple(segments)

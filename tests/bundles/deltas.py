"""Deltas of segments, and bundles with such segments, written by the real writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.format.tables import DELTAS_MAX, Delta, Segment
from bundle.tables.row_deltas import RANGE_ROWS, DeltaWriter


def with_delta(
    root: Path, segment: Segment, rows: NDArray[np.int64], stored: NDArray[Any], result: int
) -> Segment:
    """Writes a further delta of a segment, and returns the segment with it.

    Args:
      root: The directory of the bundle.
      segment: The segment.
      rows: [n] int64, the rows of the segment that have changed, ascending; at least one.
      stored: [n, ...], these rows as they are stored.
      result: The crc32c of the segment's bytes with the delta.
    """
    raw = np.ascontiguousarray(stored).view(np.uint8).reshape(rows.size, -1)
    # Segments may share a file, and their deltas do not.
    file = paths.delta(segment.file, DELTAS_MAX * segment.first_row + len(segment.deltas) + 1)
    with DeltaWriter(root / file, raw.shape[1], segment.rows, segment.result) as writer:
        for begin in range(0, segment.rows, RANGE_ROWS):
            in_range = (rows >= begin) & (rows < begin + RANGE_ROWS)
            writer.add(rows[in_range], raw[in_range])
        digest = writer.close(result)
    delta = Delta(
        file=file,
        rows=rows.size,
        bytes=digest.bytes,
        crc32c=digest.crc32c,
        blocks=digest.blocks,
        result=result,
    )
    return segment.model_copy(update={"deltas": (*segment.deltas, delta)})


def with_history(
    root: Path,
    segment: Segment,
    stored: NDArray[Any],
    changes: Sequence[NDArray[np.int64]],
) -> tuple[Segment, NDArray[Any]]:
    """Writes deltas of a segment whose last ones give it its rows.

    Args:
      stored: [rows, ...] what the segment holds with all deltas.
      changes: The rows of each delta, ascending.

    Returns:
      The segment with its checksum and its deltas, and what its file has to hold: other bytes in
      changed rows.
    """
    # From the last delta back: what lies below it has other bytes in its rows.
    contents = [stored]
    for rows in reversed(changes):
        below = contents[0].copy()
        below[rows] = _changed(below[rows])
        contents.insert(0, below)
    base = contents[0]
    segment = segment.model_copy(update={"crc32c": crc32c(base.tobytes())})
    for rows, content in zip(changes, contents[1:], strict=True):
        checksum = crc32c(content.tobytes())
        segment = with_delta(root, segment, rows, content[rows], checksum)
    return segment, base


def _changed(stored: NDArray[Any]) -> NDArray[Any]:
    """Returns rows that differ in every byte, also if they are changed again."""
    raw = np.ascontiguousarray(stored).view(np.uint8)
    changed: NDArray[Any] = (raw + np.uint8(85)).view(stored.dtype)
    return changed

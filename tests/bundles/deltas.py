"""Deltas of segments, written by the real writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.tables import Delta, Segment
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
    file = f"{segment.file}-{segment.first_row}.delta-{len(segment.deltas) + 1}"
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
    """Writes deltas of a segment whose last ones give it its rows; checksums count up from 1.

    Args:
      stored: [rows, ...] what the segment holds with all deltas.
      changes: The rows of each delta, ascending.

    Returns:
      The segment with its deltas, and what its file has to hold: other bytes in changed rows.
    """
    older = stored.copy()
    for number, rows in enumerate(changes, 1):
        changed = stored[rows]
        replaced_later = np.isin(rows, np.concatenate([rows[:0], *changes[number:]]))
        changed[replaced_later] = _other(changed[replaced_later])
        segment = with_delta(root, segment, rows, changed, number)
        older[rows] = _other(stored[rows])
    return segment, older


def _other(stored: NDArray[Any]) -> NDArray[Any]:
    """Returns rows that differ in every byte."""
    raw = np.ascontiguousarray(stored).view(np.uint8)
    other: NDArray[Any] = (~raw).view(stored.dtype)
    return other

"""Segments of rows as mapped memory: one map of each file, rows out of it as bytes. Knows nothing
of what a row means.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import DigestMismatch, FormatError, RowOutOfRange
from bundle.format.tables import Segment
from bundle.storage import files, residency
from bundle.tables.row_deltas import ChangedRanges, open_deltas
from bundle.tables.segments import RowMap, RowRange

Rows = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class MappedSegment(NamedTuple):
    """Where the rows of a segment lie.

    Attributes:
      data: The mapped bytes of its file.
      offset: The offset of the segment in them.
      rows: The number of its rows.
      changed: The rows that its deltas have; None: it has none.
    """

    data: Bytes
    offset: int
    rows: int
    changed: ChangedRanges | None


class MappedRows:
    """Rows of one width in segments that follow one another. Safe for any number of threads."""

    def __init__(self, root: Path, segments: Sequence[Segment], row_bytes: int) -> None:
        """Checks the sizes of all files, then maps them, whatever their size.

        Raises:
          UnsafePath: A file lies outside the bundle.
          DigestMismatch: A file is missing or shorter than its segments; nothing was mapped.
          FormatError: A file cannot be mapped.
        """
        _check_sizes(root, segments, row_bytes)
        self._row_bytes = row_bytes
        self._map = RowMap([segment.rows for segment in segments])
        # One map of each file, from its first to its last segment: a checkpoint's file may hold a
        # great many, and Linux limits the number of maps of a process.
        spans: dict[str, tuple[int, int]] = {}
        for segment in segments:
            first, end = spans.get(segment.file, (segment.offset, 0))
            segment_end = segment.offset + segment.rows * row_bytes
            spans[segment.file] = (min(first, segment.offset), max(end, segment_end))
        mapped = {file: _map_range(root, file, *span) for file, span in spans.items()}
        self._files = list(mapped.values())
        self._segments = [
            MappedSegment(
                mapped[segment.file].data,
                segment.offset - mapped[segment.file].first,
                segment.rows,
                _changed_rows(root, segment, row_bytes),
            )
            for segment in segments
        ]

    def segments(self) -> list[MappedSegment]:
        """Returns where the rows of each segment lie."""
        return self._segments

    def take(self, rows: Rows) -> Bytes:
        """Returns [n, row_bytes] uint8. For a number that is no row, another row is read.

        Raises:
          RowOutOfRange: The maps are closed.
        """
        if not self._segments:
            raise RowOutOfRange("rows were read from a table that is closed")
        raw = np.empty((rows.size, self._row_bytes), np.uint8)
        segments, local = self._map.locate(rows.clip(0, self._map.starts[-1] - 1))
        for segment in np.unique(segments).tolist():
            indices = np.flatnonzero(segments == segment)
            segment_rows = local[indices]
            stored = self._rows_of(segment)[segment_rows]
            changed = self._segments[segment].changed
            if changed is not None:
                changed.lay_over(segment_rows, stored)
            raw[indices] = stored
        return raw

    def read(self, wanted: RowRange) -> Bytes:
        """Copies a range of rows that lies within the segments.

        Returns:
          [rows, row_bytes] uint8.
        """
        # Begun with no rows, since a range may be empty.
        arrays = [np.empty((0, self._row_bytes), np.uint8)]
        for segment, rows in self._map.ranges(wanted):
            stored = self._rows_of(segment)[rows.first : rows.end]
            changed = self._segments[segment].changed
            if changed is not None:
                stored = stored.copy()
                changed.lay_over_range(rows.first, stored)
            arrays.append(stored)
        return np.concatenate(arrays)

    def _rows_of(self, segment: int) -> Bytes:
        data, first, rows, _ = self._segments[segment]
        return data[first : first + rows * self._row_bytes].reshape(rows, self._row_bytes)

    def warm(self) -> Iterator[int]:
        """Brings all pages into memory and maps them; yields the bytes of each piece, after it.
        Ends once closed.
        """
        for data in self._mapped_bytes():
            start = 0
            # The maps may be closed after each piece.
            while self._files and (size := residency.bring_in(data, start)):
                start += size
                yield size

    def resident_bytes(self) -> int:
        """Returns how many bytes are in memory, of large files by samples."""
        return sum(map(residency.resident_bytes, self._mapped_bytes()))

    def release(self) -> None:
        """Lets go of the pages that were read, for a program that reads all rows once."""
        for file in self._files:
            file.release()
        for segment in self._segments:
            if segment.changed is not None:
                for delta in segment.changed.deltas:
                    delta.release()

    def close(self) -> None:
        """Lets go of the maps; they vanish when the last running gather has ended."""
        self._files = []
        self._segments = []

    def _mapped_bytes(self) -> list[Bytes]:
        """Returns the mapped bytes of each file, those of deltas included."""
        contents = [file.data for file in self._files]
        for segment in self._segments:
            if segment.changed is not None:
                contents += [delta.data for delta in segment.changed.deltas]
        return contents


def _changed_rows(root: Path, segment: Segment, row_bytes: int) -> ChangedRanges | None:
    if not segment.deltas:
        return None
    return ChangedRanges.of(segment, open_deltas(root, segment, row_bytes), row_bytes)


class _MappedRange:
    """A stretch of a file: its bytes `data` from byte `first` on."""

    def __init__(self, mapped: mmap.mmap, first: int) -> None:
        self._mapped = mapped
        self.first = first
        self.data: Bytes = np.frombuffer(mapped, np.uint8)

    def release(self) -> None:
        """Lets go of the pages that were read."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


def _check_sizes(root: Path, segments: Sequence[Segment], row_bytes: int) -> None:
    sizes: dict[str, int] = {}
    for segment in segments:
        end = segment.offset + segment.rows * row_bytes
        if segment.file not in sizes:
            sizes[segment.file] = files.size(root, segment.file)
        size = sizes[segment.file]
        if end > size:
            raise DigestMismatch(
                f"file {segment.file!r} has {size} bytes, its segment of {segment.rows} rows ends "
                f"at byte {end}; it was cut short: copy the bundle again"
            )


def _map_range(root: Path, file: str, first: int, end: int) -> _MappedRange:
    # A map begins at a page.
    start = first - first % mmap.ALLOCATIONGRANULARITY
    with files.locate(root, file).open("rb") as opened:
        try:
            mapped = mmap.mmap(opened.fileno(), end - start, access=mmap.ACCESS_READ, offset=start)
        except (OSError, ValueError, OverflowError) as problem:
            raise FormatError(f"file {file!r} cannot be mapped: {problem}") from problem
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)  # read-ahead around random rows only evicts others
    return _MappedRange(mapped, start)

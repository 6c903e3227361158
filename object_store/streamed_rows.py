"""Rows of a table whose segments are in a store already, read from there by ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from bundle.errors import DigestMismatch
from bundle.format import manifest
from bundle.format.dtypes import SCALE_BYTES
from bundle.format.tables import Segment
from bundle.tables.maps import MappedRows
from bundle.tables.reader import TableReader
from bundle.tables.row_deltas import ChangedRanges, open_deltas
from bundle.tables.segments import RowMap, RowRange
from object_store.stored_content import StoredContent, fetch_file

_REQUESTS = 32
_GAP_BYTES = 16 << 10
"""Rows closer to one another are read by one request: another one takes longer than these bytes."""
_RANGE_BYTES = 8 << 20
_OPEN_SEGMENTS = 4
"""The number of segments whose deltas are on the local disk at a time."""

Locate = Callable[[str], StoredContent]
"""Returns the content in the store of the file with a bundle path."""


class StreamedTable(TableReader):
    """A table whose segments are in a store. Meant for some rows, or for all in their order."""

    def __init__(self, table: manifest.Table, locate: Locate, scratch: Path) -> None:
        """Names the content; sends no request.

        Args:
          table: Its manifest entry.
          locate: Returns the content of a file.
          scratch: A directory on a disk, where deltas lie while they are mapped.
        """
        self.rows = table.rows
        self.dim = table.dim
        self.dtype = str(table.dtype)
        self._stored = _RemoteRows(table.segments, table.row_bytes, locate, scratch)
        self._scales = None
        if table.scales:
            self._scales = _RemoteRows(table.scales, SCALE_BYTES, locate, scratch)


class _RemoteRows(MappedRows):
    """Rows of one width in objects that follow one another."""

    def __init__(
        self, segments: Sequence[Segment], row_bytes: int, locate: Locate, scratch: Path
    ) -> None:
        self._row_bytes = row_bytes
        self._map = RowMap([segment.rows for segment in segments])
        self._contents = [locate(segment.file) for segment in segments]
        self._offsets = [segment.offset for segment in segments]
        self._files = []
        self._segments = []

        def changed_rows(number: int) -> ChangedRanges | None:
            segment = segments[number]
            if not segment.deltas:
                return None
            # What is mapped stays until it is let go of, without a name.
            with TemporaryDirectory(dir=scratch) as name:
                directory = Path(name)
                for delta in segment.deltas:
                    fetch_file(locate(delta.file), delta.bytes, delta, directory)
                deltas = open_deltas(directory, segment, row_bytes)
            return ChangedRanges.of(segment, deltas, row_bytes)

        self._changed_rows = lru_cache(_OPEN_SEGMENTS)(changed_rows)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """See MappedRows.take."""
        clipped_rows = rows.clip(0, self._map.starts[-1] - 1)
        unique_rows, positions = np.unique(clipped_rows, return_inverse=True)
        raw = np.empty((unique_rows.size, self._row_bytes), np.uint8)
        segments, local_rows = self._map.locate(unique_rows)

        def fetch(run: tuple[int, int]) -> None:
            first, end = run
            start = int(local_rows[first])
            count = int(local_rows[end - 1]) + 1 - start
            values = self._read_range(int(segments[first]), start, count)
            raw[first:end] = values[local_rows[first:end] - start]

        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="rowcast-rows") as pool:
            for _ in pool.map(fetch, self._runs(segments, local_rows)):
                pass
        for segment in np.unique(segments).tolist():
            changed = self._changed_rows(segment)
            if changed is not None:
                # Rows ascend, so that those of a segment lie side by side.
                first, end = np.searchsorted(segments, [segment, segment + 1])
                changed.lay_over(local_rows[first:end], raw[first:end])
        return raw[positions.reshape(-1)]

    def read(self, wanted: RowRange) -> NDArray[np.uint8]:
        """See MappedRows.read."""
        return self.take(np.arange(wanted.first, wanted.end))

    def _runs(
        self, segments: NDArray[np.int64], local_rows: NDArray[np.int64]
    ) -> Iterator[tuple[int, int]]:
        """Yields [first, end) of the ascending rows that one request reads."""
        if not len(local_rows):
            return
        first_bytes = local_rows * self._row_bytes
        # A gap that is not too wide is read, too: a request costs more than its bytes.
        begins_run = np.diff(segments) != 0
        begins_run |= np.diff(first_bytes) - self._row_bytes > _GAP_BYTES
        begins_run |= np.diff(first_bytes // _RANGE_BYTES) != 0
        starts = [0, *(np.flatnonzero(begins_run) + 1).tolist()]
        yield from zip(starts, [*starts[1:], len(local_rows)], strict=False)

    def _read_range(self, segment: int, first: int, rows: int) -> NDArray[np.uint8]:
        count = rows * self._row_bytes
        offset = self._offsets[segment] + first * self._row_bytes
        content = self._contents[segment]
        data = content.read(offset, count)
        if len(data) != count:
            raise DigestMismatch(
                f"object {content.object_at(offset)} has {len(data)} of {count} bytes from row "
                f"{first} on; run the export again"
            )
        return np.frombuffer(data, np.uint8).reshape(rows, self._row_bytes)

"""Rows of a stored variable, in any order, wherever its slices lie; all that is read is summed in
the same pass.

A crc32c of the checkpoint covers a whole slice. What a range of a slice adds to it can be computed
alone (`shifted`), so tasks that read the ranges of a slice in any order, on any machine, together
know whether the slice is whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from bundle.format.checksums import combine, crc32c, extend, shifted_each
from export.checkpoint import bands
from export.checkpoint.bands import SourceRange
from export.checkpoint.datafiles import REQUEST_BYTES, REQUESTS, DataFiles, stamps_of
from export.checkpoint.formats.arrays import ArrayRows
from export.checkpoint.source_sums import SourceSum
from export.checkpoint.variables import Slice
from object_store.locations import is_url

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PIECE_BYTES = 1 << 20
"""Bytes read at a time where they are written as they are: more would leave the cache before they
are written, and fewer would be many small writes.
"""
REMOTE_PIECE_BYTES = REQUESTS * REQUEST_BYTES
"""Bytes read at a time from an object store."""


class SliceRows:
    """Rows [first, first + rows) of a variable that lies in slices. Used as a context, it closes
    its files.
    """

    def __init__(
        self, slices: Sequence[Slice], columns: int, itemsize: int, first: int, rows: int
    ) -> None:
        """Finds the slices of the rows.

        Args:
          slices: The slices of the variable; there may be more than are needed.
          columns: The number of columns of the variable.
          itemsize: The size of a value in bytes.
          first, rows: The first row and the number of rows that will be read.
        Raises:
          SlicesOverlap: The slices overlap in these rows, or leave a gap.
        """
        self._bands = bands.bands(slices, columns, first, rows)
        self._firsts = [band.first for band in self._bands]
        self._itemsize = itemsize
        self._remote = any(is_url(part.file) for part in slices)
        self._files = DataFiles(stamps_of(slices))
        # Slices that were read, by their `id`: hashing a slice would hash all its fields, for each
        # range that is read.
        self._parts: dict[int, Slice] = {}
        # Runs of consecutive bytes that were read: (slice, end) -> (start, crc32c). Ranges that
        # continue a run extend its checksum, so that few runs remain to be shifted at the end.
        self._runs: dict[tuple[int, int], tuple[int, int]] = {}

    @property
    def undivided(self) -> bool:
        """Whether every row lies in one slice from its first to its last column."""
        return all(len(band.slices) == 1 for band in self._bands)

    def read_into(self, first: int, rows: Bytes) -> None:
        """Fills [n, bytes of a stored row] with stored rows from `first` on.

        Raises:
          CheckpointError: A data file is gone, changed, ends early or cannot be read.
        """
        for band in bands.within(self._bands, first, len(rows)):
            here = rows[band.first - first : band.end - first]
            if len(band.slices) == 1:
                # The slice has all columns, so that its bytes are the rows.
                self._read(bands.source_range(band.slices[0], band.first, band.rows), here.ravel())
                continue
            for part in band.slices:
                source = bands.source_range(part, band.first, band.rows)
                data = np.empty(source.bytes, np.uint8)
                self._read(source, data)
                start = part.starts[1] * self._itemsize
                width = part.shape[1] * self._itemsize
                here[:, start : start + width] = data.reshape(band.rows, width)

    def read_each(self, ranges: Iterable[tuple[int, int]], rows: Bytes) -> None:
        """Fills [n, bytes of a stored row] with ranges of stored rows, one behind the other: first
        row and how many.

        Thousands of lanes a block make this the loop in which a copy of a stack spends its time.

        Raises:
          CheckpointError: A data file is gone, changed, ends early or cannot be read.
        """
        filled = 0
        if self._remote:
            # What will be read is known, so that requests to the store run at a time.
            ranges = list(ranges)
            for first, count in ranges:
                for band in bands.within(self._bands, first, count):
                    part, offset, size = bands.source_range(band.slices[0], band.first, band.rows)
                    self._files.prefetch(part.file, part.offset + offset, size)
        for first, count in ranges:
            here = rows[filled : filled + count]
            filled += count
            # The usual range lies in one slice and skips `read_into`.
            band = self._bands[bisect_right(self._firsts, first) - 1]
            if first + count > band.end or len(band.slices) > 1:
                self.read_into(first, here)
            else:
                self._read(bands.source_range(band.slices[0], first, count), here.ravel())

    def pieces(self, bytes_max: Callable[[], int]) -> Iterator[tuple[Bytes, int]]:
        """Yields the bytes of all rows, if they are undivided, wherever rows end, each piece with
        its crc32c.

        Args:
          bytes_max: Called before each piece; returns how long the piece may be. The piece is valid
            until the next one is requested.
        Raises:
          CheckpointError: A data file is gone, changed, ends early or cannot be read.
        """
        step = REMOTE_PIECE_BYTES if self._remote else PIECE_BYTES
        buffer = np.empty(step, np.uint8)
        for band in self._bands:
            part, start, count = bands.source_range(band.slices[0], band.first, band.rows)
            for offset in range(start, start + count, step):
                data = buffer[: min(step, start + count - offset)]
                end = offset + data.size
                self._files.read_into(part.file, part.offset + offset, data)
                while data.size:
                    piece = data[: bytes_max()]
                    crc = crc32c(piece)
                    source = SourceRange(part, end - data.size, piece.size)
                    self._add(source, combine(self._before(source), crc, piece.size))
                    yield piece, crc
                    data = data[piece.size :]

    def sums(self) -> tuple[SourceSum, ...]:
        """Returns what was read of each slice."""
        # A crc32c is linear: that of a slice is the XOR of what its runs add to it, each shifted by
        # the bytes that follow the run.
        following_bytes = [self._parts[slice_id].bytes - end for slice_id, end in self._runs]
        shifted_crcs = shifted_each([crc for _, crc in self._runs.values()], following_bytes)
        totals: dict[int, tuple[int, int]] = {}
        for run, shifted_crc in zip(self._runs.items(), shifted_crcs.tolist(), strict=True):
            (slice_id, end), (start, _) = run
            count, crc = totals.get(slice_id, (0, 0))
            totals[slice_id] = count + end - start, crc ^ shifted_crc

        sums = []
        for slice_id, (count, crc) in totals.items():
            part = self._parts[slice_id]
            file = Path(part.file).name
            sums.append(SourceSum(file=file, slice_offset=part.offset, bytes=count, crc32c=crc))
        return tuple(sums)

    def damaged(self) -> Slice | None:
        """Returns a slice that was read whole and is not what its crc32c says, if there is one."""
        for (slice_id, end), (start, crc) in self._runs.items():
            part = self._parts[slice_id]
            is_whole = start == 0 and end == part.bytes
            if is_whole and part.crc32c not in (None, crc):
                return part
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def _read(self, source: SourceRange, data: Bytes) -> None:
        self._files.read_into(source.slice.file, source.slice.offset + source.offset, data)
        self._add(source, extend(self._before(source), data))

    def _before(self, source: SourceRange) -> int:
        """Returns the crc32c of the run that a range continues; 0, that of no bytes, where it
        begins one.
        """
        run = self._runs.get((id(source.slice), source.offset))
        if run is None:
            return 0
        return run[1]

    def _add(self, source: SourceRange, crc: int) -> None:
        """Notes the crc32c of the run that now ends with a range."""
        slice_id = id(source.slice)
        self._parts[slice_id] = source.slice
        run = self._runs.pop((slice_id, source.offset), None)
        start = source.offset
        if run is not None:
            start = run[0]
        self._runs[slice_id, source.offset + source.bytes] = start, crc


StoredRows = SliceRows | ArrayRows
"""Rows of a stored variable, however it is stored."""

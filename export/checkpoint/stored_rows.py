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
from types import TracebackType
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
are written, and fewer would be many small writes."""
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
        self._parts: dict[int, Slice] = {}
        self._runs: dict[tuple[int, int], tuple[int, int]] = {}  # (slice, end) -> (start, crc32c)

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
        at = 0
        if self._remote:
            ranges = list(ranges)
            for first, count in ranges:
                for band in bands.within(self._bands, first, count):
                    part, offset, size = bands.source_range(band.slices[0], band.first, band.rows)
                    self._files.prefetch(part.file, part.offset + offset, size)
        for first, count in ranges:
            here = rows[at : at + count]
            at += count
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
        totals: dict[int, tuple[int, int]] = {}
        after = [self._parts[which].bytes - end for which, end in self._runs]
        added = shifted_each([crc for _, crc in self._runs.values()], after).tolist()
        for ((which, end), (start, _)), adds in zip(self._runs.items(), added, strict=True):
            count, crc = totals.get(which, (0, 0))
            totals[which] = count + end - start, crc ^ adds
        return tuple(
            SourceSum(file=Path(part.file).name, slice_offset=part.offset, bytes=count, crc32c=crc)
            for part, (count, crc) in (
                (self._parts[which], total) for which, total in totals.items()
            )
        )

    def damaged(self) -> Slice | None:
        """Returns a slice that was read whole and is not what its crc32c says, if there is one."""
        wholes = (
            (self._parts[which], end, run)
            for (which, end), run in self._runs.items()
            if run[0] == 0
        )
        return next(
            (
                part
                for part, end, run in wholes
                if end == part.bytes and part.crc32c not in (None, run[1])
            ),
            None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.close()

    def _read(self, source: SourceRange, data: Bytes) -> None:
        self._files.read_into(source.slice.file, source.slice.offset + source.offset, data)
        self._add(source, extend(self._before(source), data))

    def _before(self, source: SourceRange) -> int:
        """Returns the crc32c of the run that a range continues; 0, that of no bytes, where it
        begins one.
        """
        run = self._runs.get((id(source.slice), source.offset))
        return 0 if run is None else run[1]

    def _add(self, source: SourceRange, crc: int) -> None:
        """Notes the crc32c of the run that now ends with a range."""
        which = id(source.slice)
        self._parts[which] = source.slice
        run = self._runs.pop((which, source.offset), None)
        start = source.offset if run is None else run[0]
        self._runs[which, source.offset + source.bytes] = start, crc


StoredRows = SliceRows | ArrayRows
"""Rows of a stored variable, however it is stored."""

"""Shards of rows as mapped memory: one map of each file, rows out of it as bytes. Knows nothing of what a row means."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.errors import DigestMismatch, FormatError, RowOutOfRange
from bundle.format.tables import Shard
from bundle.storage import files, residency
from bundle.tables.shards import RowMap, RowRange

Rows = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class MappedRows:
    """Rows of one width in shards that follow one another. Safe for any number of threads."""

    def __init__(self, root: Path, shards: Sequence[Shard], row_bytes: int) -> None:
        """Checks the sizes of all files, then maps them, whatever their size.

        Raises:
          UnsafePath: a file lies outside the bundle.
          DigestMismatch: a file is missing or shorter than its shards; nothing was mapped.
          FormatError: a file cannot be mapped.
        """
        _check_sizes(root, shards, row_bytes)
        self._row_bytes = row_bytes
        self._map = RowMap([shard.rows for shard in shards])
        spans: dict[str, tuple[int, int]] = {}
        for shard in shards:
            first, end = spans.get(shard.file, (shard.offset, 0))
            spans[shard.file] = (
                min(first, shard.offset),
                max(end, shard.offset + shard.rows * row_bytes),
            )
        mapped = {file: _mapped(root, file, *span) for file, span in spans.items()}
        self._files = list(mapped.values())
        self._shards = [
            (mapped[shard.file].data, shard.offset - mapped[shard.file].first, shard.rows)
            for shard in shards
        ]

    def shards(self) -> list[tuple[Bytes, int, int]]:
        """Returns of each shard the bytes of its file that are mapped, where among them it begins, and its rows."""
        return self._shards

    def take(self, rows: Rows) -> Bytes:
        """Returns [n, row_bytes] uint8. What is no row is never read: another row is.

        Raises:
          RowOutOfRange: the maps are closed.
        """
        if not self._shards:
            raise RowOutOfRange("rows asked of a table that is closed")
        raw = np.empty((rows.size, self._row_bytes), np.uint8)
        shards, local = self._map.locate(rows.clip(0, self._map.starts[-1] - 1))
        for shard in np.unique(shards).tolist():
            here = np.flatnonzero(shards == shard)
            raw[here] = self._rows_of(shard)[local[here]]
        return raw

    def read(self, wanted: RowRange) -> Bytes:
        """Copies a range of rows that lies within the shards.

        Returns:
          [rows, row_bytes] uint8.
        """
        parts = [
            self._rows_of(shard)[part.first : part.end] for shard, part in self._map.ranges(wanted)
        ]
        return np.concatenate([np.empty((0, self._row_bytes), np.uint8), *parts])

    def _rows_of(self, shard: int) -> Bytes:
        data, first, rows = self._shards[shard]
        return data[first : first + rows * self._row_bytes].reshape(rows, self._row_bytes)

    def warm(self) -> Iterator[int]:
        """Brings all pages into memory and maps them; yields the bytes of each piece, after it. Ends once closed."""
        for file in list(self._files):
            start = 0
            while file in self._files and (size := residency.bring_in(file.data, start)):
                start += size
                yield size

    def resident_bytes(self) -> int:
        """Returns how many bytes are in memory, of large files by samples."""
        return sum(residency.resident_bytes(file.data) for file in list(self._files))

    def release(self) -> None:
        """Lets go of the pages that were read, for a program that reads all rows once."""
        for file in self._files:
            file.release()

    def close(self) -> None:
        """Lets go of the maps; they vanish when the last running gather has ended."""
        self._files, self._shards = [], []


class _Mapped:
    """A stretch of a file: its bytes `data` from byte `first` on."""

    def __init__(self, mapped: mmap.mmap, first: int) -> None:
        self._mapped, self.first = mapped, first
        self.data: Bytes = np.frombuffer(mapped, np.uint8)

    def release(self) -> None:
        """Lets go of the pages that were read."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


def _check_sizes(root: Path, shards: Sequence[Shard], row_bytes: int) -> None:
    sizes: dict[str, int] = {}
    for shard in shards:
        end = shard.offset + shard.rows * row_bytes
        if shard.file not in sizes:
            sizes[shard.file] = files.size(root, shard.file)
        size = sizes[shard.file]
        if end > size:
            raise DigestMismatch(
                f"file {shard.file!r} has {size} bytes, its shard of {shard.rows} rows ends at byte {end}; "
                "it was cut short: copy the bundle again"
            )


def _mapped(root: Path, file: str, first: int, end: int) -> _Mapped:
    start = first - first % mmap.ALLOCATIONGRANULARITY
    with files.locate(root, file).open("rb") as opened:
        try:
            mapped = mmap.mmap(opened.fileno(), end - start, access=mmap.ACCESS_READ, offset=start)
        except (OSError, ValueError, OverflowError) as problem:
            raise FormatError(f"file {file!r} cannot be mapped: {problem}") from problem
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)  # read-ahead around random rows only evicts others
    return _Mapped(mapped, start)

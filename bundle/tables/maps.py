"""Shards of rows as mapped memory: one map of each file, rows out of it as bytes. Knows nothing of what a row means.

Shards that lie in one file a whole number of rows apart share a stripe: one array of rows over all of them and what
lies between. So a gather takes one numpy call for a stripe, however many shards it has and wherever they begin.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from itertools import pairwise
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
        numbers = {file: number for number, file in enumerate(dict.fromkeys(shard.file for shard in shards))}
        file_of = np.array([numbers[shard.file] for shard in shards], np.int64)
        offsets = np.array([shard.offset for shard in shards], np.int64)
        ends = offsets + np.diff(self._map.starts) * row_bytes
        keys, self._stripe_of = np.unique(file_of * row_bytes + offsets % row_bytes, return_inverse=True)
        first, end = _spans(self._stripe_of, offsets, ends)
        self._places = (offsets - first[self._stripe_of]) // row_bytes
        """[shards]: row of its stripe that each shard begins with."""
        spans = zip(*(bounds.tolist() for bounds in _spans(file_of, offsets, ends)), strict=True)
        mapped = [_mapped(root, file, *span) for file, span in zip(numbers, spans, strict=True)]
        self._files = mapped
        self._shards = [(mapped[file], offset) for file, offset in zip(file_of.tolist(), offsets.tolist(), strict=True)]
        self._stripes = tuple(
            mapped[key // row_bytes].rows(start, stop, row_bytes)
            for key, start, stop in zip(keys.tolist(), first.tolist(), end.tolist(), strict=True)
        )

    def shards(self) -> list[tuple[Bytes, int, int]]:
        """Returns of each shard the bytes of its file that are mapped, where among them it begins, and its rows."""
        counts = np.diff(self._map.starts).tolist()
        return [
            (file.data, offset - file.first, rows) for (file, offset), rows in zip(self._shards, counts, strict=True)
        ]

    def take(self, rows: Rows) -> Bytes:
        """Returns [n, row_bytes] uint8. What is no row is never read: another row is.

        Raises:
          RowOutOfRange: the maps are closed.
        """
        stripes = self._stripes
        if not stripes:
            raise RowOutOfRange("rows asked of a table that is closed")
        # Rows move as bytes: take on floats of a misaligned map copies the whole map first. 'clip' is the mode
        # that writes straight into `out`; in rows that were checked there is nothing to clip.
        raw = np.empty((rows.size, self._row_bytes), np.uint8)
        if self._places.size == 1:
            stripes[0].take(rows, axis=0, out=raw, mode="clip")
            return raw
        shards, local = self._map.locate(rows.clip(0, self._map.starts[-1] - 1))
        places = self._places[shards] + local
        if len(stripes) == 1:
            stripes[0].take(places, axis=0, out=raw, mode="clip")
            return raw
        wanted = self._stripe_of[shards]
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]
        cuts = (np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()
        for start, end in pairwise([0, *cuts, rows.size] if rows.size else ()):
            here = order[start:end]
            raw[here] = stripes[ordered[start]].take(places[here], axis=0, mode="clip")
        return raw

    def read(self, wanted: RowRange) -> Bytes:
        """Copies a range of rows that lies within the shards.

        Returns:
          [rows, row_bytes] uint8.
        """
        raw = np.empty((wanted.rows, self._row_bytes), np.uint8)
        done = 0
        for shard, part in self._map.ranges(wanted):
            place = self._places[shard] + part.first
            raw[done : done + part.rows] = self._stripes[self._stripe_of[shard]][place : place + part.rows]
            done += part.rows
        return raw

    def warm(self) -> Iterator[int]:
        """Brings all pages into memory and maps them; yields the bytes of each piece, after it. Ends once closed."""
        for file in list(self._files):
            start = 0
            while file in self._files and (size := residency.bring_in(file.data, start)):
                start += size
                yield size

    def resident_bytes(self) -> int:
        """Tells how many bytes are in memory, of large files by samples."""
        return sum(residency.resident_bytes(file.data) for file in list(self._files))

    def release(self) -> None:
        """Lets go of the pages that were read, for a program that reads all rows once."""
        for file in self._files:
            file.release()

    def close(self) -> None:
        """Lets go of the maps; they vanish when the last running gather has ended."""
        self._stripes, self._files, self._shards = (), [], []


class _Mapped:
    """A stretch of a file: its bytes `data` from byte `first` on."""

    def __init__(self, mapped: mmap.mmap, first: int) -> None:
        self._mapped, self.first = mapped, first
        self.data: Bytes = np.frombuffer(mapped, np.uint8)

    def release(self) -> None:
        """Lets go of the pages that were read."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def rows(self, start: int, stop: int, row_bytes: int) -> Bytes:
        """Views bytes `start` to `stop` of the file as whole rows."""
        return self.data[start - self.first : stop - self.first].reshape(-1, row_bytes)


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


def _spans(groups: Rows, firsts: Rows, ends: Rows) -> tuple[Rows, Rows]:
    """Returns the least of `firsts` and the greatest of `ends` of each group."""
    count = int(groups.max()) + 1
    low, high = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(low, groups, firsts)
    np.maximum.at(high, groups, ends)
    return low, high


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

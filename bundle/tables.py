"""Row files: ShardWriter writes them, TableReader maps them and gathers rows; never combines rows.

A table is never read on open: sizes and bounds are checked, then its files are mapped, whatever their size.
"""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bundle import files, manifest
from bundle.checksums import Digest, contiguous
from bundle.errors import DigestMismatch, FormatError, RowOutOfRange
from bundle.shards import RowMap, RowRange

if TYPE_CHECKING:
    from bundle.checksums import Bytes

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]

_STORED: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),  # numpy has no bfloat16; its bits are the upper half of a float32's
}


def row_bytes(dtype: str, dim: int) -> int:
    """Returns the bytes of one row of `dim` values of a table's dtype."""
    return _STORED[dtype].itemsize * dim


class ShardWriter:
    """Writes one file of rows and digests it in the same pass; the file appears under its name once it is whole.

    Used as a context: left by an exception, it removes the unfinished file. No two writers ever share a file that is
    being written, so one that is thought dead and writes on harms nobody.
    """

    def __init__(self, path: Path, attempts: Path | None = None) -> None:
        """Begins a file.

        Args:
          path: where it will be; its directory is made.
          attempts: directory on the same disk where it lies until it is whole; None: beside `path`.
        Raises:
          OSError: it cannot be written, or `attempts` is gone, as when the run that asked for the file is over.
        """
        if attempts is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._attempt = (attempts or path.parent) / f".{path.name}-{secrets.token_hex(8)}"
        self._file = self._attempt.open("xb", buffering=0)
        self._digest = Digest()

    @property
    def room_bytes(self) -> int:
        """How many bytes `write` takes with their crc32c."""
        return self._digest.room_bytes

    def write(self, data: Bytes, crc32c: int | None = None) -> None:
        """Appends bytes.

        Args:
          data: the bytes.
          crc32c: theirs, where they were summed already; they must not exceed `room_bytes`.
        Raises:
          OSError: the disk is full or broken; the file is unfinished.
        """
        left = contiguous(data).data
        if crc32c is None:
            self._digest.update(left)
        else:
            self._digest.append(crc32c, len(left))
        while left:
            left = left[self._file.write(left) :]

    def close(self) -> Digest:
        """Syncs and closes the file, gives it its name and returns its digest: `crc32c`, `blocks`, `bytes`."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._attempt.rename(self._path)
            files.sync(self._path.parent)
        return self._digest

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is None:
            self.close()
        else:
            self._attempt.unlink(missing_ok=True)
            if self._file.closed:
                self._path.unlink(missing_ok=True)
            self._file.close()


class TableReader:
    """Rows of one table, mapped. Safe for any number of threads.

    A committed bundle never changes: a file that is cut short while it is mapped ends the process (SIGBUS).

    Attributes:
      rows, dim: shape of the table.
      dtype: as stored: float32, bfloat16 or float16.
    """

    def __init__(self, root: Path, table: manifest.Table) -> None:
        """Opens the table's shards under the bundle's directory.

        Raises:
          UnsafePath: a file lies outside the bundle.
          DigestMismatch: a file is missing or shorter than its shards; nothing was mapped.
        """
        self.rows, self.dim, self.dtype = table.rows, table.dim, str(table.dtype)
        self._row_bytes = row_bytes(self.dtype, self.dim)
        for shard in table.shards:
            end, size = shard.offset + shard.rows * self._row_bytes, files.size(root, shard.file)
            if end > size:
                raise DigestMismatch(
                    f"file {shard.file!r} has {size} bytes, its shard of {shard.rows} rows ends at byte {end}; "
                    "it was cut short: copy the bundle again"
                )
        self._map = RowMap([shard.rows for shard in table.shards])
        self._shards = tuple(self._mapped(root, shard) for shard in table.shards)

    def gather(self, rows: Rows) -> Vectors:
        """Reads rows from the mapped shards, in the order asked.

        Args:
          rows: [n] int64, each in [0, rows of the table). Duplicates allowed.
        Returns:
          [n, dim] float32 whatever the stored dtype, bit for bit what was stored; C order, owned by the caller.
        Raises:
          RowOutOfRange: a row is negative or past the end; nothing was read.
        Source: docs/format.md, Tables.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        self._check(rows)
        return self.take(rows)

    def take(self, rows: Rows) -> Vectors:
        """Does the same as `gather` for rows that were checked before, as those of known ids are, at half the cost.

        Args:
          rows: [n] int64, each in [0, rows of the table). What is not is never read: another row of the table is.
        """
        if not self._shards:
            raise RowOutOfRange("rows asked of a table that is closed")
        # Rows move as bytes: take on floats of a misaligned map copies the whole map first. 'clip' is the mode
        # that writes straight into `out`; in rows that were checked there is nothing to clip.
        raw = np.empty((rows.size, self._row_bytes), np.uint8)
        if len(self._shards) == 1:
            self._shards[0].take(rows, axis=0, out=raw, mode="clip")
        else:
            shards, local = self._map.locate(rows)
            for shard in np.unique(shards):
                here = np.flatnonzero(shards == shard)
                raw[here] = self._shards[shard].take(local[here], axis=0, mode="clip")
        return _widened(raw.view(_STORED[self.dtype]), self.dtype)

    def read(self, first: int, count: int) -> NDArray[Any]:
        """Copies a range of rows as stored.

        Returns:
          [count, dim] little-endian float32 or float16, or uint16 holding the bits of bfloat16.
        Raises:
          RowOutOfRange: the range leaves the table.
        """
        if first < 0 or count < 0 or first + count > self.rows:
            raise RowOutOfRange(f"rows {first} to {first + count} asked; the table has {self.rows} rows")
        raw = np.empty((count, self._row_bytes), np.uint8)
        done = 0
        for shard, part in self._map.ranges(RowRange(first, count)):
            raw[done : done + part.rows] = self._shards[shard][part.first : part.end]
            done += part.rows
        return raw.view(_STORED[self.dtype])

    def close(self) -> None:
        """Lets go of the maps; they vanish when the last running gather has ended."""
        self._shards = ()

    def _check(self, rows: Rows) -> None:
        # Seen as unsigned, a negative row is a huge one: one pass finds both. Counting is much cheaper than max().
        beyond = rows.view(np.uint64) >= np.uint64(self.rows)
        if np.count_nonzero(beyond):
            wrong = rows[beyond][0]
            raise RowOutOfRange(f"row {wrong} asked; the table has {self.rows} rows, 0 to {self.rows - 1}")

    def _mapped(self, root: Path, shard: manifest.Shard) -> NDArray[np.uint8]:
        size = shard.rows * self._row_bytes
        start = shard.offset - shard.offset % mmap.ALLOCATIONGRANULARITY
        with files.locate(root, shard.file).open("rb") as file:
            try:
                mapped = mmap.mmap(file.fileno(), shard.offset + size - start, access=mmap.ACCESS_READ, offset=start)
            except (OSError, ValueError, OverflowError) as problem:
                raise FormatError(f"file {shard.file!r} cannot be mapped: {problem}") from problem
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)  # read-ahead around random rows only evicts others
        flat = np.frombuffer(mapped, np.uint8, size, shard.offset - start)
        return flat.reshape(shard.rows, self._row_bytes)


def _widened(stored: NDArray[Any], dtype: str) -> Vectors:
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32, copy=False)

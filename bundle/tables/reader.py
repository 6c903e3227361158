"""Row files: SegmentWriter writes them, TableReader maps them, gathers rows and combines those of
bags.

A table is never read on open: sizes and bounds are checked, then its files are mapped, whatever
their size.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import RowOutOfRange
from bundle.format import manifest
from bundle.format.checksums import Digest, UnorderedDigest, contiguous
from bundle.format.dtypes import SCALE_BYTES, STORED, widened
from bundle.native import Rows as NativeRows
from bundle.storage import files
from bundle.tables.combiner import Combiner, Weights, combine_rows
from bundle.tables.maps import MappedRows
from bundle.tables.offsets import Offsets
from bundle.tables.older_file import OlderFile
from bundle.tables.segments import RowRange

if TYPE_CHECKING:
    from bundle.format.checksums import Bytes
    from bundle.native import _rows

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]
SYNC_BYTES = 16 << 20
"""The bytes that are written between two requests to flush: the disk never idles for long, and
requests are rare.
"""
_WRITE_BYTES = 128 << 10
"""Bytes of one request to write. For longer ones, Linux (since 6.16, on ext4) takes folios as large
from the page cache, which costs 2 to 4 times as much CPU in a virtual machine.
"""


class SegmentWriter:
    """Writes one file of rows and digests it in the same pass; the file appears under its name once
    it is whole.

    Used as a context: left by an exception, it removes the unfinished file. No two writers ever
    share a file that is being written, so one that is thought dead and writes on does no harm.

    With an offset, it fills its own range of a file that is there, which keeps its name and which
    it never removes: several writers fill a file that a reader wants in one piece.

    With a file of an older version, nothing is written while all bytes equal those of that file. If
    the whole file does, it becomes a hard link to the older one.

    Attributes:
      is_reused: Whether the file is a hard link to the older one; known once it is closed.
      link_problem: Why a file that equals the older one could not be linked, or "".
    """

    def __init__(
        self,
        path: Path,
        attempts: Path | None = None,
        size: int | None = None,
        offset: int | None = None,
        older: Path | None = None,
    ) -> None:
        """Begins a file, or a range of one.

        Args:
          path: The path of the file; its directory is made.
          attempts: The directory on the same disk where the file lies until it is whole. None: It
            lies beside `path`.
          size: The size of the file, where its bytes come in any order. None: They come in order.
          offset: The first byte of the range in an existing file. None: A new file begins.
          older: A file of an older version that may have the same content; it may be gone. None:
            There is none. A range has none.

        Raises:
          OSError: The file cannot be written, or `attempts` is gone, as when the run that needs the
            file is over.
        """
        self.is_reused = False
        self.link_problem = ""
        self._path = path
        self._start = offset or 0
        self._attempt: Path | None = None
        # A random name: a writer that is thought dead may still write under the one before.
        if offset is None:
            if attempts is None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._attempt = (attempts or path.parent) / f".{path.name}-{secrets.token_hex(8)}"
            self._file = self._attempt.open("xb", buffering=0)
        else:
            self._file = path.open("r+b", buffering=0)
        self._older: OlderFile | None = None
        if older is not None:
            self._older = _open_older(older)
        self._digest = Digest()
        self._unordered: UnorderedDigest | None = None
        if size is not None:
            self._unordered = UnorderedDigest(size)
        self._written_bytes = 0

    @property
    def room_bytes(self) -> int:
        """The maximum number of bytes that `write` takes with their crc32c."""
        return self._digest.room_bytes

    def write(self, data: Bytes, crc32c: int | None = None) -> None:
        """Appends bytes.

        Args:
          data: The bytes.
          crc32c: The checksum of the bytes, where it is known already; they must not exceed
            `room_bytes`.

        Raises:
          OSError: The disk is full or broken; the file is unfinished.
          OlderVersionUnreadable: The older file cannot be read; this one is unfinished.
        """
        piece = contiguous(data)
        offset = self._digest.bytes
        if crc32c is None:
            self._digest.update(piece)
        else:
            self._digest.append(crc32c, piece.size)
        self._put(offset, piece)
        if offset // SYNC_BYTES != self._digest.bytes // SYNC_BYTES:
            files.begin_sync(self._file.fileno())

    def write_at(self, offset: int, data: Bytes) -> None:
        """Writes bytes from `offset` on, in a file whose size was given; each byte once, in any
        order.

        Raises:
          OSError: The disk is full or broken; the file is unfinished.
          OlderVersionUnreadable: The older file cannot be read; this one is unfinished.
        """
        piece = contiguous(data)
        if self._unordered is None:
            raise ValueError("the size of the file was not given")
        self._unordered.update_at(offset, piece)
        previous_bytes = self._written_bytes
        self._written_bytes += piece.size
        self._put(offset, piece)
        if previous_bytes // SYNC_BYTES != self._written_bytes // SYNC_BYTES:
            files.begin_sync(self._file.fileno())

    def close(self) -> Digest:
        """Syncs and closes the file, gives it its name and returns its digest: `crc32c`, `blocks`,
        `bytes`.
        """
        if self._file.closed:
            return self._digest
        if self._unordered is not None:
            self._digest = self._unordered.digest()
        if self._older is not None:
            self._reuse(self._older)
        os.fsync(self._file.fileno())
        self._file.close()

        # The name comes last, so that a file that has it is whole.
        if self._attempt is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._attempt.rename(self._path)
            # Renaming one link of a file to another link of it does nothing.
            self._attempt.unlink(missing_ok=True)
            files.sync(self._path.parent)
        return self._digest

    def _put(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Writes bytes at an offset of the file, unless all so far equal those of the older one."""
        if self._older is not None:
            if self._older.matches(offset, data):
                return
            self._write_matched(self._older)
        unwritten = data.data
        position = self._start + offset
        while unwritten:
            # It may write less than it was given.
            count = os.pwrite(self._file.fileno(), unwritten[:_WRITE_BYTES], position)
            position += count
            unwritten = unwritten[count:]

    def _reuse(self, older: OlderFile) -> None:
        """Makes the file a link to the older one, all of whose bytes came; else writes it."""
        if self._attempt is not None and older.bytes == self._digest.bytes:
            # Under a name of its own first: a link cannot replace a file, but a rename can.
            link = self._attempt.with_name(f"{self._attempt.name}-link")
            try:
                older.link(link)
                link.rename(self._attempt)
                self.is_reused = True
            except OSError as problem:
                # Not every file system has links; the bytes are copied then.
                self.link_problem = problem.strerror or str(problem)
        if self.is_reused:
            older.close()
            self._older = None
        else:
            self._write_matched(older)

    def _write_matched(self, older: OlderFile) -> None:
        """Writes what was not written because it equals the older file, and lets go of that."""
        older.copy_matched(self._file.fileno())
        older.close()
        self._older = None

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if problem is None:
            self.close()
            return
        if self._older is not None:
            self._older.close()
        if self._attempt is not None:
            self._attempt.unlink(missing_ok=True)
            if self._file.closed:
                self._path.unlink(missing_ok=True)
        self._file.close()


def _open_older(older: Path) -> OlderFile | None:
    """Opens the file of an older version; returns None if it cannot be opened."""
    # It only saves work, and may have been removed meanwhile.
    try:
        return OlderFile(older)
    except OSError:
        return None


class TableReader:
    """Rows of one table, mapped. Safe for any number of threads.

    A committed bundle never changes: a file that is cut short while it is mapped ends the process
    (SIGBUS).

    Attributes:
      rows, dim: The shape of the table.
      dtype: The stored dtype: float32, bfloat16, float16 or int8.
    """

    _native: _rows.Rows | None = None

    def __init__(self, root: Path, table: manifest.Table, native: bool = True) -> None:
        """Opens the table's segments under the bundle's directory.

        Args:
          root: The bundle's directory.
          table: The table's entry in the manifest.
          native: Whether compiled code, where it was built, reads the rows. False: NumPy reads
            them, to the same bits.

        Raises:
          UnsafePath: A file lies outside the bundle.
          DigestMismatch: A file is missing or shorter than its segments; nothing was mapped.
        """
        self.rows = table.rows
        self.dim = table.dim
        self.dtype = str(table.dtype)
        self._stored = MappedRows(root, table.segments, table.row_bytes)
        self._scales: MappedRows | None = None
        if table.scales:
            self._scales = MappedRows(root, table.scales, SCALE_BYTES)
        if native and NativeRows is not None:
            scales = None
            if self._scales is not None:
                scales = self._scales.segments()
            self._native = NativeRows(self.dtype, self.dim, self._stored.segments(), scales)

    @property
    def native(self) -> _rows.Rows | None:
        """The compiled reader of its rows; None: NumPy reads them, or the table is closed."""
        return self._native

    def gather(self, rows: Rows, out: Vectors | None = None) -> Vectors:
        """Reads rows from the mapped segments, in the order of the request.

        Args:
          rows: [n] int64, each in [0, rows of the table). Duplicates are allowed.
          out: [n, dim] float32 to write into; each of its rows is contiguous, the rows may lie
            anywhere.

        Returns:
          [n, dim] float32 whatever the stored dtype, bit for bit what was stored, int8 times its
          scale: `out`, or an array in C order, owned by the caller.

        Raises:
          RowOutOfRange: A row is negative or past the end; nothing was read.

        Source: docs/reference/format.md, Tables.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        self._check(rows)
        return self.take(rows, out)

    def take(self, rows: Rows, out: Vectors | None = None) -> Vectors:
        """Does the same as `gather` for rows that were checked before, such as the rows of known
        ids, at half the cost.

        Args:
          rows: [n] int64, each less than the number of rows of the table. The vector of a negative
            row is zeros. Memory past the end is never read: another row of the table is.
          out: The same as for `gather`.
        """
        if (native := self._native) is not None:
            return native.take(rows, out)
        stored = self._stored.take(rows).view(STORED[self.dtype])
        scales = None
        if self._scales is not None:
            scales = self._scales.take(rows).view("<f4")[:, 0]
        vectors = widened(stored, self.dtype, scales)
        absent = rows < 0
        if np.count_nonzero(absent):
            vectors[absent] = 0
        if out is None:
            return vectors
        out[...] = vectors
        return out

    def bags(
        self,
        rows: Rows,
        offsets: Offsets,
        combiner: Combiner,
        weights: Weights | None = None,
        out: Vectors | None = None,
    ) -> Vectors:
        """Reads rows and combines those of each bag in one pass, to the bits that `combiner.py`
        gives.

        Args:
          rows: [m] int64, each less than the number of rows of the table. A negative row, and its
            weight, are left out.
          offsets: [n + 1] int64, checked: bag i owns rows[offsets[i]:offsets[i + 1]].
          combiner: The combiner: sum, mean or sqrtn.
          weights: [m] float32. None: All weights are 1.
          out: The same as for `gather`.

        Returns:
          [n, dim] float32: `out`, or an array in C order, owned by the caller.
        """
        if (native := self._native) is not None:
            return native.bags(rows, offsets, combiner, weights, out)
        combined = combine_rows(self.take, rows, offsets, combiner, weights)
        if out is None:
            return combined
        out[...] = combined
        return out

    def take_stored(self, rows: Rows) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Reads rows as they are stored, for another process to widen.

        Returns:
          [n, bytes of a row] uint8, and the scales of int8 rows, [n, 4] uint8, otherwise [n, 0].

        Raises:
          RowOutOfRange: The same as for `gather`.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        self._check(rows)
        scales = np.empty((rows.size, 0), np.uint8)
        if self._scales is not None:
            scales = self._scales.take(rows)
        # Compiled code widens rows, which leaves those of float32 as they are stored.
        if self.dtype == "float32" and self._native is not None:
            return self._native.take(rows, None).view(np.uint8), scales
        return self._stored.take(rows), scales

    def read(self, first: int, count: int) -> NDArray[Any]:
        """Copies a range of rows as stored.

        Returns:
          [count, dim] little-endian float32 or float16, int8 without its scale, or uint16 holding
          bfloat16's bits.

        Raises:
          RowOutOfRange: The range leaves the table.
        """
        if first < 0 or count < 0 or first + count > self.rows:
            raise RowOutOfRange(
                f"rows {first} to {first + count} were read; the table has {self.rows} rows"
            )
        return self._stored.read(RowRange(first, count)).view(STORED[self.dtype])

    def warm(self) -> Iterator[int]:
        """Brings the whole table into memory, piece by piece, so that no row of it is waited for.

        Yields:
          The bytes of each piece, once it is there. Ends early if the table is closed meanwhile.
        """
        for rows in (self._stored, self._scales):
            if rows is not None:
                yield from rows.warm()

    def resident_bytes(self) -> int:
        """Returns how many of the table's bytes are in memory, whatever brought them there; large
        files are sampled.

        The kernel reports this only to those who may write or own the files; for others all of it
        counts.
        """
        return sum(
            rows.resident_bytes() for rows in (self._stored, self._scales) if rows is not None
        )

    def release(self) -> None:
        """Lets go of the pages that were read, for a program that reads all rows once; later reads
        bring them back.
        """
        self._stored.release()
        if self._scales is not None:
            self._scales.release()

    def close(self) -> None:
        """Lets go of the maps; they vanish when the last running gather has ended."""
        # Compiled code refers to the maps, too.
        self._native = None
        self._stored.close()
        if self._scales is not None:
            self._scales.close()

    def _check(self, rows: Rows) -> None:
        # As an unsigned integer, a negative row is huge: one pass finds both. Counting is much
        # cheaper than max().
        beyond = rows.view(np.uint64) >= np.uint64(self.rows)
        if np.count_nonzero(beyond):
            wrong = rows[beyond][0]
            raise RowOutOfRange(
                f"row {wrong} was read; the table has {self.rows} rows, 0 to {self.rows - 1}"
            )

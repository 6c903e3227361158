"""Tables: TableReader maps their files, gathers rows and combines those of bags.

A table is never read on open: sizes and bounds are checked, then its files are mapped, whatever
their size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import RowOutOfRange
from bundle.format import manifest
from bundle.format.dtypes import SCALE_BYTES, STORED, widened
from bundle.native import Rows as NativeRows
from bundle.tables.combiner import Combiner, Weights, combine_rows
from bundle.tables.maps import MappedRows
from bundle.tables.offsets import Offsets
from bundle.tables.segments import RowRange

if TYPE_CHECKING:
    from bundle.native import _rows

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]


class TableReader:
    """Rows of one table, mapped. Safe for any number of threads.

    A committed bundle never changes: a file that is cut short while it is mapped ends the process
    (SIGBUS).

    Attributes:
      rows, dim: The shape of the table.
      dtype: The stored dtype: float32, bfloat16, float16 or int8.
      table: The table's entry in the manifest, with the segments that are mapped.
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
        self.table = table
        self._stored = MappedRows(root, table.segments, table.row_bytes)
        self._scales: MappedRows | None = None
        if table.scales:
            self._scales = MappedRows(root, table.scales, SCALE_BYTES)
        if native and NativeRows is not None:
            scales = None
            if self._scales is not None:
                scales = _memory(self._scales)
            self._native = NativeRows(self.dtype, self.dim, _memory(self._stored), scales)

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


def _memory(mapped: MappedRows) -> list[_rows.Segment]:
    """Returns where rows lie, as compiled code takes it."""
    segments = []
    for data, offset, rows, changed in mapped.segments():
        deltas = None
        if changed is not None:
            files = tuple([delta.data for delta in changed.deltas])
            deltas = (
                changed.skipped_rows,
                changed.bits,
                changed.ranks,
                changed.slots,
                changed.frames,
                files,
            )
        segments.append((data, offset, rows, deltas))
    return segments
